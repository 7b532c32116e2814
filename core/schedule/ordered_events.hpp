// Events of several ranks on their streams and hosts, and the proof of their order.
//
// An event is atomic in the order: a launch or a part of it, a copy, a message's transfer, a wait of the
// host. It follows events of its own rank, waits for words that others write, and touches stretches of
// memory. `prove` takes the events of all ranks and throws unless all of them can happen, all accesses are
// inside memory, conflicting accesses to the same memory are ordered, and every stretch that an event expects
// to contain certain sites, or a combination of other contents, does so. It does not depend on lattices or
// devices: the events' makers list their accesses, of recorded calls (call_decoder) or of schedules that
// hosts run unchanged (scheduled_events).
#pragma once

#include "schedule/element.hpp"
#include "schedule/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace jali {

std::uint64_t mixed(std::uint64_t a, std::uint64_t b); // a label of both

// A piece of memory: in a space (a process), addresses [begin, end).
struct Stretch {
    std::uint64_t space = 0, begin = 0, end = 0;
    bool operator==(const Stretch&) const = default;
};

// A word of a signal pad reaches this value (waits), or is set to it (signals). Exactly: a later value does
// not end the wait, as for the number of a message beside its bytes.
struct SignalWord {
    std::uint64_t space = 0, address = 0;
    std::int64_t value = 0;
    bool exactly = false;
    std::int32_t writer = -1; // of RankEvents::words: the rank that alone may set it; -1: any
};

// `where` contains the sites sites[list][first...] of the object `label`, each in `site_bytes` bytes. Without
// a list: its bytes from number `first` on.
struct Holding {
    Stretch where;
    std::uint64_t label = 0;
    std::int32_t list = -1;
    std::int64_t first = 0;
    std::int64_t site_bytes = 1;
};

struct Move { // of as many bytes
    Stretch to, from;
};

// from[0] op from[1] op ..., element by element, divided by `divide_by`; each of as many bytes as `to`.
struct Combination {
    Stretch to;
    std::vector<Stretch> from;
    std::int32_t how = 0, divide_by = 1; // a number of RankEvents::operations
};
struct CombiningOperation {
    DataType type;
    Operation operation;
    bool reproducible; // the order of sources counts, and their grouping where it affects bits
    const UserOperation* user = nullptr; // of this process
    bool operator==(const CombiningOperation&) const = default;
};
std::int32_t number_of(std::vector<CombiningOperation>& known, const CombiningOperation& operation);

// The value of combined bytes: byte k is terms[0] op terms[1] op ..., each its byte k + offset.
struct ValueTerm {
    std::uint64_t label = 0; // of bytes that were held, or
    std::int32_t value = -1; // another value, with a smaller number
    std::int32_t times = 1;
    std::int64_t offset = 0;
};
struct Value {
    std::int32_t how = -1, divide_by = 1; // -1: the one term as it is
    std::vector<ValueTerm> terms;
};
struct ExpectedValue { // byte k of `where` is byte k + shift of the value
    Stretch where;
    std::int32_t value = 0;
    std::int64_t shift = 0;
};

// The end of known memory: a block of the driver's, or a part with a purpose of its own, of a block or of
// memory that is not jali's. An access must end in the block and the part that contain its first byte, if any
// do.
struct MemoryExtent {
    Stretch where;
    bool part = false;
    std::string name;
};

// A value that must be equal in all events that state it: details need no proof where a part represents the
// whole.
struct Said {
    std::uint64_t about = 0;
    std::int64_t value = 0;
    std::int32_t event = 0;
};

// A launch holds slots of a device for its blocks. `resident`: how many are resident at a time if nothing
// else runs; 0: not known. `ahead`: how many may wait before the other blocks of the launch have begun.
struct LaunchOccupancy {
    std::uint64_t device = 0;
    std::int64_t blocks = 0, resident = 0, ahead = 0;
};

struct OrderedEvent {
    std::string name;
    std::int32_t launch = -1;                // of RankEvents::launches
    std::int64_t waiting = 0;                // blocks that wait here; 0: all of the launch
    std::vector<std::int32_t> after;         // earlier events of this rank
    std::vector<std::int32_t> reads, writes; // numbers of footprints
    std::vector<std::int32_t> words;         // likewise: touched in any order
    std::vector<SignalWord> waits, signals;  // before and after all else in it
    std::vector<Holding> expects, holds;     // before and after it writes
    std::vector<ExpectedValue> results;      // before it writes
    std::vector<Move> moves;
    std::vector<Combination> combinations;
};

// The transfer of a message: the n-th send of one rank to another on a channel with a tag matches the n-th
// receive of the other from it; they are `opened` in this order. Its bytes belong to it until it is `closed`.
// A transport may delay a send until its receive is opened, but no proof relies on it.
struct Passage {
    bool sends = false;
    std::int32_t peer = 0, channel = 0, tag = 0;
    std::int32_t event = 0, opened = 0, closed = 0;
    std::int64_t bytes = 0;
    Stretch where;
};

// The events of one rank, in an order in which it began them.
struct RankEvents {
    std::int32_t rank = 0;
    std::vector<OrderedEvent> events;
    std::vector<std::vector<Stretch>> footprints; // each in order
    std::vector<std::vector<std::int64_t>> sites; // lists that holdings name
    std::vector<SignalWord> words;                // values of this rank's words at the beginning
    std::vector<Passage> passages;
    std::vector<CombiningOperation> operations;
    std::vector<Value> values;
    std::vector<Said> said;
    std::vector<LaunchOccupancy> launches;
    std::uint8_t filled = 0;          // whether all that moves was held, or moved there, before
    std::vector<MemoryExtent> memory; // the memory that this rank touches and has

    std::vector<std::byte> to_bytes() const;
    static RankEvents from_bytes(std::span<const std::byte> bytes); // throws ScheduleError
};

// How errors of a proof name things.
class ProofWords {
  public:
    virtual ~ProofWords() = default;
    virtual std::string event(const RankEvents& of, int event) const; // "'copy (run 1)' of rank 0"
    virtual std::string location(const Stretch& where) const;         // "64 bytes at 1024"
    // The text for byte `number` of the n-th holding of an event.
    virtual std::string held(const RankEvents& of, int event, int n, std::int64_t number) const;
};

// Throws ScheduleError that names the events and their ranks. Waiting blocks keep their places on the device:
// if they may hold so many that another launch gets none, that launch is assumed to begin after their waits.
void prove(std::span<const RankEvents> of_ranks, const ProofWords& words = {});

} // namespace jali
