// Times of a rank's work: spans on tracks (the host's thread, its messages, streams of devices), for
// profiles.
//
// A Timeline records the work of the thread that started it, and of its virtual rank or process. Without a
// Timeline nothing is recorded: a place that could record a span then only reads one number. On the host a
// span is two readings of the steady clock; on a device it is two events on a stream, which are converted to
// times on request (`bytes`) or when many are pending. The device's clock is aligned with the host's by
// events on a stream of their own, at the beginning and on request, so that no work waits meanwhile. Memory
// is bounded: the oldest spans are dropped, and counted. Work that is being captured in a graph has no times;
// a graph that is launched is one span. The same places name ranges for the vendors' tools
// (device/profiler_ranges.hpp).
#pragma once

#include "device/gpu.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace jali {

// entry(name): what a span is. kernel, bulk, boundary: a site function over all sites, or these parts of
// them. produce, pack, transport, unpack: a halo exchange (a kernel that packs into another device's memory
// is transport). send, receive, copy, reduce: steps of collectives. move: fields in and out of arrays on a
// device. launch: the host's part of a launch. sums: what follows a kernel that sums. region: what a program
// named.
// clang-format off
#define JALI_PHASES(entry) \
    entry(kernel) entry(bulk) entry(boundary) entry(sums) \
    entry(produce) entry(pack) entry(transport) entry(unpack) \
    entry(send) entry(receive) entry(copy) entry(reduce) entry(collective) \
    entry(move) entry(graph) entry(launch) entry(wait) entry(region)
// clang-format on
enum class Phase : std::uint8_t {
#define JALI_PHASE(name) name,
    JALI_PHASES(JALI_PHASE)
#undef JALI_PHASE
};
std::vector<std::string> phase_names();

// The work of a span: `bytes` must be moved at least, `moved` are moved without any cache.
struct Work {
    std::int64_t sites = 0, bytes = 0, moved = 0, flops = 0;
    std::uint8_t arithmetic = 0; // its place in jali.codegen.arithmetics, from 1 on
};

// As Python reads it (jali.profile.spans), so without padding. Times in ns: of the steady clock, or of a
// device's clock until they are returned.
struct Span {
    std::int64_t begin = 0, end = 0;
    std::int64_t sites = 0, bytes = 0, moved = 0, flops = 0;
    std::uint32_t name = 0, detail = 0; // numbers in names()
    std::uint32_t call = 0;             // of which launch it is a part; 0: none
    std::uint16_t track = 0;
    std::uint8_t phase = 0, arithmetic = 0;

    void set(const Work& work) {
        sites = work.sites;
        bytes = work.bytes;
        moved = work.moved;
        flops = work.flops;
        arithmetic = work.arithmetic;
    }
};
static_assert(sizeof(Span) == 64);

class Timeline {
  public:
    enum FixedTrack : std::uint16_t { host_track, message_track, plan_track, fixed_tracks };

    explicit Timeline(std::size_t capacity); // spans that are kept
    ~Timeline();
    Timeline(const Timeline&) = delete;

    // From now on, of this thread, to which all else is bound too. Throws std::logic_error if one is on.
    void start();
    void stop();
    bool recording() const { return recording_; }

    // The spans, oldest first, as bytes: those of devices that have not ended are waited for. Times are the
    // host's. Throws GpuError.
    std::vector<std::byte> bytes();
    const std::vector<std::string>& names() const { return names_; } // number 0 is empty
    const std::vector<std::string>& tracks() const { return tracks_; }
    std::uint64_t dropped() const { return dropped_; }
    double device_accuracy() const; // seconds by which device times may be off against the host's

    static Timeline* of_this_thread();
    static std::int64_t now(); // ns
    void add(Phase phase, FixedTrack track, std::uint32_t name, std::int64_t begin, std::int64_t end,
             const Work& work = {});
    std::uint32_t number_of(std::string_view name);

