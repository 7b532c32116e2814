#include "peers/abort_watch.hpp"
#include "messaging/wait_loop.hpp"

#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

namespace jali {

namespace {

// Kernels by the number with which they report; as in prelude/signals.hpp, which has the page's layout too.
constexpr const char* kernels[] = {
    "",           "pack_halos",       "await_halos", "await_slots", "receive_halos", "pass_messages",
    "collective", "a kernel of sites"};
constexpr int most_reports = 128, first_report = 2, epoch_bits = 56;
constexpr std::size_t page_bytes = (first_report + 2 * most_reports) * sizeof(std::int64_t);

constexpr auto grace = std::chrono::seconds(1);          // for later work on the stream
constexpr auto time_to_report = std::chrono::seconds(1); // a wait reads the page far more often

} // namespace

AbortWatch::AbortWatch(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator,
                       std::string waiting, std::function<std::string(const SignalReport&)> describe)
    : gpu_(std::move(gpu)), communicator_(std::move(communicator)), waits_(DeviceWaits::of(*communicator_)),
      describe_(std::move(describe)), pending_(gpu_, false) {
    page_ = gpu_->allocate_pinned(page_bytes, "peer counters");
    std::memset(page_.data(), 0, page_bytes);
    gpu_->set_while_waiting(this, [this, waiting = std::move(waiting),
                                   wait_loop = WaitLoop(watchdog_seconds()),
                                   passed = std::uint64_t{0}](unsigned checks) mutable {
        if (checks == 0) wait_loop.moved();
        if (checks % 64 != 63) return pause_core();
        record_noted();
        if (over_ || (!in_graph_ && pending_.reached())) return; // nothing of ours is waited for
        try {
            communicator_->check();
            if (const std::uint64_t now = gpu_->progress().passed(); now != std::exchange(passed, now))
                wait_loop.moved();
            wait_loop.check_clock([&] {
                const std::string known = reports();
                return "rank " + std::to_string(communicator_->rank()) + " " + waiting +
                       (known.empty() ? "" : " (it " + known + ")");
            });
            waits_->observe(wait_loop.waited(), [&] {
                const std::string known = reports(), runs = gpu_->progress().ahead();
                return runs + (runs.empty() || known.empty() ? "" : "; it ") + known;
            });
        } catch (const RankFailure&) {
            give_up_in_time();
        } catch (const TransportError&) {
            give_up_in_time();
        } catch (...) { // an interrupt
            abort();
            throw;
        }
    });
}

AbortWatch::~AbortWatch() {
    gpu_->set_while_waiting(this, nullptr);
    gpu_->set_aborted(this, nullptr);
}

GpuAddress AbortWatch::address() const {
    return reinterpret_cast<GpuAddress>(page_.data());
}

std::string AbortWatch::reports() const {
    const auto* page = reinterpret_cast<const volatile std::int64_t*>(page_.data());
    for (int k = 0; k < most_reports; ++k) {
        const std::int64_t word = page[first_report + 2 * k], what = page[first_report + 2 * k + 1];
        const auto kernel = static_cast<std::size_t>(what >> epoch_bits);
        if (what <= 0 || kernel >= std::size(kernels)) continue;
        const std::string text = describe_(
            {static_cast<GpuAddress>(word), what & ((std::int64_t{1} << epoch_bits) - 1), kernels[kernel]});
        if (!text.empty()) return text;
    }
    return "";
}

void AbortWatch::abort() {
    *reinterpret_cast<volatile std::int64_t*>(page_.data()) = 1;
    if (why_aborted_.empty()) why_aborted_ = "it was interrupted";
    gpu_->set_aborted(this, [this] { return program_is_over() ? "" : why_aborted_; });
}

bool AbortWatch::program_is_over() const {
    constexpr double for_ever = std::numeric_limits<double>::infinity();
    return communicator_->has_left(communicator_->rank(), for_ever);
}

// Called in the handler of a rank error: rethrows it, with what the device waits for. If only later work that
// does not depend on these ranks may still be running, it does so after `grace`. If this rank's program has
// ended, other users wait for the device: kernels are stopped without an error for them.
void AbortWatch::give_up_in_time() {
    if (program_is_over()) {
        over_ = true;
        return abort();
    }
    const auto now = std::chrono::steady_clock::now();
    if (recorded_late_ && !first_failure_) first_failure_ = now;
    if (first_failure_ && now - *first_failure_ < grace) return;
    abort();
    std::string known = reports();
    while (known.empty() && !pending_.reached() && std::chrono::steady_clock::now() - now < time_to_report) {
        pause_core();
        known = reports();
    }
    try {
        throw;
    } catch (RankFailure& failure) {
        why_aborted_ = "rank " + std::to_string(failure.rank) + " failed: " + failure.what();
        if (!known.empty()) failure.here = "rank " + std::to_string(communicator_->rank()) + " " + known;
        throw;
    } catch (const TransportError& error) {
        why_aborted_ = error.what();
        throw;
    }
}

// An event costs one more driver call, so on the device's own stream, which is never destroyed, it is
// recorded only when a host waits. Until it is reached all work on the stream counts as waiting for other
// ranks.
void AbortWatch::note_work(void* stream, bool captured) {
    if (captured) {
        in_graph_ = true; // and then it may be under way at any time
        return;
    }
    noted_ = stream == gpu_->stream();
    noted_at_ = gpu_->times_idle();
    if (!noted_) pending_.record(stream);
    recorded_late_ = false;
    first_failure_.reset();
}

void AbortWatch::record_noted() {
    if (noted_ && noted_at_ == gpu_->times_idle()) {
        pending_.record(gpu_->stream());
        recorded_late_ = true;
    }
    noted_ = false;
}

} // namespace jali
