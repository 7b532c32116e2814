// One GPU of this process: what it is, its memory, its streams, modules, events and graphs.
//
// Work is put on streams and runs in their order; the device's own stream (`stream()`) carries all work that
// is not documented to run beside it, so that memory freed and reused on it needs no waiting. Freed blocks
// are kept for reuse and returned to the driver when it runs out of memory. Every error becomes a GpuError
// with the driver's text; running out of memory becomes OutOfMemory, which lists the memory in use by label.
#pragma once

#include "device/driver_record.hpp"
#include "device/gpu_api.hpp"
#include "device/handle_type.hpp"
#include "device/ledger.hpp"
#include "device/progress.hpp"
#include "device/virtual_memory.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace jali {

class Gpu;

// A block of device memory, owned. Moves, does not copy; contents are unspecified at first.
class GpuMemory {
  public:
    GpuMemory() = default;
    GpuMemory(GpuMemory&& other) noexcept { *this = std::move(other); }
    GpuMemory& operator=(GpuMemory&& other) noexcept;
    ~GpuMemory() { release(); }

    GpuAddress address() const { return address_; }
    std::size_t size() const { return size_; }
    void release() noexcept;

  private:
    friend class Gpu;
    std::shared_ptr<Gpu> gpu_;
    GpuAddress address_ = 0;
    std::size_t size_ = 0, held_ = 0; // requested, taken from the pool
    bool fine_ = false;               // see Gpu::allocate_fine
    const std::string* label_ = nullptr;
};

// Host memory that the device reads and writes directly.
class PinnedMemory {
  public:
    PinnedMemory() = default;
    PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
    PinnedMemory& operator=(PinnedMemory&& other) noexcept;
    ~PinnedMemory() { release(); }

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }
    void release() noexcept;

  private:
    friend class Gpu;
    std::shared_ptr<Gpu> gpu_;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0, held_ = 0;
    const std::string* label_ = nullptr;
};

class GpuEvent {
  public:
    GpuEvent(std::shared_ptr<Gpu> gpu, bool timed);
    ~GpuEvent();
    GpuEvent(const GpuEvent&) = delete;
    void record(void* stream);
    void let_wait(void* stream) const; // later work on that stream, until this event is reached
    bool reached() const;
    void wait() const;                           // of the host
    double seconds_since(const GpuEvent&) const; // both timed and reached
    void* handle() const { return handle_; }
    const std::shared_ptr<Gpu>& gpu() const { return gpu_; }

  private:
    std::shared_ptr<Gpu> gpu_;
    void* handle_ = nullptr;
};

// A stream beside the device's own; the destructor keeps it for reuse.
class GpuStream {
  public:
    explicit GpuStream(std::shared_ptr<Gpu> gpu);
    ~GpuStream();
    GpuStream(const GpuStream&) = delete;
    void* handle() const { return handle_; }

  private:
    std::shared_ptr<Gpu> gpu_;
    void* handle_ = nullptr;
};

// A kernel of a loaded module. Modules stay loaded until the process ends, since launches hold their kernels.
struct GpuFunction {
    void* handle = nullptr;
    std::string name;
    std::string variant; // its compiled variant, if several kernels have the name
    int registers = 0;   // per thread
    int local_bytes = 0; // spilled or indexed memory per thread
    int most_threads = 0;
};

// Which of several concurrent kernels gets free places for its blocks first. jali's own stream has the
// priority `first`.
enum class LaunchPriority { of_stream, first, middle, last };

// The recorded work of one stream, to be repeated as a whole.
class GpuGraph {
  public:
    // `work` puts work on the stream, which is recorded and not run. Throws GpuError where something in it
    // cannot be recorded.
    template <class Work>
    GpuGraph(std::shared_ptr<Gpu> gpu, void* stream, Work&& work) : gpu_(std::move(gpu)) {
        begin(stream);
        try {
            work();
        } catch (...) {
            abandon(stream);
            throw;
        }
        end(stream);
    }
    ~GpuGraph();
    GpuGraph(const GpuGraph&) = delete;
    // Instantiates the graph, as the first launch does otherwise. The driver may wait for the device, and the
    // device for another rank's message: hold no lock that a rank needs.
    void make_ready();
    // Launches of one graph share the counters and buffers of its kernels: a launch on another stream waits
    // for the previous one, with one warning if that still runs. Any thread may launch it.
    void launch(void* stream);

