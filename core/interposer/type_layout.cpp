#include "interposer/type_layout.hpp"
#include "messaging/communicator.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace jali::interposer {

namespace {

void check(int code, const char* doing) {
    try {
        MpiAbi::find("").check(code, doing);
    } catch (const TransportError& error) {
        throw BadType(error.what());
    }
}

// MPI's names of types that jali computes with; those of C's integers by their size here.
std::optional<DataType> element_named(const std::string& name, std::int64_t size) {
    static const std::map<std::string, DataType> exact{
        {"MPI_FLOAT", DataType::fp32},
        {"MPI_DOUBLE", DataType::fp64},
        {"MPI_REAL", DataType::fp32},
        {"MPI_DOUBLE_PRECISION", DataType::fp64},
        {"MPI_REAL2", DataType::fp16},
        {"MPI_REAL4", DataType::fp32},
        {"MPI_REAL8", DataType::fp64},
        {"MPIX_C_FLOAT16", DataType::fp16},
        {"MPIX_BFLOAT16", DataType::bf16},
        {"MPI_COMPLEX", DataType::complex64},
        {"MPI_COMPLEX8", DataType::complex64},
        {"MPI_COMPLEX16", DataType::complex128},
        {"MPI_DOUBLE_COMPLEX", DataType::complex128},
        {"MPI_C_COMPLEX", DataType::complex64},
        {"MPI_C_FLOAT_COMPLEX", DataType::complex64},
        {"MPI_C_DOUBLE_COMPLEX", DataType::complex128},
        {"MPI_CXX_FLOAT_COMPLEX", DataType::complex64},
        {"MPI_CXX_DOUBLE_COMPLEX", DataType::complex128},
    };
    static const std::array<const char*, 17> with_sign{
        "MPI_SIGNED_CHAR",   "MPI_SHORT",    "MPI_INT",      "MPI_LONG",     "MPI_LONG_LONG",
        "MPI_LONG_LONG_INT", "MPI_INT8_T",   "MPI_INT16_T",  "MPI_INT32_T",  "MPI_INT64_T",
        "MPI_INTEGER",       "MPI_INTEGER1", "MPI_INTEGER2", "MPI_INTEGER4", "MPI_INTEGER8",
        "MPI_AINT",          "MPI_COUNT"};
    static const std::array<const char*, 9> without_sign{
        "MPI_UNSIGNED_CHAR", "MPI_UNSIGNED_SHORT",     "MPI_UNSIGNED",
        "MPI_UNSIGNED_LONG", "MPI_UNSIGNED_LONG_LONG", "MPI_UINT8_T",
        "MPI_UINT16_T",      "MPI_UINT32_T",           "MPI_UINT64_T"};
    if (const auto found = exact.find(name); found != exact.end())
        return static_cast<std::int64_t>(size_of(found->second)) == size ? std::optional(found->second)
                                                                         : std::nullopt;
    const auto by_size = [&](DataType one, DataType two, DataType four,
                             DataType eight) -> std::optional<DataType> {
        if (size == 1) return one;
        if (size == 2) return two;
        if (size == 4) return four;
        if (size == 8) return eight;
        return std::nullopt;
    };
    if (std::ranges::find(with_sign, name) != with_sign.end())
        return by_size(DataType::int8, DataType::int16, DataType::int32, DataType::int64);
    if (std::ranges::find(without_sign, name) != without_sign.end())
        return by_size(DataType::uint8, DataType::uint16, DataType::uint32, DataType::uint64);
    return std::nullopt;
}

thread_local H packing_comm = 0;

// The bytes of an element that packing and unpacking carries: it leaves the gaps alone. `in_order`: they are
// packed in the order of memory, each once.
std::vector<ByteRange> ranges_of(H type, const TypeLayout& layout, bool& in_order) {
    const std::int64_t bytes = layout.true_end - layout.true_begin;
    std::vector<std::byte> full(bytes), seen(bytes, std::byte{0});
    std::uint32_t noise = 1;
    for (std::byte& byte : full) byte = std::byte(((noise = noise * 1664525u + 1013904223u) >> 24) | 1u);
    int most = 0, position = 0;
    check(mpi().Pack_size(1, type, for_packing(), &most), "MPI_Pack_size");
    std::vector<std::byte> packed(most);
    check(mpi().Pack(full.data() - layout.true_begin, 1, type, packed.data(), most, &position, for_packing()),
          "MPI_Pack");
    const int size = position;
    position = 0;
    check(
        mpi().Unpack(packed.data(), size, &position, seen.data() - layout.true_begin, 1, type, for_packing()),
        "MPI_Unpack");
    in_order = size == bytes && std::equal(full.begin(), full.end(), packed.begin());
    std::vector<ByteRange> ranges;
    for (std::int64_t at = 0; at < bytes; ++at) {
        if (seen[at] == std::byte{0}) continue;
        if (ranges.empty() || ranges.back().end != layout.true_begin + at)
            ranges.push_back({layout.true_begin + at, layout.true_begin + at});
        ++ranges.back().end;
    }
    return ranges;
}

// Only types that MPI names are. The classic function does not support types with large counts.
bool made_of_nothing(H type) {
    int combiner = 0;
    if (mpi().Type_get_envelope_c != nullptr) {
        std::int64_t integers = 0, addresses = 0, larges = 0, types = 0;
        check(mpi().Type_get_envelope_c(type, &integers, &addresses, &larges, &types, &combiner),
              "MPI_Type_get_envelope_c");
        return integers == 0 && addresses == 0 && larges == 0 && types == 0;
    }
    int integers = 0, addresses = 0, types = 0;
    check(mpi().Type_get_envelope(type, &integers, &addresses, &types, &combiner), "MPI_Type_get_envelope");
    return integers == 0 && addresses == 0 && types == 0;
}

std::shared_ptr<const TypeLayout> describe(H type, bool& is_named) {
    auto layout = std::make_shared<TypeLayout>();
    std::intptr_t begin = 0, extent = 0;
    check(mpi().Type_size_x(type, &layout->size), "MPI_Type_size_x");
    check(mpi().Type_get_extent(type, &begin, &extent), "MPI_Type_get_extent");
    layout->extent = extent;
    check(mpi().Type_get_true_extent(type, &begin, &extent), "MPI_Type_get_true_extent");
    layout->true_begin = begin, layout->true_end = begin + extent;
    const bool tight = begin == 0 && extent == layout->size && layout->extent == layout->size;
    is_named = made_of_nothing(type);
    if (is_named) {
        std::string name(8192, '\0'); // more than the longest of any ABI
        int length = 0;
        check(mpi().Type_get_name(type, name.data(), &length), "MPI_Type_get_name");
        name.resize(length);
        layout->element = element_named(name, layout->size);
    }
    if (layout->size == 0) return layout;
    if (tight && is_named) {
        layout->dense = true;
        layout->ranges = {{0, layout->size}};
        return layout;
    }
    bool in_order = false;
    layout->ranges = ranges_of(type, *layout, in_order);
    layout->dense = tight && in_order;
    return layout;
}

} // namespace

