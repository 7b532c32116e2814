// Kernels of a device that wait for other ranks: where one has failed they are told to stop, and the host
// says why, and what they waited for.
//
// The mapped page that they look at holds a word that is not 0 when the host gives up, and reports of what
// is waited for: written while a wait is long, and gone when it ends. After an abort nothing that depends on
// what did not come may be used: as long as this is there and the rank's program is not over, whatever waits
// for the device is refused with the first error (Gpu::set_aborted).
#pragma once

#include "device/gpu.hpp"
#include "messaging/communicator.hpp"
#include "peers/device_waits.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace jali {

// A word that a kernel waits for, and the epoch that it shall come to.
struct SignalReport {
    GpuAddress word;
    std::int64_t epoch;
    const char* kernel;
};

class AbortWatch {
  public:
    // Collective. `waiting` is what a rank says it did when it has waited for too long; `describe` returns a
    // report in words, empty where it is of no word that the owner knows.
    AbortWatch(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator, std::string waiting,
               std::function<std::string(const SignalReport&)> describe);
    ~AbortWatch();
    AbortWatch(const AbortWatch&) = delete;

    GpuAddress address() const; // of the page
    // What a kernel has been waiting for: "waits for exchange 7 of rank 3, in 'await_halos'"; empty if none
    // has said so.
    std::string reports() const;

    // Work that waits for others has been put on this stream; until it is done a waiting host listens to the
    // other ranks.
    void note_work(void* stream) { note_work(stream, gpu_->is_capturing(stream)); }
    void note_work(void* stream, bool captured);

  private:
    void abort();
    bool program_is_over() const;
    void give_up_in_time();
    void record_noted();

    std::shared_ptr<Gpu> gpu_;
    std::shared_ptr<Communicator> communicator_;
    std::shared_ptr<DeviceWaits> waits_;
    std::function<std::string(const SignalReport&)> describe_;
    GpuEvent pending_;
    bool noted_ = false; // there is work on the device's own stream that is not behind `pending_` yet
    std::uint64_t noted_at_ = 0;
    bool recorded_late_ = false; // other work may be behind `pending_` as well
    std::optional<std::chrono::steady_clock::time_point> first_failure_;
    bool in_graph_ = false;
    bool over_ = false; // this rank's program is, and kernels were told to stop
    PinnedMemory page_;
    std::string why_aborted_; // empty: it was not
};

} // namespace jali
