// What several ranks do on their streams and hosts, and the proof that it is in order.
//
// A moment is something that happens at once as far as order goes: a launch or a part of it, a copy, a
// message's transfer, a wait of the host. It follows moments of its own rank, waits for words that others
// write, and touches stretches of memory. `prove` takes the moments of all ranks and throws unless all of
// them can happen, whatever touches the same memory is ordered where one of the two writes, and every stretch
// that somebody expects to hold certain sites holds these. It knows nothing of lattices or devices: whoever
// makes moments says what they touch (core/halo/decoded_calls), and says it of what was really done.
#pragma once

#include "schedule/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace jali {

// A piece of memory: in a space (a process), addresses [begin, end).
struct Stretch {
    std::uint64_t space = 0, begin = 0, end = 0;
    bool operator==(const Stretch&) const = default;
};

// A word of a signal pad reaches this value (waits), or is set to it (signals).
struct SignalWord {
    std::uint64_t space = 0, address = 0;
    std::int64_t value = 0;
};

// `where` holds the sites sites[list][first...] of what `label` names, each in `site_bytes` bytes.
struct Holding {
    Stretch where;
    std::uint64_t label = 0;
    std::int32_t list = 0, first = 0;
    std::int64_t site_bytes = 1;
};

struct Move { // of as many bytes
    Stretch to, from;
};

struct Moment {
    std::string name;
    std::vector<std::int32_t> after;         // earlier moments of this rank
    std::vector<std::int32_t> reads, writes; // numbers of footprints
    std::vector<SignalWord> waits, signals;  // before and after all else in it
    std::vector<Holding> expects, holds;     // before and after it writes
    std::vector<Move> moves;
};

// The transfer of a message: the n-th that one rank sends to another on a channel meets the n-th that this
// one receives from it. `opened` is the moment after which the other end may go on, `closed` what waits for
// the other end.
struct Passage {
    bool sends = false;
    std::int32_t peer = 0, channel = 0, tag = 0;
    std::int32_t moment = 0, opened = 0, closed = 0;
    std::int64_t bytes = 0;
    Stretch where;
};

// The moments of one rank, in an order in which it began them.
struct RankMoments {
    std::int32_t rank = 0;
    std::vector<Moment> moments;
    std::vector<std::vector<Stretch>> footprints; // each in order, without overlaps
    std::vector<std::vector<std::int64_t>> sites; // lists that holdings name
    std::vector<SignalWord> words;                // what words of this rank hold at the beginning
    std::vector<Passage> passages;

    std::vector<std::byte> to_bytes() const;
    static RankMoments from_bytes(std::span<const std::byte> bytes); // throws ScheduleError
};

// Throws ScheduleError that names the moments and their ranks.
void prove(std::span<const RankMoments> of_ranks);

} // namespace jali
