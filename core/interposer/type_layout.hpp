// The bytes of elements of an MPI type, found through calls of the library that do not differ between ABIs.
#pragma once

#include "interposer/mpi_functions.hpp"
#include "schedule/element.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

namespace jali::interposer {

// A type that MPI does not take.
struct BadType : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct ByteRange {
    std::int64_t begin, end;
};

struct TypeLayout {
    std::int64_t size = 0;                     // bytes that travel
    std::int64_t extent = 0;                   // from one element to the next
    std::int64_t true_begin = 0, true_end = 0; // of an element's bytes, from its address
    bool dense = false;                        // elements' bytes follow each other in memory as in messages
    std::optional<DataType> element;           // of a type that MPI names and jali computes with
    std::vector<ByteRange> ranges;             // bytes of one element, in the order of memory
};

// Found once for a type, which keeps it as an attribute. Throws BadType if the library rejects the type.
std::shared_ptr<const TypeLayout> layout_of(H type);

// Elements are packed in this communicator where there is no COMM_SELF (MPI's sessions).
void use_for_packing(H comm);
H for_packing();

// Bytes that `count` elements at address 0 lie between; empty where they have none.
ByteRange bounds_of(const TypeLayout& layout, std::int64_t count);

} // namespace jali::interposer
