// Ranks that wait for their devices tell each other so: where all of a group do, and no device moves, waiting
// longer is of no use.
//
// One rank alone cannot know: its device may wait for a rank whose host still computes. So a rank whose wait
// lasts tells all others every few seconds for how long its device has not moved, and what it was about; it
// hears them meanwhile. A rank that does something else tells nothing, and what it told before is soon too
// old.
#pragma once

#include "messaging/communicator.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace jali {

class DeviceWaits : public GroupResource {
  public:
    // That of these ranks, made at the first call, which is collective; it has messages of its own.
    static std::shared_ptr<DeviceWaits> of(Communicator& ranks);

    explicit DeviceWaits(std::shared_ptr<Communicator> control);
    void end() noexcept override;

    // A host has waited for so many seconds in which its device has not moved; `what` says what it is about.
    // To be called again and again. Throws TransportError where all ranks have waited for
    // JALI_DEVICE_WATCHDOG seconds.
    void observe(double waited, const std::function<std::string()>& what);

  private:
    using Clock = std::chrono::steady_clock;
    struct Report {
        double waited = 0;
        char what[248] = {};
    };
    struct Peer {
        Report sent, came, received;
        std::unique_ptr<Request> send, receive;
        Clock::time_point received_at{};
    };
    void exchange(const Report& mine);

    std::shared_ptr<Communicator> control_; // null: it has ended
    double limit_, interval_;               // seconds
    std::vector<Peer> peers_;               // by rank
    Clock::time_point checked_{}, reported_{};
};

} // namespace jali
