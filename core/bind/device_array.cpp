// Exchange of device memory with other libraries: DLPack capsules in and out. Nothing is copied, and nothing
// is waited for: src/jali/comm/device_arrays.py does that.
#include "device/gpu.hpp"
#include "schedule/element.hpp"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

// Codes of dlpack.h.
enum : std::uint8_t { dl_int = 0, dl_uint = 1, dl_float = 2, dl_bfloat = 4, dl_complex = 5, dl_bool = 6 };

std::uint8_t code_of(DataType type) {
    const std::string_view name = name_of(type);
    if (name.starts_with("int")) return dl_int;
    if (name.starts_with("uint")) return dl_uint;
    if (name.starts_with("complex")) return dl_complex;
    return type == DataType::bf16 ? dl_bfloat : dl_float;
}

nb::dlpack::dtype dlpack_of(DataType type) {
    return {code_of(type), static_cast<std::uint8_t>(8 * size_of(type)), 1};
}

// The core's name, empty if it has none.
std::string name_of(nb::dlpack::dtype dtype) {
    if (dtype.code == dl_bool && dtype.bits == 8 && dtype.lanes == 1) return "uint8";
    for (int k = 0; k < data_types; ++k)
        if (dlpack_of(static_cast<DataType>(k)) == dtype)
            return std::string(name_of(static_cast<DataType>(k)));
    return "";
}

struct ForeignArray { // keeps memory borrowed from another library
    nb::ndarray<nb::ro> array;
};

} // namespace

void bind_device_array(nb::module_& m) {
    nb::class_<ForeignArray>(m, "ForeignArray",
                             "An array that came as a DLPack capsule; borrowed as long as this lives.")
        .def_prop_ro(
            "address",
            [](const ForeignArray& self) { return reinterpret_cast<std::uintptr_t>(self.array.data()); })
        .def_prop_ro(
            "element", [](const ForeignArray& self) { return name_of(self.array.dtype()); },
            "The core's name of the element type, empty if it has none.")
        .def_prop_ro("shape",
                     [](const ForeignArray& self) {
                         nb::list shape;
                         for (std::size_t k = 0; k < self.array.ndim(); ++k)
                             shape.append(self.array.shape(k));
                         return nb::tuple(shape);
                     })
        .def_prop_ro(
            "contiguous",
            [](const ForeignArray& self) {
                std::int64_t expected = 1;
                for (std::size_t k = self.array.ndim(); k-- > 0; expected *= self.array.shape(k))
                    if (self.array.shape(k) != 1 && self.array.stride(k) != expected) return false;
                return true;
            },
            "In the order of C; false as well for some arrays without elements.")
        .def_prop_ro(
            "strides",
            [](const ForeignArray& self) {
                nb::list strides;
                for (std::size_t k = 0; k < self.array.ndim(); ++k) strides.append(self.array.stride(k));
                return nb::tuple(strides);
            },
            "In elements.")
        .def_prop_ro(
            "device",
            [](const ForeignArray& self) {
                return nb::make_tuple(self.array.device_type(), self.array.device_id());
            },
            "(type, number) as DLPack counts them.");

    m.def(
        "from_dlpack",
        [](const nb::object& capsule) { return ForeignArray{nb::cast<nb::ndarray<nb::ro>>(capsule, false)}; },
        "capsule"_a, "What a DLPack capsule (dltensor or dltensor_versioned) holds; consumes the capsule.");
    m.def(
        "to_dlpack",
        [](std::uintptr_t address, const std::vector<std::size_t>& shape, const std::string& element,
           int device_type, int device, const nb::object& owner) {
            return nb::cast(nb::ndarray<>(reinterpret_cast<void*>(address), shape.size(), shape.data(), owner,
                                          nullptr, dlpack_of(data_type_of(element)), device_type, device));
        },
        "address"_a, "shape"_a, "element"_a, "device_type"_a, "device"_a, "owner"_a,
        "A DLPack capsule (dltensor) of a contiguous array, which keeps `owner` alive.");
    m.def(
        "device_of_address",
        [](const Gpu& gpu, GpuAddress address) {
            int ordinal = -1;
            constexpr int device_ordinal = 9; // the same in both drivers
            const CurrentGpu current(gpu);
            return gpu.api().pointer_attribute(&ordinal, device_ordinal, address) == gpu_success ? ordinal
                                                                                                 : -1;
        },
        "gpu"_a, "address"_a,
        "Number of the device whose memory this is; -1: memory that no device of this kind knows.");
}
