// Stops kernels that wait for other ranks when a rank has failed; the host then reports the cause and what
// the kernels waited for.
//
// The kernels read a mapped page: a word that is not 0 after an abort, and reports of what is waited for,
// written during a long wait and cleared at its end. After an abort no result that depends on missing data
// may be used: while the AbortWatch exists and the rank's program has not ended, every wait for the device
// throws the first error (Gpu::set_aborted).
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

// A word that a kernel waits for, and the epoch that it must reach.
struct SignalReport {
    GpuAddress word;
    std::int64_t epoch;
    const char* kernel;
};

class AbortWatch {
  public:
    // Collective. `waiting` describes the rank's wait in timeout errors; `describe` returns a report as text,
    // empty for a word that is not the owner's.
    AbortWatch(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator, std::string waiting,
               std::function<std::string(const SignalReport&)> describe);
    ~AbortWatch();
    AbortWatch(const AbortWatch&) = delete;

    GpuAddress address() const; // of the page
    // What a kernel has been waiting for: "waits for exchange 7 of rank 3, in 'await_halos'"; empty without a
    // report.
    std::string reports() const;

    // Records that work on this stream waits for other ranks; until it is done a waiting host checks for
    // their failures.
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
    bool over_ = false; // this rank's program has ended, and kernels were stopped
    PinnedMemory page_;
    std::string why_aborted_; // empty: it was not
};

} // namespace jali
