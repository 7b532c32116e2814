// Arrays in the host's memory for plans: any object that exports its memory, without a copy.
#pragma once

#include "running/persistent.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace jali {

// The memory of one Python object, held until the destructor. By the buffer protocol where there is one
// (NumPy, bytearray, array), else by DLPack.
class HostArray {
  public:
    HostArray() = default;
    HostArray(const HostArray&) = delete;
    HostArray& operator=(const HostArray&) = delete;
    ~HostArray() {
        if (view_.obj != nullptr) PyBuffer_Release(&view_);
    }

    // False where it shows no memory of the host.
    bool read(nanobind::handle object);
    bool is_read() const { return is_read_; }

    std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }
    bool is_contiguous() const { return contiguous_; } // in the order of C
    bool is_read_only() const { return read_only_; }
    std::span<const Py_ssize_t> shape() const { return shape_; } // of the buffer protocol

  private:
    Py_buffer view_{};
    nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu> borrowed_;
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    std::span<const Py_ssize_t> shape_;
    bool is_read_ = false, contiguous_ = false, read_only_ = true;
};

// The arguments of a plan of the host for its buffers.
struct HostArrays {
    explicit HostArrays(std::size_t count);

    // Their addresses for a plan. Raises ParameterError that names buffer and plan: not contiguous, read-only
    // though written, of another size, overlapping with one that is written. Buffers without bytes take
    // anything. `objects` are what the arrays were read from.
    std::span<std::byte* const> fit(const PersistentPlan& plan, std::span<const nanobind::handle> objects);

    HostArray& operator[](std::size_t k) { return more_.empty() ? few_[k] : more_[k]; }

  private:
    std::array<HostArray, 3> few_; // of a standard collective: no allocation
    std::array<std::byte*, 3> few_addresses_{};
    std::vector<HostArray> more_;
    std::vector<std::byte*> more_addresses_;
    std::span<std::byte*> addresses_;
};

// For a run in progress: released where its end is detected, perhaps without the interpreter's lock.
std::shared_ptr<HostArrays> held_until_the_end(std::size_t count);

// Starts a plan and waits for it. Releases the interpreter's lock during long work.
void run_on_host(PersistentPlan& plan, std::span<std::byte* const> buffers);

} // namespace jali