  private:
    friend class DeviceSpan;
    friend class CallScope;
    // A device's clock: events since `base`, whose time since the first one is known.
    struct Clock {
        std::shared_ptr<Gpu> gpu;
        std::unique_ptr<GpuStream> stream;
        std::unique_ptr<GpuEvent> base, next_base; // the next one replaces it when all spans are after it
        double base_ns = 0, next_base_ns = 0;
        std::int64_t origin = 0; // of the host, when the first one was reached
        double rate = 1;         // ns of the host in one of the device
        double accuracy = 0;     // ns
        std::vector<std::unique_ptr<GpuEvent>> idle;
    };
    struct Pending {
        Span span;
        int clock = 0;
        std::unique_ptr<GpuEvent> begin, end;
    };
    struct ClockReading {
        std::int64_t host, uncertainty;
        std::unique_ptr<GpuEvent> event;
    };
    struct DeviceTrack {
        void* stream;
        int clock;
    };

    int clock_of(Gpu& gpu);
    ClockReading meet(Clock& clock); // an event and the host's time when it was reached
    std::unique_ptr<GpuEvent> take_event(Clock& clock);
    std::uint16_t track_of(void* stream, int clock, Phase phase);
    bool begin_on(Gpu& gpu, void* stream, Phase phase,
                  Pending& pending); // false: there is no room, or a graph is made
    void end_on(void* stream, Pending&& pending);
    void settle(bool wait);
    void keep(const Span& span);

    std::size_t capacity_, first_ = 0; // of the oldest, when all places are taken
    std::vector<Span> spans_;
    std::deque<Pending> pending_;
    std::vector<Clock> clocks_;
    std::vector<std::string> names_, tracks_;
    std::unordered_map<std::string, std::uint32_t> numbers_;
    std::vector<DeviceTrack> device_tracks_; // of track fixed_tracks + k
    std::string looked_up_;
    std::uint32_t call_ = 0, calls_ = 0, detail_ = 0;
    std::uint64_t dropped_ = 0;
    bool recording_ = false;
};

// How many timelines are recording, and one more while ranges go to a vendor's tool.
extern std::atomic<unsigned> watchers;
inline bool watched() {
    return watchers.load(std::memory_order_relaxed) != 0;
}

// From here to the end of the block, on the host.
class HostSpan {
  public:
    HostSpan(Phase phase, std::string_view name, const Work& work = {}) {
        if (watched()) open(phase, name, work);
    }
    ~HostSpan() {
        if (open_) close();
    }
    HostSpan(const HostSpan&) = delete;

  private:
    void open(Phase phase, std::string_view name, const Work& work);
    void close() noexcept;

    bool open_ = false, ranged_ = false;
    Phase phase_{};
    std::uint32_t name_ = 0;
    Timeline* timeline_ = nullptr;
    std::int64_t begin_ = 0;
    Work work_;
};

// What is put on a stream between here and the end of the block.
class DeviceSpan {
  public:
    DeviceSpan(Gpu& gpu, void* stream, Phase phase, std::string_view name, const Work& work = {}) {
        if (watched()) open(gpu, stream, phase, name, work);
    }
    ~DeviceSpan() {
        if (open_) close();
    }
    DeviceSpan(const DeviceSpan&) = delete;

  private:
    void open(Gpu& gpu, void* stream, Phase phase, std::string_view name, const Work& work);
    void close() noexcept;

    bool open_ = false, ranged_ = false;
    Timeline* timeline_ = nullptr;
    void* stream_ = nullptr;
    Timeline::Pending pending_;
};

// While an object exists, nothing of this thread is recorded: for work that is done only for the clock.
class Unrecorded {
  public:
    Unrecorded();
    ~Unrecorded();
    Unrecorded(const Unrecorded&) = delete;
};

// A launch: spans inside have its number and the name of its halo policy.
class CallScope {
  public:
    explicit CallScope(std::string_view detail) {
        if (watched()) open(detail);
    }
    ~CallScope() {
        if (timeline_ != nullptr) close();
    }
    CallScope(const CallScope&) = delete;

  private:
    void open(std::string_view detail);
    void close();

    Timeline* timeline_ = nullptr;
    std::uint32_t before_ = 0, detail_before_ = 0;
};

} // namespace jali
