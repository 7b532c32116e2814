#include "device/timeline.hpp"
#include "device/profiler_ranges.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace jali {

namespace {

thread_local Timeline* timeline_of_thread = nullptr;
thread_local int unrecorded = 0;

constexpr std::size_t most_pending = 8192; // spans of devices whose times are not known yet
constexpr double base_ns = 1e9;            // how far from its base an event's time is read: floats of ms

} // namespace

std::atomic<unsigned> watchers{0};

std::vector<std::string> phase_names() {
    return {
#define JALI_PHASE(name) #name,
        JALI_PHASES(JALI_PHASE)
#undef JALI_PHASE
    };
}

// ---- recording -----------------------------------------------------------------------------------------

Timeline::Timeline(std::size_t capacity)
    : capacity_(std::max<std::size_t>(capacity, 1)), names_{""}, tracks_{"host", "messages", "collectives"} {
}

Timeline::~Timeline() {
    if (recording_) watchers.fetch_sub(1);
    if (timeline_of_thread == this) timeline_of_thread = nullptr;
}

Timeline* Timeline::of_this_thread() {
    return unrecorded > 0 ? nullptr : timeline_of_thread;
}

std::int64_t Timeline::now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void Timeline::start() {
    if (timeline_of_thread != nullptr)
        throw std::logic_error("this rank is being recorded already; recordings do not nest");
    timeline_of_thread = this;
    recording_ = true;
    watchers.fetch_add(1);
}

void Timeline::stop() {
    if (!recording_) return;
    recording_ = false;
    watchers.fetch_sub(1);
    if (timeline_of_thread == this) timeline_of_thread = nullptr;
}

std::uint32_t Timeline::number_of(std::string_view name) {
    if (name.empty()) return 0;
    looked_up_.assign(name); // keeps its memory
    const auto found = numbers_.find(looked_up_);
    if (found != numbers_.end()) return found->second;
    names_.emplace_back(name);
    return numbers_[names_.back()] = static_cast<std::uint32_t>(names_.size() - 1);
}

void Timeline::keep(const Span& span) {
    if (spans_.size() < capacity_) {
        spans_.push_back(span);
        return;
    }
    spans_[first_] = span;
    first_ = (first_ + 1) % capacity_;
    ++dropped_;
}

void Timeline::add(Phase phase, FixedTrack track, std::uint32_t name, std::int64_t begin, std::int64_t end,
                   const Work& work) {
    Span span;
    span.begin = begin;
    span.end = end;
    span.set(work);
    span.name = name;
    span.detail = detail_;
    span.call = call_;
    span.track = track;
    span.phase = static_cast<std::uint8_t>(phase);
    keep(span);
}

// ---- devices -------------------------------------------------------------------------------------------

std::unique_ptr<GpuEvent> Timeline::take_event(Clock& clock) {
    if (clock.idle.empty()) return std::make_unique<GpuEvent>(clock.gpu, true);
    auto event = std::move(clock.idle.back());
    clock.idle.pop_back();
    return event;
}

// Of several tries the one that the host waited for least.
Timeline::ClockReading Timeline::meet(Clock& clock) {
    ClockReading best{0, 0, nullptr};
    for (int attempt = 0; attempt < 8; ++attempt) {
        auto event = take_event(clock);
        const std::int64_t before = now();
        event->record(clock.stream->handle());
        event->wait();
        const std::int64_t after = now();
        if (!best.event || (after - before) / 2 < best.uncertainty) {
            std::swap(best.event, event);
            best.host = before + (after - before) / 2;
            best.uncertainty = (after - before) / 2;
        }
        if (event) clock.idle.push_back(std::move(event));
    }
    return best;
}

int Timeline::clock_of(Gpu& gpu) {
    for (std::size_t k = 0; k < clocks_.size(); ++k)
        if (clocks_[k].gpu.get() == &gpu) return static_cast<int>(k);
    Clock clock;
    clock.gpu = gpu.shared_from_this();
    clock.stream = std::make_unique<GpuStream>(clock.gpu);
    ClockReading start = meet(clock);
    clock.base = std::move(start.event);
    clock.origin = start.host;
    clock.accuracy = static_cast<double>(start.uncertainty);
    clocks_.push_back(std::move(clock));
    return static_cast<int>(clocks_.size()) - 1;
}

// A stream that is not the device's own is named after what is first seen on it.
std::uint16_t Timeline::track_of(void* stream, int clock, Phase phase) {
    for (std::size_t k = 0; k < device_tracks_.size(); ++k)
        if (device_tracks_[k].stream == stream && device_tracks_[k].clock == clock)
            return static_cast<std::uint16_t>(fixed_tracks + k);
    const Gpu& gpu = *clocks_[clock].gpu;
    const std::string device = gpu.kind() + ":" + std::to_string(gpu.ordinal());
    device_tracks_.push_back({stream, clock});
    std::string name = device + (stream == gpu.stream() ? " main stream"
                                 : phase == Phase::bulk ? " bulk stream"
                                                        : " other stream");
    const auto others = std::count_if(tracks_.begin(), tracks_.end(), [&](const std::string& other) {
        return other.compare(0, name.size(), name) == 0;
    });
    if (others > 0) name += " " + std::to_string(others + 1);
    tracks_.push_back(name);
    return static_cast<std::uint16_t>(tracks_.size() - 1);
}

