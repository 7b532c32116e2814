// Ranks that wait for their devices notify each other: if all ranks of a group wait and no device makes
// progress, waiting longer is useless.
//
// One rank alone cannot detect a stall: its device may wait for a rank whose host still computes. So a rank
// in a long wait sends all others every few seconds how long its device has made no progress, and its current
// work; it receives their reports meanwhile. A rank that does other work sends no reports, and its earlier
// reports expire.
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
    // The object of these ranks, made at the first call, which is collective; it uses a duplicate
    // communicator.
    static std::shared_ptr<DeviceWaits> of(Communicator& ranks);

    explicit DeviceWaits(std::shared_ptr<Communicator> control);
    void end() noexcept override;

    // Reports that a host has waited for so many seconds without progress of its device; `what` describes the
    // work. To be called repeatedly. Throws TransportError where all ranks have waited for
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
