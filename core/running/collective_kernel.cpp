#include "running/collective_kernel.hpp"
#include "device/prelude.hpp"
#include "running/gpu_plan.hpp"

#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>

namespace jali {

namespace {

// The storage type of elements on devices, and the type in which they are combined.
struct ElementText {
    DataType type;
    const char *stored, *value;
};

constexpr ElementText elements[] = {
    {DataType::int8, "signed char", "signed char"},
    {DataType::int16, "short", "short"},
    {DataType::int32, "int32_t", "int32_t"},
    {DataType::int64, "int64_t", "int64_t"},
    {DataType::uint8, "unsigned char", "unsigned char"},
    {DataType::uint16, "unsigned short", "unsigned short"},
    {DataType::uint32, "uint32_t", "uint32_t"},
    {DataType::uint64, "uint64_t", "uint64_t"},
    {DataType::fp16, "half_bits", "float"},
    {DataType::bf16, "bfloat16_bits", "float"},
    {DataType::fp32, "float", "float"},
    {DataType::fp64, "double", "double"},
    {DataType::complex64, "complex_pair<float>", "complex_pair<float>"},
    {DataType::complex128, "complex_pair<double>", "complex_pair<double>"},
};

const ElementText& text_of(DataType type) {
    for (const ElementText& element : elements)
        if (element.type == type) return element;
    throw std::invalid_argument("kernels know no elements of type " + std::string(name_of(type)));
}

const char* name_of(Wire wire) {
    return wire == Wire::flagged ? "flagged" : "slotted";
}

std::string operation_in(const Reduction* how) {
    return how != nullptr ? std::string(name_of(how->operation)) : "none";
}

} // namespace

KernelText collective_text(Wire wire, const Reduction* how, bool checked) {
    const ElementText& element = text_of(how != nullptr ? how->type : DataType::uint32);
    std::string defines = "#define JALI_LANES 1\n#define JALI_REAL double\n#define JALI_THREADS " +
                          std::to_string(GpuPlan::most_threads) +
                          "\n#define JALI_BLOCKS 1\n#define JALI_STORED " + element.stored +
                          "\n#define JALI_VALUE " + element.value + "\n#define JALI_OPERATION operation_" +
                          operation_in(how) + "\n";
    if (how == nullptr) defines += "#define JALI_MOVES\n";
    if (wire == Wire::flagged) defines += "#define JALI_FLAGGED\n";
    if (checked && how != nullptr) defines += "#define JALI_CHECKED\n";
    return {std::move(defines), prelude_of({"signals", "elements", "collective"})};
}

GpuFunction collective_kernel(Gpu& gpu, Wire wire, const Reduction* how, bool checked) {
    using Key = std::tuple<const Gpu*, Wire, DataType, std::string, bool>;
    static std::mutex mutex;
    static auto& loaded = *new std::map<Key, GpuFunction>; // never destroyed, as devices are not
    const DataType type = how != nullptr ? how->type : DataType::uint32;
    const Key key{&gpu, wire, type, operation_in(how), checked && how != nullptr};
    {
        std::lock_guard lock(mutex);
        if (const auto found = loaded.find(key); found != loaded.end()) return found->second;
    }
    const std::string element(name_of(type)), operation = operation_in(how);
    GpuFunction function = load_kernel(gpu, std::string(name_of(wire)) + "_" + operation + "_" + element,
                                       collective_text(wire, how, checked), "collective")
                               .function;
    function.variant =
        std::string(name_of(wire)) + " " + element + " " + operation; // as decoded_plan.cpp reads it
    std::lock_guard lock(mutex);
    return loaded.emplace(key, std::move(function)).first->second;
}

} // namespace jali
