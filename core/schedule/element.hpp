// Element types and the operations that combine elements: what a Reduce step of a schedule computes.
//
// One entry of a table per type and operation; the loops are in reduce.cpp. 16-bit floats are widened to
// fp32, all sources of a spec are combined in fp32 in the order given, and the result is rounded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace jali {

enum class DataType : std::uint8_t {
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    fp16,
    bf16,
    fp32,
    fp64,
    complex64,
    complex128
};
constexpr int data_types = 14;

std::size_t size_of(DataType type);           // bytes of one element
std::string_view name_of(DataType type);      // "int8", ..., "complex128"
DataType data_type_of(std::string_view name); // throws std::invalid_argument that lists the names

enum class Operation : std::uint8_t {
    sum,
    prod,
    min,
    max,
    avg,
    logical_and,
    logical_or,
    logical_xor,
    bit_and,
    bit_or,
    bit_xor,
    user
};
constexpr int operations = 12;

std::string_view name_of(Operation operation);
Operation operation_of(std::string_view name); // throws std::invalid_argument that lists the names

// A user's operation: `combine(in, inout, count)` sets inout[k] = in[k] op inout[k], where `in` holds the
// earlier operand. Associative; commutative unless the plan is reproducible.
class UserOperation {
  public:
    virtual ~UserOperation() = default;
    virtual void combine(const void* in, void* inout, std::size_t count) const = 0;
    virtual std::string name() const = 0;
    // Whether the two are the same operation, so that plans of one may be used for the other.
    virtual bool is_same(const UserOperation& other) const { return this == &other; }
};

// How elements are combined. `divide_by` finishes an average: the result is divided by it (1: not at all).
// Averages are for floating-point and complex types.
struct Reduction {
    DataType type = DataType::fp64;
    Operation operation = Operation::sum;
    int divide_by = 1;
    std::shared_ptr<const UserOperation> user;
};

// Throws std::invalid_argument unless the operation is defined for the type (min and max: not complex;
// logical and bitwise: integers; avg: floating-point and complex).
void check_reduction(const Reduction& reduction);

// into[k] = sources[0][k] op sources[1][k] op ..., from left to right. `into` may be one of the sources;
// other overlap is not allowed. One source: a copy (divided, if so asked).
void reduce(const Reduction& reduction, void* into, std::span<const void* const> sources, std::size_t count);

} // namespace jali
