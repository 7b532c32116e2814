// A call of the program, from its arrival to its execution by MPI or jali.
//
// Calls that do not concern jali are passed on at once; for the others, arguments in device memory are
// staged. Errors are printed on stderr and passed to the communicator's error handler: no call returns
// success after a failure.
#pragma once

#include "interposer/counters.hpp"
#include "interposer/mpi_functions.hpp"
#include "interposer/narrowing.hpp"
#include "interposer/requests.hpp"
#include "interposer/service.hpp"
#include "interposer/staging.hpp"
#include "messaging/communicator.hpp"

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace jali::interposer {

// Marks a call of the program in progress: MPI's own nested calls are passed on.
class Inside {
  public:
    explicit Inside(H comm = 0);
    ~Inside();
    Inside(const Inside&) = delete;
    static bool is() { return depth > 0; }

  private:
    static thread_local int depth;
};

// Whether a call may concern jali at all.
inline bool concerns_us() {
    if (Inside::is()) return false;
    const bool driver = find_driver();
    return driver || counting() || serving();
}

constexpr std::chrono::milliseconds event(300); // for a launcher to forward the output

// Prints the error, calls the error handler of `comm` (that of COMM_WORLD if there is none), and returns the
// code for the program.
int failed(const char* function, H comm, const std::exception& error);

// Exceptions of the program's own error handlers, called by MPI, are passed to the program.
class Passing {
  public:
    template <class Pass>
    int operator()(Pass&& pass) {
        in_mpi = true;
        const int code = pass();
        in_mpi = false;
        return code;
    }
    bool in_mpi = false;
};

struct Argument {
    std::vector<Elements> elements; // none: the argument is ignored
    Use use = Use::read;
};
struct Described {
    Argument send, receive;
    bool asks = false;                             // whether `plan` is needed
    std::optional<CollectiveCallWithHandles> plan; // the call, if a plan may run it

    void read(std::int64_t offset, std::int64_t count, H type) {
        send.elements.push_back({offset, count, type});
    }
    void write(std::int64_t offset, std::int64_t count, H type, Use use = Use::written) {
        receive.elements.push_back({offset, count, type});
        receive.use = use;
    }
    // This thread's object, empty, with room for usual calls.
    static Described& empty(bool asks);
};

// One of the three ways in which a call is made: done when it returns, begun, or prepared.
struct Form {
    const char* function; // its name, in messages and counters
    H info = 0;
    void* request = nullptr;
    bool begun = false, prepared = false;

    // Makes the call in this form. The second set of functions is the classic one, for libraries without
    // large counts; `parts` then returns the number of parts of arrays.
    template <class B, class I, class P, class CB, class CI, class CP, class Parts, class... A>
    int call(B* blocking, I* nonblocking, P* initialising, CB* classic, CI* classic_nonblocking,
             CP* classic_initialising, Parts&& parts, A... arguments) const {
        if (prepared && initialising != nullptr) return initialising(arguments..., info, request);
        if (begun && nonblocking != nullptr) return nonblocking(arguments..., request);
        if (!prepared && !begun && blocking != nullptr) return blocking(arguments...);
        auto narrowed = std::make_shared<Narrowed>(parts());
        if (!prepared && !begun) return narrowed->call(classic, arguments...);
        const int code = prepared ? narrowed->call(classic_initialising, arguments..., info, request)
                                  : narrowed->call(classic_nonblocking, arguments..., request);
        if (code == 0 && narrowed->has_arrays())
            keep_until_complete(mpi().handle_at(request, 0), {nullptr, std::move(narrowed), prepared});
        return code;
    }
};

// Arrays that MPI reads after a call has begun, besides its staged memory (narrowing.hpp).
inline std::shared_ptr<void> take_arrays(const void* request) {
    std::optional<KeptRequest> taken = take(mpi().handle_at(request, 0));
    return taken ? std::move(taken->arrays) : nullptr;
}

// `describe(Described&)` describes the arguments; `pass(send, receive)` makes the call on these addresses.
template <class Describe, class Pass>
int made(const Form& form, H comm, const void* send, void* receive, Describe&& describe, Pass&& pass) {
    if (!concerns_us()) try {
            return pass(send, receive);
        } catch (const NarrowingError& error) {
            return failed(form.function, comm, error);
        }
    const Inside inside(comm);
    Passing passing;
    const auto passed = [&](const void* from, void* to) { return passing([&] { return pass(from, to); }); };
    try {
        Described& described = Described::empty(serving() && !form.begun && !form.prepared);
        describe(described);
        Tally tally(form.function, described.send.elements, described.receive.elements);
        const bool devices = has_driver() && (may_be_on_device(send, described.send.elements) ||
                                              may_be_on_device(receive, described.receive.elements));
        std::optional<CurrentContexts> contexts;
        if (devices) contexts.emplace();
        if (described.plan) {
            tally.by("nobody: it failed");
            if (const std::optional<std::string> by =
                    serve(comm, *described.plan, send, receive, described.send.elements,
                          described.receive.elements, devices)) {
                tally.by(*by);
                return 0;
            }
            tally.by("mpi");
        }
        if (!devices) return passed(send, receive);
        Staging staging;
        const void* from = staging.give(send, described.send.elements, described.send.use);
        void* to = staging.give(receive, described.receive.elements, described.receive.use);
        if (!staging.used()) return passed(send, receive);
        tally.by("mpi, staged");
        if (const int code = passed(from, to); code != 0) return code;
        if (form.begun || form.prepared)
            keep_until_complete(
                mpi().handle_at(form.request, 0),
                {std::make_unique<Staging>(std::move(staging)), take_arrays(form.request), form.prepared});
        else
            staging.write_back();
        return 0;
    } catch (const BadType&) {
        if (passing.in_mpi) throw;
        return passed(send, receive); // MPI reports the error
    } catch (const NarrowingError& error) {
        return failed(form.function, comm, error);
    } catch (const std::exception& error) {
        if (passing.in_mpi) throw;
        return failed(form.function, comm, error);
    }
}

} // namespace jali::interposer