  private:
    void follow(void* last, void* stream) const;
    void instantiate();
    void begin(void* stream);
    void end(void* stream);
    void abandon(void* stream) noexcept;
    std::shared_ptr<Gpu> gpu_;
    void *graph_ = nullptr, *instance_ = nullptr;    // until it is ready, from then on
    std::mutex mutex_;                               // of the order of launches
    void *captured_ = nullptr, *launched_ = nullptr; // on which streams, the second time the last one
    std::unique_ptr<DriverRecord> record_;           // its calls
    std::string what_;                               // its collectives and messages, as text
};

// Makes a device current for this thread during its lifetime, as calls of the driver require. The destructor
// restores the caller's device, on which libraries that query the driver for it put their work (CuPy,
// PyTorch). A thread without one keeps the first that it gets (HIP has no such threads).
class CurrentGpu {
  public:
    explicit CurrentGpu(const Gpu& gpu); // throws GpuError
    ~CurrentGpu();
    CurrentGpu(const CurrentGpu&) = delete;

  private:
    const GpuApi& api_;
    void* before_ = nullptr; // null: there is nothing to do
};

class Gpu : public std::enable_shared_from_this<Gpu> {
  public:
    // The link of two devices by the driver's peer attributes; -1: not reported.
    struct Link {
        int device, peer;
        int reaches, atomics, rank; // the peer's memory, with atomic operations; 0 is the fastest
    };
    static std::vector<Link> links(const GpuVendor& vendor); // of all pairs; throws as count does
    static int count(const GpuVendor& vendor); // of devices; throws GpuError where there is no driver
    // The device of this number, opened once in a process. Throws GpuError.
    static std::shared_ptr<Gpu> open(const GpuVendor& vendor, int ordinal);

    const GpuApi& api() const { return api_; }
    const GpuVendor& vendor() const { return api_.vendor; }
    const std::string& kind() const { return api_.vendor.name; } // "cuda"
    int ordinal() const { return ordinal_; }
    const std::string& name() const { return name_; }
    std::string architecture() const; // "sm_90"; empty where the compiler asks the device itself
    std::string identity() const;     // of the physical device: equal for two processes that share it
    std::size_t total_memory() const { return total_memory_; }
    std::size_t free_memory() const;
#define JALI_DECLARE(name)                                                                                   \
    int name() const {                                                                                       \
        return name##_;                                                                                      \
    }
    JALI_GPU_ATTRIBUTES(JALI_DECLARE)
#undef JALI_DECLARE

    void* context() const { return context_; } // the device's primary one
    void* stream() const { return stream_; }
    void synchronize() const; // the device's own stream
    // Waits until a kernel on the device's own stream has written this value to pinned memory: earlier than a
    // wait for its end.
    void wait_for_word(const std::int64_t* word, std::int64_t value) const;
    // Whether to record progress after a collective of so many bytes, or messages, on a stream, for waits
    // that check how far the device is. If so, call note_progress afterwards, with a description.
    bool notes_progress(std::size_t bytes) const {
        return is_heard_ &&
               (DeviceProgress::is_recording() || bytes >= DeviceProgress::long_launch || progress_.is_due());
    }
    void note_progress(void* stream, const std::string& what) const;
    DeviceProgress& progress() const { return progress_; }
    std::uint64_t times_idle() const { return times_idle_; } // how often all work before had been done
    // Sets what a waiting host calls, with the number of checks so far that found the device busy; it may
    // throw. Kernels that wait for other ranks need it, since these may have failed. Kept until its owner
    // sets an empty one.
    void set_while_waiting(const void* owner, std::function<void(unsigned checks)> action);
    // Kernels that wait for other ranks were stopped: `why` returns the reason until its owner sets an empty
    // one; an empty text means no longer relevant. Meanwhile every wait for the device throws GpuError, since
    // later results may depend on missing data.
    void set_aborted(const void* owner, std::function<std::string()> why);
    void refuse_if_aborted() const;