void use_for_packing(H comm) {
    packing_comm = comm;
}

H for_packing() {
    static const bool has_self = [] {
        int started = 0;
        return mpi().Initialized(&started) == 0 && started != 0;
    }();
    return has_self || packing_comm == 0 ? mpi().self : packing_comm;
}

namespace {

using Shared = std::shared_ptr<const TypeLayout>;

int no_copy(H, int, void*, void*, void*, int* copied) {
    *copied = 0;
    return 0;
}
int drop(H, int, void* value, void*) {
    delete static_cast<Shared*>(value);
    return 0;
}
int key_of_layouts() {
    static const int key = [] {
        int made = mpi().keyval_invalid;
        check(mpi().Type_create_keyval(reinterpret_cast<void*>(&no_copy), reinterpret_cast<void*>(&drop),
                                       &made, nullptr),
              "MPI_Type_create_keyval");
        return made;
    }();
    return key;
}

} // namespace

std::shared_ptr<const TypeLayout> layout_of(H type) {
    // Types that MPI names never change; others are freed, and their handles may be reused.
    static std::shared_mutex mutex;
    static std::unordered_map<H, Shared> named;
    static thread_local H latest = 0; // programs repeat themselves
    static thread_local const TypeLayout* layout_of_latest = nullptr;
    const auto stays = [](const TypeLayout* layout) { return Shared(Shared(), layout); }; // counts nothing
    type = mpi().handle(type);
    if (layout_of_latest != nullptr && latest == type) return stays(layout_of_latest);
    {
        std::shared_lock lock(mutex);
        if (const auto found = named.find(type); found != named.end()) {
            latest = type;
            layout_of_latest = found->second.get();
            return stays(layout_of_latest);
        }
    }
    Shared* known = nullptr;
    int there = 0;
    if (mpi().Type_get_attr(type, key_of_layouts(), &known, &there) == 0 && there) return *known;
    bool is_named = false;
    Shared layout = describe(type, is_named);
    if (is_named) {
        std::unique_lock lock(mutex);
        named.emplace(type, layout);
    } else {
        mpi().Type_set_attr(type, key_of_layouts(), new Shared(layout));
    }
    return layout;
}

ByteRange bounds_of(const TypeLayout& layout, std::int64_t count) {
    if (count <= 0 || layout.size == 0) return {0, 0};
    const std::int64_t last = (count - 1) * layout.extent; // extents may be negative
    return {layout.true_begin + std::min<std::int64_t>(last, 0),
            layout.true_end + std::max<std::int64_t>(last, 0)};
}

} // namespace jali::interposer
