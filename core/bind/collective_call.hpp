// A call of a collective of a communicator from Python, with its arguments assigned by name.
#pragma once

#include "bind/gpu_array.hpp"
#include "running/collectives.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <nanobind/nanobind.h>

namespace jali {

struct CallArguments {
    enum Parameter {
        x,
        out,
        op,
        commutative,
        root,
        counts,
        reproducible,
        algorithm,
        checked,
        blocking,
        stream,
        parameters
    };
    static constexpr std::array<const char*, parameters> names{
        "x",         "out",     "op",       "commutative", "root", "counts", "reproducible",
        "algorithm", "checked", "blocking", "stream"};

    std::array<PyObject*, parameters> values{}; // null: the method has no such parameter
    nanobind::handle operator[](Parameter which) const { return values[which]; }
    bool has(Parameter which) const { return values[which] != nullptr && values[which] != Py_None; }
};

// The kind of new arrays on devices that differ from their model in the number of rows.
class OtherRows {
  public:
    using Kind = std::shared_ptr<const ArrayKind>;
    template <class Make>
    const Kind& find(const Kind& after, std::int64_t rows, const Make& make) {
        for (const Known& one : known_)
            if (one.rows == rows && *one.after == *after) return one.kind;
        if (known_.size() < most) return known_.emplace_back(Known{after, rows, make()}).kind;
        next_ = (next_ + 1) % most;
        known_[next_] = {after, rows, make()};
        return known_[next_].kind;
    }

  private:
    static constexpr std::size_t most = 8;
    struct Known {
        Kind after;
        std::int64_t rows;
        Kind kind;
    };
    std::vector<Known> known_;
    std::size_t next_ = 0;
};

// The data of a communicator for its methods. `there` is made by its first collective.
struct CollectiveCalls {
    std::shared_ptr<Communicator> ranks;
    bool checked;
    std::shared_ptr<Collectives> there = nullptr;
    OtherRows other_rows{};
    std::recursive_mutex turn{}; // of a thread: operations of users may call collectives

    ~CollectiveCalls() {
        nanobind::gil_scoped_release released; // ends plans, which may wait for ranks that are threads
        there.reset();
    }
};

// Makes the call; returns its result, or a request. Raises the call's errors.
nanobind::object call_from_python(CollectiveCalls& calls, nanobind::handle communicator,
                                  Collective collective, const CallArguments& arguments);
// The chosen algorithm, and the reason, as text; nothing is started. Collective where the call would be the
// first.
nanobind::object explain_from_python(CollectiveCalls& calls, nanobind::handle communicator,
                                     Collective collective, const CallArguments& arguments);

} // namespace jali