    // `own_pages`: no other allocation shares them, as it takes where another process maps the memory.
    GpuMemory allocate(std::size_t bytes, std::string_view label, bool own_pages = false);
    // Likewise, on pages of its own, of the driver's ordinary memory, whatever the pool's kind.
    GpuMemory allocate_without_handle(std::size_t bytes, std::string_view label);
    // Likewise, on pages of its own, of memory that a running kernel sees other devices write, and they it.
    GpuMemory allocate_fine(std::size_t bytes, std::string_view label);
    std::string why_no_fine_memory(); // empty: there is; else the driver's words. Tries it.
    // Memory with a handle of its own in which nothing else lies, whatever the pool's is made of; whole
    // pages. Throws GpuError where the driver has none, OutOfMemory.
    GpuMemory allocate_with_handle(std::size_t bytes, std::string_view label);
    static std::size_t with_handle_size(std::size_t bytes); // of the whole pages
    PinnedMemory allocate_pinned(std::size_t bytes, std::string_view label);
    const Ledger& ledger() const { return ledger_; }

    // How other processes map this device's memory: the type that JALI_PEER_HANDLES names, else the first
    // type that the driver can export. The pool's memory is made for it from then on.
    HandleType handle_type() const { return handle_type_; }
    // Whether JALI_PEER_HANDLES permits this type.
    bool allows(HandleType type) const { return !forced_handle_type_ || *forced_handle_type_ == type; }
    void use_handle_type(HandleType type) { handle_type_ = type; } // the other one failed
    // Empty if the driver exports memory by handles of this type, else its words. Tries it.
    std::string why_not_handle_type(HandleType type) const;
    // Whether the memory at this address, the pool's or another library's, was allocated with a handle of its
    // own.
    bool has_handle(GpuAddress address) const;
    // The block with a handle that holds this address, if it is one of the pool's; else null.
    const VirtualBlock* virtual_block(GpuAddress address) const;
    int device() const { return device_; } // as the driver names it
    bool network_reads_virtual() const { return network_reads_virtual_; }

    std::size_t cached() const; // bytes that are free in the pool
    // Keeps `kept` until the work that is on jali's stream at the next call of drop_done is done. Does not
    // wait and puts nothing on the stream, which may be full: the caller may hold a lock that a rank in
    // another thread needs.
    void keep_until_done(std::shared_ptr<void> kept);
    void drop_done();
    void trim(); // returns free memory of the pool, and free pinned memory, to the driver

    // On the device's own stream, in order; the host's bytes must stay until then.
    void copy_in(GpuAddress to, const void* from, std::size_t bytes) const;
    void copy_out(void* to, GpuAddress from, std::size_t bytes) const;
    void copy(GpuAddress to, GpuAddress from, std::size_t bytes) const { copy(to, from, bytes, stream_); }
    // On any stream, between memory of devices, or of the host where it is pinned.
    void copy_in(GpuAddress to, const void* from, std::size_t bytes, void* stream) const;
    void copy_out(void* to, GpuAddress from, std::size_t bytes, void* stream) const;
    void copy(GpuAddress to, GpuAddress from, std::size_t bytes, void* stream) const;
    void fill(GpuAddress to, unsigned char value, std::size_t bytes) const;

    // Device memory with these contents; the host's bytes may be freed.
    GpuMemory upload(const void* data, std::size_t bytes, std::string_view label);

    // A kernel of an image (cubin, PTX or code object), by name. Throws GpuError.
    GpuFunction function(std::span<const std::byte> image, const std::string& name);
    // Every kernel takes one structure, by value: these bytes.
    void launch(const GpuFunction& function, unsigned blocks, unsigned threads,
                std::span<const std::byte> arguments, void* stream,
                LaunchPriority priority = LaunchPriority::of_stream) const;
    template <class Structure>
        requires(std::is_trivially_copyable_v<Structure> &&
                 !std::is_convertible_v<Structure, std::span<const std::byte>>)
    void launch(const GpuFunction& function, unsigned blocks, unsigned threads, const Structure& arguments,
                void* stream, LaunchPriority priority = LaunchPriority::of_stream) const {
        launch(function, blocks, threads, std::as_bytes(std::span(&arguments, 1)), stream, priority);
    }
    // Whether blocks of an earlier priority get free places first, whatever their streams (CUDA since 11.8).
    bool has_priorities() const;
    int occupancy(const GpuFunction& function, int threads) const; // blocks per multiprocessor
    std::uint64_t number() const; // of the physical device: equal for two processes that share it

