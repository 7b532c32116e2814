// A graph of steps that move or compute: receive, wait, send, signal, a library's own collective, copy,
// reduce, kernel, over named buffers.
//
// A step has parts (most have one); a part runs after the step's earlier parts and after the parts it needs,
// so a kernel whose last part needs an arrival is one step with a port. A message step ends with its message:
// a receive when its data have arrived, a send when its bytes may change again. Buffers are named slots:
// their addresses are given at every run, so a schedule outlives moves of its memory. A buffer may be another
// rank's, if the transport reaches it: a step writes (puts) there, and signals permit the write and report
// its completion. check() proves properties of one rank's schedule, check_messages() those of all together. A
// schedule does not depend on lattices or collectives: exchanges of halos (core/halo) and collectives
// (core/composition, core/planning) are built on top.
#pragma once

#include "schedule/element.hpp"
#include "schedule/step_role.hpp"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace jali {

// Faults of a schedule, or of those of all ranks together.
enum class Fault : std::uint8_t {
    structure,    // invalid form: buffers, kinds of steps, needs that do not exist
    bounds,       // a region outside its buffer, an element cut in two
    message,      // sends and receives that do not match, or may overtake each other
    deadlock,     // steps that wait for each other
    race,         // accesses that conflict and may come in either order
    unwritten,    // reads bytes that no earlier part has written
    overwritten,  // writes bytes that it must preserve
    contribution, // the right place, the wrong contents
    scratch,      // more scratch than allowed
    hierarchy,    // a message that does not cross the level it is marked with
};
constexpr int faults = 10;
std::string_view name_of(Fault fault);

class Communicator;
class Request;

struct ScheduleError : std::logic_error {
    explicit ScheduleError(const std::string& what, Fault kind = Fault::structure, int rank = -1, int at = -1)
        : std::logic_error(what), kind(kind), rank(rank), at(at) {}
    Fault kind;
    int rank, at; // where it shows: the step, or the moment of a proof; -1: nowhere in particular
};

struct Buffer {
    std::string name;
    std::size_t bytes = 0;
    bool holds_data = false; // before the schedule starts
    int rank = -1;           // whose memory it is, if another's, which may only be written; -1: our own
};

struct Region {
    int buffer = 0;
    std::size_t offset = 0, bytes = 0;
};

struct Port {
    int step = 0, part = 0;
};

// Messages between two ranks with one tag arrive in the order sent. `library` is an index into
// Schedule::libraries(): the carrier of the message.
struct Receive {
    Region into;
    int from = 0, tag = 0, library = 0;
};

struct Send {
    Region from;
    int to = 0, tag = 0, library = 0;
};

// Notifies a rank, once per run, that all this signal needs is done; steps after that rank's wait of the same
// tag see it. A signal ends at once.
struct Signal {
    int to = 0, tag = 0, library = 0;
};

struct Wait {
    int from = 0, tag = 0, library = 0;
};

// A collective that a transport's library has itself, with all ranks, which begin the same ones in the same
// order. It ends as a message does. Its implementation is unknown: only its accesses to one rank's memory are
// described.
struct LibraryCollective {
    using Begin = std::function<std::unique_ptr<Request>(Communicator& communicator,
                                                         std::span<std::byte* const> buffers)>;
    Begin begin;
    std::vector<Region> reads, writes;
    int library = 0;
};

// Gathers rows of `row_bytes` into `to`: row k comes from from.offset + rows[k] * row_bytes, or, without a
// list, from from.offset + k * row_bytes.
struct CopySpec {
    Region from, to;
    std::size_t row_bytes = 0;
    std::shared_ptr<const std::vector<std::int32_t>> rows;
    std::size_t first_row = 0; // where in `rows` this copy begins
};

struct Copy {
    std::vector<CopySpec> specs;
};

// into = from[0] op from[1] op ..., element by element; all regions have the same size. `into` may be one of
// the sources.
struct ReduceSpec {
    Region into;
    std::vector<Region> from;
};

struct Reduce {
    Reduction how;
    std::vector<ReduceSpec> specs;
};

using Progress = std::function<void()>;

// Runs part `part`; calls `*progress` between blocks of work if it is given.
struct Kernel {
    using Body = std::function<void(int part, std::span<std::byte* const> buffers, const Progress* progress)>;
    Body body;
    std::vector<std::vector<Region>> reads, writes; // per part
};

struct Part {
    std::string name;
    std::vector<Port> needs;
};

// Where a step stands in the plan of a collective, for explanations and the simulator: its stage, its chunk
// of the pipeline, and the level of the hierarchy that its message crosses. -1: nowhere.
struct Mark {
    int stage = -1, chunk = -1, level = -1;
    std::optional<StepRole> role{}; // its purpose, in fusions and profiles; none: given by its action
};

struct Step {
    std::string name;
    std::variant<Receive, Wait, Send, Signal, LibraryCollective, Copy, Reduce, Kernel> action;
    std::vector<Part> parts; // one, or as many as a kernel has
    Mark mark{};
};

// The identity by which a receive, wait, send or signal matches that of another rank.
struct Envelope {
    bool sends = false, signals = false; // a send or signal; a signal or wait
    int peer = 0, tag = 0, library = 0;
    auto operator<=>(const Envelope&) const = default;
};
std::optional<Envelope> envelope_of(const Step& step); // none: it is something else
Region region_of_message(const Step& step);            // of a signal or wait: no bytes

class Schedule {
  public:
    int add_buffer(std::string name, std::size_t bytes, bool holds_data = false, int rank = -1);
    // One part that needs `needs`; returns the step's number.
    template <class Action>
    int add(std::string name, Action action, std::vector<Port> needs = {}, Mark mark = {}) {
        steps_.push_back({std::move(name), std::move(action), {Part{"", std::move(needs)}}, mark});
        return static_cast<int>(steps_.size()) - 1;
    }
    int add_kernel(std::string name, Kernel kernel, std::vector<Part> parts);

    // Names of what carries messages; message steps refer to them by index. One, "", to begin with: any.
    void set_libraries(std::vector<std::string> names) { libraries_ = std::move(names); }
    const std::vector<std::string>& libraries() const { return libraries_; }

    const std::vector<Step>& steps() const { return steps_; }
    const std::vector<Buffer>& buffers() const { return buffers_; }

    // Parts in an order that respects all needs: parts that start messages first, computing last. Throws
    // ScheduleError if there is a cycle or a need that does not exist.
    std::vector<Port> order() const;

    // Throws ScheduleError unless every step is well formed by itself: its regions lie inside their buffers,
    // its specs and sources fit.
    void check_form() const;
    // And unless the graph has no cycle, what is read was there or was written before, and parts that may run
    // in either order do not write what the other reads or writes.
    void check() const;

    std::string describe() const; // one line per part, in order

  private:
    std::vector<Buffer> buffers_;
    std::vector<Step> steps_;
    std::vector<std::string> libraries_{""};
};

// All ranks' schedules together: every send matches a receive of the same size, peer and tag, in order, and
// every signal a wait.
void check_messages(std::span<const Schedule* const> of_ranks);

} // namespace jali
