// The ranks that are connected by messages started at once, directly or through others, and the messages that
// each of them starts: these ranks check a start together.
#pragma once

#include "messaging/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace jali {

// An end of a message, as reported to other ranks.
struct StartedEnd {
    std::int64_t tag;
    std::int32_t peer;
    std::int16_t sends, noted; // noted: in DriverRecord

    std::string of(int rank) const; // with its rank, for errors
};

class ConnectedRanks {
  public:
    // Waits for all of them: each rank knows only its peers, so all forward the received reports until every
    // rank has all. Throws MessageError, on all of them, if two do not start the same messages with each
    // other.
    ConnectedRanks(Communicator& communicator, std::span<const StartedEnd> mine);

    const std::map<int, std::vector<StartedEnd>>& ends() const { return ends_; } // of each of them
    // The report of each of them, by rank. Collective over the connected ranks.
    using Reports = std::map<int, std::vector<std::byte>>;
    Reports gather(std::vector<std::byte> mine) const;
    void meet() const { gather({}); }

  private:
    void pass_on(Reports& known) const;
    std::vector<std::vector<std::byte>> exchange(std::span<const std::byte> mine) const;
    int rounds_needed() const;
    void check() const;

    Communicator& communicator_;
    std::vector<int> peers_;
    std::map<int, std::vector<StartedEnd>> ends_;
    int rounds_ = 0;
};

} // namespace jali
