// A signal pad: words of 64 bits on every rank's device that other ranks' devices write, and wait for.
//
// A word counts epochs, which only grow. Data words lie at the receiver, and the sender writes them when its
// data have arrived; credit words lie at the sender, and the receiver writes them to permit sends. Each word
// has one writer. The epochs that a rank has reached are counted in its own device memory, so that launches
// may be parts of graphs. Kernels do all of it (prelude/signals.hpp); docs/memory-model.md has the protocol.
//
// A waiting kernel now and then reads a mapped page of the host and reports there what it waits for: so the
// host's errors can name the wait, and the kernel stops when the host is notified of a failed rank. Later
// results of such a device are invalid: an aborted pad refuses further use.
#pragma once

#include "peers/abort_watch.hpp"
#include "peers/symmetric_buffer.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace jali {

// A row of words of a pad.
struct SignalWords {
    enum Kind { data, credit };
    Kind kind;
    std::int64_t count;
    std::string what;                             // an epoch of them: "exchange"
    std::function<int(std::int64_t word)> writer; // the rank that alone may write it
    std::size_t stride = sizeof(std::int64_t);    // bytes from one to the next
};

class SignalPad {
  public:
    // Collective, with equal numbers: rows of words, each on pages of its own, which are 0; then bytes for
    // any use; and `epochs` counts of this rank. `waiting` describes the rank's wait in timeout errors.
    // Throws GpuError, on all ranks if all have to be reached.
    SignalPad(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator,
              std::vector<SignalWords> rows, std::size_t bytes, std::int64_t epochs, std::string waiting,
              std::string_view label, SymmetricBuffer::Reach reach = SymmetricBuffer::Reach::all);
    ~SignalPad();
    SignalPad(const SignalPad&) = delete;

    // Where they begin, on every rank.
    std::int64_t offset(int row) const { return offsets_[row]; }
    std::int64_t offset_of_bytes() const { return offsets_.back(); }
    // A word of `rank` as this rank's device sees it.
    GpuAddress word(int rank, int row, std::int64_t number) const {
        return buffer_.of(rank) + static_cast<GpuAddress>(offsets_[row]) +
               static_cast<GpuAddress>(number) * rows_[row].stride;
    }
    GpuAddress own_word(int row, std::int64_t number) const {
        return buffer_.mine() + static_cast<GpuAddress>(offsets_[row]) +
               static_cast<GpuAddress>(number) * rows_[row].stride;
    }
    GpuAddress epoch(std::int64_t number) const { // this rank's, in its device's memory
        return epochs_.address() + static_cast<GpuAddress>(number) * sizeof(std::int64_t);
    }
    GpuAddress watch() const { return watch_.address(); } // the page that waiting kernels read

    const SymmetricBuffer& buffer() const { return buffer_; }
    const std::shared_ptr<Gpu>& gpu() const { return buffer_.gpu(); }
    const std::shared_ptr<Communicator>& communicator() const { return buffer_.communicator(); }

    // See AbortWatch.
    void note_work(void* stream) { watch_.note_work(stream); }
    void note_work(void* stream, bool captured) { watch_.note_work(stream, captured); }

    // The rank that alone may write the word at an address of this process, if it is one of a pad; else -1.
    static int writer_of(GpuAddress address);

  private:
    struct PadPosition {
        int row;
        std::int64_t number;
    };
    PadPosition position_of(GpuAddress address) const; // row -1: none
    std::string described(const SignalReport& report) const;

    SymmetricBuffer buffer_;
    std::vector<SignalWords> rows_;
    std::vector<std::int64_t> offsets_; // of rows, and of the bytes after them
    GpuMemory epochs_;
    AbortWatch watch_;
};

} // namespace jali
