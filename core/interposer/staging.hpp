// Arguments of a call in device memory, and host memory for MPI in their place: pinned, of the same extent,
// so that types, displacements and the message for other ranks do not change.
//
// Read arguments are copied before the call, on the stream that waits for all other usual streams of the
// device, written ones after it: only the bytes of their elements, since gaps may belong to other users.
#pragma once

#include "interposer/device_pointers.hpp"
#include "interposer/type_layout.hpp"

#include <cstdint>
#include <vector>

namespace jali::interposer {

struct Elements {
    std::int64_t offset, count; // in bytes from the argument's address; of a type
    H type;
};

// Whether there may be memory of a device among them: asks the driver about the first byte. From MPI_BOTTOM a
// type may refer to any address.
bool may_be_on_device(const void* address, const std::vector<Elements>& elements);

// Whether MPI reads or writes an argument, or writes as much as arrives.
enum class Use { read, written, both, received };

// Whether the MPI library takes memory of such devices itself. A setting controls the query.
bool mpi_takes_memory_of(const GpuVendor& vendor);

class Staging {
  public:
    // The address for MPI of this argument: its own, if that is not on a device, or MPI takes it. Throws
    // GpuError.
    void* give(const void* address, const std::vector<Elements>& elements, Use use);
    bool used() const { return !arguments_.empty(); }

    void read(); // copies read arguments once more
    // Of an argument that was received, no more than so many bytes. Throws GpuError.
    void write_back(std::int64_t received);
    void write_back() { write_back(-1); }
    std::int64_t bytes() const { return bytes_; } // copied so far

  private:
    struct Group {
        std::int64_t offset, count;
        std::shared_ptr<const TypeLayout> layout;
    };
    struct Argument {
        DeviceMemory memory;
        GpuAddress address;
        Use use;
        std::vector<Group> groups;
        PinnedMemory pinned;
        std::int64_t begin; // of the pinned part, from the address
        bool all_dense;
    };
    void copy_in(Argument& argument);
    void copy_back(Argument& argument, std::int64_t received);

    std::vector<Argument> arguments_;
    std::int64_t bytes_ = 0;
};

} // namespace jali::interposer
