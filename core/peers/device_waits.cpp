#include "peers/device_waits.hpp"

#include "messaging/wait_loop.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <cstring>
#include <span>

namespace jali {

namespace {

constexpr double longest_interval = 5; // seconds between reports of a rank
constexpr int reports_in_time = 12;    // until the limit
constexpr int tag = max_tag;

} // namespace

std::shared_ptr<DeviceWaits> DeviceWaits::of(Communicator& ranks) {
    auto& resource = ranks.resources["waits for devices"];
    if (!resource) resource = std::make_shared<DeviceWaits>(ranks.size() > 1 ? ranks.duplicate() : nullptr);
    return std::static_pointer_cast<DeviceWaits>(resource);
}

DeviceWaits::DeviceWaits(std::shared_ptr<Communicator> control)
    : control_(std::move(control)), limit_(settings().device_watchdog),
      interval_(std::min(longest_interval, limit_ / reports_in_time)),
      peers_(control_ ? static_cast<std::size_t>(control_->size()) : 0) {
}

void DeviceWaits::end() noexcept {
    peers_.clear(); // unmatched messages are cancelled
    control_.reset();
}

void DeviceWaits::observe(double waited, const std::function<std::string()>& what) {
    if (!control_ || waited < 2 * interval_ || limit_ >= watchdog_seconds()) return; // which ends it as soon
    const Clock::time_point now = Clock::now();
    const auto seconds_since = [&](Clock::time_point then) {
        return std::chrono::duration<double>(now - then).count();
    };
    if (seconds_since(checked_) < interval_ / 8) return;
    checked_ = now;
    Report mine{.waited = waited};
    std::strncpy(mine.what, what().c_str(), sizeof mine.what - 1);
    try {
        exchange(mine);
    } catch (const TransportError&) {
        return; // this thread may not use messages: waits end by the watchdog
    }
    if (waited < limit_) return;
    std::string all;
    for (int rank = 0; rank < control_->size(); ++rank) {
        const bool own = rank == control_->rank();
        const Peer& peer = peers_[static_cast<std::size_t>(rank)];
        const Report& report = own ? mine : peer.received;
        if (!own &&
            (seconds_since(peer.received_at) > 3 * interval_ || report.waited < limit_ - 3 * interval_))
            return;
        all += std::string(rank == 0 ? "" : "; ") + "rank " + std::to_string(control_->outermost(rank)) +
               ": " + (report.what[0] != '\0' ? report.what : "unknown work");
    }
    throw TransportError("the devices of all " + std::to_string(control_->size()) +
                         " ranks stall: nothing has moved for " + seconds_text(limit_) +
                         " (JALI_DEVICE_WATCHDOG), and every rank waits for its own. They run: " + all);
}

void DeviceWaits::exchange(const Report& mine) {
    const Clock::time_point now = Clock::now();
    const bool reports = std::chrono::duration<double>(now - reported_).count() >= interval_;
    if (reports) reported_ = now;
    for (int rank = 0; rank < control_->size(); ++rank) {
        if (rank == control_->rank()) continue;
        Peer& peer = peers_[static_cast<std::size_t>(rank)];
        if (!peer.receive) peer.receive = control_->receive(&peer.came, sizeof peer.came, rank, tag);
        while (control_->test(*peer.receive)) {
            peer.received = peer.came;
            peer.received_at = now;
            peer.receive = control_->receive(&peer.came, sizeof peer.came, rank, tag);
        }
        if (!reports || (peer.send && !control_->test(*peer.send)))
            continue; // it has not read the one before
        peer.sent = mine;
        peer.send = control_->send(&peer.sent, sizeof peer.sent, rank, tag);
    }
}

} // namespace jali