    // Lets kernels of another device of this process reach this one's memory; returns the driver's answer.
    int let_reach(const Gpu& other) const;

    // Whether what is put on the stream now becomes part of a graph instead of being run.
    bool is_capturing(void* stream) const;
    // From now on, driver calls of this thread never end a capture that another thread has begun.
    void let_others_capture() const;

    // Makes later work on our stream wait for the work so far on `stream` (of any owner), and the reverse.
    void wait_for(void* stream);
    void let_wait(void* stream);

    // Builtin kernels, which need no site function (src/jali/codegen/prelude/builtin.hpp), compiled when the
    // first is needed. Throws CompileError, GpuError if there is no such kernel.
    const GpuFunction& builtin(const std::string& name);

    ~Gpu();

  private:
    friend class GpuEvent;
    friend class GpuGraph;
    friend class GpuMemory;
    friend class GpuStream;
    friend class PinnedMemory;
    Gpu(const GpuApi& api, int ordinal);
    void listen() const;
    void listen_unless_recording() const;
    // For a stream or an event, by the driver's function or, to check for failed ranks, by polling.
    void wait(int (*deaf)(void*), int (*ask)(void*), void* what) const;
    struct Segment { // of the pool's memory with handles: a block, or several small ones
        VirtualBlock block;
        std::size_t in_use = 0; // blocks
    };
    void free_allocation(GpuMemory& memory) noexcept;
    void free_allocation(PinnedMemory& memory) noexcept;
    std::byte* take_pinned(std::size_t size); // null if none is free
    GpuMemory allocate_of_kind(std::size_t bytes, std::string_view label, bool own_pages, bool with_handle);
    GpuAddress from_driver(std::size_t bytes, bool with_handle);
    void take(GpuMemory& memory, std::size_t wanted, std::size_t bytes, std::string_view label,
              bool with_handle);
    GpuMemory booked(GpuMemory memory, std::size_t bytes, std::string_view label);
    GpuAddress plain_from_driver(std::size_t bytes);
    GpuAddress virtual_from_driver(std::size_t bytes);
    GpuAddress fine_from_driver(std::size_t bytes, std::string& trouble);
    HandleType first_handle_type() const;
    Segment* segment_of(GpuAddress address); // with the mutex held

    const GpuApi& api_;
    int ordinal_, device_ = 0;
    std::string name_;
    std::size_t total_memory_ = 0;
#define JALI_DECLARE(name) int name##_ = 0;
    JALI_GPU_ATTRIBUTES(JALI_DECLARE)
#undef JALI_DECLARE
    mutable std::atomic<std::uint64_t> times_idle_ = 0;
    int least_priority_ = 0, greatest_priority_ = 0;
    bool can_begin_early_ = false; // kernels wait for those before them by themselves: prelude/target_gpu.hpp
    void* context_ = nullptr;
    void* stream_ = nullptr;
    void listen(unsigned checks) const;
    mutable std::recursive_mutex hearing_; // of both maps, also while their functions are called
    std::map<const void*, std::function<void(unsigned)>> while_waiting_;
    std::map<const void*, std::function<std::string()>> aborted_;
    mutable DeviceProgress progress_;
    std::atomic<bool> is_heard_ = false, may_be_aborted_ = false; // there are some
    void* meeting_ = nullptr;                                     // an event, for wait_for and let_wait
    std::mutex meeting_mutex_; // held while a full stream waits, when other threads may free memory
    Ledger ledger_, pinned_ledger_;
    std::multimap<std::size_t, std::byte*> free_pinned_; // by size
    struct Kept {
        void* done; // an event
        std::vector<std::shared_ptr<void>> all;
    };
    std::deque<Kept> kept_;
    std::vector<std::shared_ptr<void>> kept_next_;
    std::vector<void*> free_streams_;
    mutable std::mutex mutex_;
    std::multimap<std::size_t, GpuAddress> free_, free_fine_; // by size
    std::map<GpuAddress, Segment> segments_;                  // by where they begin
    std::optional<HandleType> forced_handle_type_;
    std::atomic<HandleType> handle_type_{HandleType::ipc};
    bool network_reads_virtual_ = false;
    std::vector<std::byte> builtin_image_;
    std::map<std::string, GpuFunction> builtin_;
};

} // namespace jali
