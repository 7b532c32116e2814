// The ranks that messages which are started at once connect, directly or by way of others, and what each of
// them starts: those that look at a start together.
#pragma once

#include "messaging/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace jali {

// An end of a message, as other ranks hear of it.
struct StartedEnd {
    std::int64_t tag;
    std::int32_t peer;
    std::int16_t sends, noted; // noted: in DriverRecord

    std::string of(int rank) const; // whose end it is; in errors
};

class ConnectedRanks {
  public:
    // Waits for all of them: each knows its peers alone, so all pass on what they have heard until everybody
    // has heard everything. Throws MessageError, on all of them, where two do not start the same messages
    // with each other.
    ConnectedRanks(Communicator& communicator, std::span<const StartedEnd> mine);

    const std::map<int, std::vector<StartedEnd>>& ends() const { return ends_; } // of each of them
    // What every one of them tells, by rank. They do so together, as they meet.
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
