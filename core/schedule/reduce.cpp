// Names of types and operations, and the choice of the loop that combines them (reduce_table.hpp).
#include "device/copy_bytes.hpp"
#include "schedule/element.hpp"
#include "schedule/reduce_table.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace jali {

namespace {

struct TypeSpec {
    std::string_view name;
    std::size_t size;
};

constexpr std::array<TypeSpec, data_types> type_specs{{
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"fp16", 2},
    {"bf16", 2},
    {"fp32", 4},
    {"fp64", 8},
    {"complex64", 8},
    {"complex128", 16},
}};

constexpr std::array<std::string_view, operations> operation_names{
    "sum",        "prod",        "min",     "max",    "avg",     "logical_and",
    "logical_or", "logical_xor", "bit_and", "bit_or", "bit_xor", "user",
};

bool runs_avx2() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    return reduce_table_avx2.loops[0][0] && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#else
    return false;
#endif
}

ReduceLoop loop_of(const Reduction& reduction) {
    static const ReduceTable& table = runs_avx2() ? reduce_table_avx2 : reduce_table_base;
    return table.of(reduction);
}

bool is_integer(DataType type) {
    return type <= DataType::uint64;
}

// The user's function gets blocks, so that intermediate results fit a cache and need no more memory.
constexpr std::size_t user_block_bytes = std::size_t{1} << 18;

void reduce_by_user(const UserOperation& user, std::size_t element, void* into,
                    std::span<const void* const> sources, std::size_t count) {
    const std::size_t block = std::min(count, user_block_bytes / element);
    std::vector<std::byte> first(block * element), second(block * element);
    for (std::size_t begin = 0; begin < count; begin += block) {
        const std::size_t size = std::min(block, count - begin), bytes = size * element;
        const auto at = [&](const void* address) {
            return static_cast<const std::byte*>(address) + begin * element;
        };
        const std::byte* total = at(sources[0]);
        std::byte* free = first.data();
        for (std::size_t s = 1; s < sources.size(); ++s) {
            std::memcpy(free, at(sources[s]), bytes);
            user.combine(total, free, size);
            total = free;
            free = free == first.data() ? second.data() : first.data();
        }
        std::memcpy(static_cast<std::byte*>(into) + begin * element, total, bytes);
    }
}

template <class Names, class Name>
std::string joined(const Names& names, Name name) {
    std::string text;
    for (const auto& entry : names) text += (text.empty() ? "" : ", ") + std::string(name(entry));
    return text;
}

// Of an enumerator, which a cast may have made.
template <class Specs, class Enum>
const auto& spec_of(const Specs& specs, Enum which, const char* what) {
    const auto number = static_cast<std::size_t>(which);
    if (number >= std::size(specs))
        throw std::invalid_argument("there is no " + std::string(what) + " of number " +
                                    std::to_string(number));
    return specs[number];
}

} // namespace

std::size_t size_of(DataType type) {
    return spec_of(type_specs, type, "element type").size;
}

std::string_view name_of(DataType type) {
    return spec_of(type_specs, type, "element type").name;
}

DataType data_type_of(std::string_view name) {
    for (int k = 0; k < data_types; ++k) {
        if (type_specs[k].name == name) return static_cast<DataType>(k);
    }
    throw std::invalid_argument("there is no element type '" + std::string(name) + "'; use one of " +
                                joined(type_specs, [](const TypeSpec& spec) { return spec.name; }));
}

std::string_view name_of(Operation operation) {
    return spec_of(operation_names, operation, "operation");
}

Operation operation_of(std::string_view name) {
    for (int k = 0; k < operations; ++k) {
        if (operation_names[k] == name) return static_cast<Operation>(k);
    }
    throw std::invalid_argument("there is no operation '" + std::string(name) + "'; use one of " +
                                joined(operation_names, [](std::string_view entry) { return entry; }));
}

void check_reduction(const Reduction& reduction) {
    const std::string operation(name_of(reduction.operation)), type(name_of(reduction.type));
    if (reduction.divide_by < 1) {
        throw std::invalid_argument("a reduction is divided by " + std::to_string(reduction.divide_by) +
                                    "; it must be at least 1");
    }
    const bool adds = reduction.operation == Operation::sum || reduction.operation == Operation::avg;
    if (reduction.divide_by != 1 && !(adds && !is_integer(reduction.type))) {
        throw std::invalid_argument("'" + operation + "' of " + type + " cannot be divided by " +
                                    std::to_string(reduction.divide_by) +
                                    "; only sums of floating-point and complex numbers can");
    }
    if (reduction.operation == Operation::user) {
        if (!reduction.user) throw std::invalid_argument("a user operation has no function");
    } else if (!loop_of(reduction)) {
        std::string names;
        for (int k = 0; k < operations; ++k) {
            const auto other = static_cast<Operation>(k);
            const bool defined =
                other == Operation::user || loop_of({reduction.type, other, 1, nullptr}) != nullptr;
            if (defined) names += (names.empty() ? "" : ", ") + std::string(name_of(other));
        }
        throw std::invalid_argument("'" + operation + "' is not defined for " + type + "; " + type + " has " +
                                    names);
    }
}

void reduce(const Reduction& reduction, void* into, std::span<const void* const> sources, std::size_t count) {
    const std::size_t element = size_of(reduction.type);
    if (count == 0 || sources.empty()) return;
    if (sources.size() == 1 && reduction.divide_by == 1) {
        if (into != sources[0])
            copy_bytes(static_cast<std::byte*>(into), static_cast<const std::byte*>(sources[0]),
                       count * element);
    } else if (reduction.operation == Operation::user) {
        reduce_by_user(*reduction.user, element, into, sources, count);
    } else {
        loop_of(reduction)(into, sources.data(), sources.size(), count, reduction.divide_by);
    }
}

} // namespace jali