bool Timeline::begin_on(Gpu& gpu, void* stream, Phase phase, Pending& pending) {
    if (gpu.is_capturing(stream)) return false;
    if (pending_.size() >= most_pending) settle(false);
    if (pending_.size() >= most_pending) {
        ++dropped_;
        return false;
    }
    pending.clock = clock_of(gpu);
    pending.span.track = track_of(stream, pending.clock, phase);
    pending.span.phase = static_cast<std::uint8_t>(phase);
    pending.begin = take_event(clocks_[pending.clock]);
    pending.end = take_event(clocks_[pending.clock]);
    pending.begin->record(stream);
    return true;
}

void Timeline::end_on(void* stream, Pending&& pending) {
    pending.end->record(stream);
    pending_.push_back(std::move(pending));
}

// Turns what has ended into spans in the device's time, in the order of their ends as they were put.
void Timeline::settle(bool wait) {
    while (!pending_.empty()) {
        Pending& one = pending_.front();
        if (wait) {
            one.end->wait();
        } else if (!one.end->reached()) {
            return;
        }
        Clock& clock = clocks_[one.clock];
        const double since = 1e9 * one.begin->seconds_since(*clock.base);
        const double begin = clock.base_ns + since;
        one.span.begin = std::llround(begin);
        one.span.end = std::llround(begin + 1e9 * one.end->seconds_since(*one.begin));
        keep(one.span);
        // spans of other streams may be a little older than this one, none is by so much
        if (clock.next_base && begin - clock.next_base_ns > base_ns) {
            clock.idle.push_back(std::move(clock.base));
            clock.base = std::move(clock.next_base);
            clock.base_ns = clock.next_base_ns;
        }
        if (!clock.next_base && since > base_ns) {
            clock.next_base = std::move(one.begin);
            clock.next_base_ns = begin;
        } else {
            clock.idle.push_back(std::move(one.begin));
        }
        clock.idle.push_back(std::move(one.end));
        pending_.pop_front();
    }
}

double Timeline::device_accuracy() const {
    double worst = 0;
    for (const Clock& clock : clocks_) worst = std::max(worst, clock.accuracy);
    return 1e-9 * worst;
}

std::vector<std::byte> Timeline::bytes() {
    for (Clock& clock : clocks_) clock.gpu->synchronize(); // reports failed ranks
    settle(true);
    for (Clock& clock : clocks_) {
        ClockReading end = meet(clock);
        const double device = clock.base_ns + 1e9 * end.event->seconds_since(*clock.base);
        if (device > 0) clock.rate = static_cast<double>(end.host - clock.origin) / device;
        clock.accuracy = std::max(clock.accuracy, static_cast<double>(end.uncertainty));
        clock.idle.push_back(std::move(end.event));
    }
    std::vector<std::byte> out(spans_.size() * sizeof(Span));
    for (std::size_t k = 0; k < spans_.size(); ++k) {
        Span span = spans_[(first_ + k) % spans_.size()];
        if (span.track >= fixed_tracks) {
            const Clock& clock = clocks_[device_tracks_[span.track - fixed_tracks].clock];
            span.begin = clock.origin + std::llround(clock.rate * static_cast<double>(span.begin));
            span.end = clock.origin + std::llround(clock.rate * static_cast<double>(span.end));
        }
        std::memcpy(out.data() + k * sizeof(Span), &span, sizeof(Span));
    }
    return out;
}

// ---- scopes --------------------------------------------------------------------------------------------

void HostSpan::open(Phase phase, std::string_view name, const Work& work) {
    ranged_ = push_range(name);
    timeline_ = Timeline::of_this_thread();
    open_ = ranged_ || timeline_ != nullptr;
    if (timeline_ == nullptr) return;
    phase_ = phase;
    name_ = timeline_->number_of(name);
    work_ = work;
    begin_ = Timeline::now();
}

void HostSpan::close() noexcept {
    if (timeline_ != nullptr && timeline_ == timeline_of_thread)
        timeline_->add(phase_, Timeline::host_track, name_, begin_, Timeline::now(), work_);
    if (ranged_) pop_range();
}

void DeviceSpan::open(Gpu& gpu, void* stream, Phase phase, std::string_view name, const Work& work) {
    ranged_ = push_range(name);
    open_ = ranged_;
    Timeline* const timeline = Timeline::of_this_thread();
    if (timeline == nullptr || !timeline->begin_on(gpu, stream, phase, pending_)) return;
    open_ = true;
    timeline_ = timeline;
    stream_ = stream;
    pending_.span.set(work);
    pending_.span.name = timeline_->number_of(name);
    pending_.span.detail = timeline_->detail_;
    pending_.span.call = timeline_->call_;
}

void DeviceSpan::close() noexcept {
    if (timeline_ != nullptr && timeline_ == timeline_of_thread) {
        try {
            timeline_->end_on(stream_, std::move(pending_));
        } catch (const GpuError&) {
            // the device is lost: every wait for it reports so
        }
    }
    if (ranged_) pop_range();
}

Unrecorded::Unrecorded() {
    ++unrecorded;
}

Unrecorded::~Unrecorded() {
    --unrecorded;
}

void CallScope::open(std::string_view detail) {
    timeline_ = Timeline::of_this_thread();
    if (timeline_ == nullptr) return;
    before_ = timeline_->call_;
    detail_before_ = timeline_->detail_;
    timeline_->call_ = ++timeline_->calls_;
    timeline_->detail_ = timeline_->number_of(detail);
}

void CallScope::close() {
    timeline_->call_ = before_;
    timeline_->detail_ = detail_before_;
}

} // namespace jali
