#include "bind/gpu_array.hpp"
#include "bind/errors.hpp"
#include "composition/standard_collectives.hpp"

#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace jali {

ArrayKind::ArrayKind(nb::object on, nb::tuple extents, const std::string& name)
    : gpu_object(std::move(on)), gpu(nb::cast<std::shared_ptr<Gpu>>(gpu_object)), shape(std::move(extents)),
      type(data_type_of(name)), element(nb::steal(PyUnicode_InternFromString(name.c_str()))) {
    for (std::size_t k = 0; k < shape.size(); ++k) {
        const auto extent = nb::cast<std::size_t>(shape[k]);
        size *= extent;
        (k == 0 ? rows : row) *= static_cast<std::int64_t>(extent);
    }
    nbytes = size * size_of(type);
}

bool ArrayKind::operator==(const ArrayKind& other) const {
    if (this == &other) return true;
    if (gpu != other.gpu || type != other.type || nbytes != other.nbytes) return false;
    return shape.is(other.shape) || shape.equal(other.shape);
}

GpuArray GpuArray::like(const std::shared_ptr<const ArrayKind>& kind, const char* label) {
    const auto memory = [&] {
        nb::gil_scoped_release released; // where there is no more, the device is waited for
        return std::make_shared<GpuMemory>(kind->gpu->allocate(kind->nbytes, label));
    }();
    const GpuAddress address = memory->address();
    return {kind, address, memory, reinterpret_cast<std::uintptr_t>(kind->gpu->stream())};
}

void let_owners_go_on(std::span<const GpuArray* const> arrays) {
    const GpuArray* last = nullptr; // arrays of one call are mostly on one stream
    for (const GpuArray* array : arrays) {
        if (array == nullptr || !array->owner.is_valid()) continue;
        Gpu& gpu = *array->kind->gpu;
        void* stream = reinterpret_cast<void*>(array->owner_stream);
        if (stream == gpu.stream()) continue;
        if (last == nullptr || last->owner_stream != array->owner_stream ||
            last->kind->gpu != array->kind->gpu) {
            nb::gil_scoped_release released; // a full stream waits, perhaps for a rank that is a thread
            gpu.let_wait(stream);
        }
        last = array;
    }
}

std::optional<void*> stream_of(nb::handle given) {
    if (given.is_none()) return std::nullopt;
    const nb::object handle =
        PyLong_CheckExact(given.ptr())
            ? nb::borrow(given)
            : nb::module_::import_("jali.comm.device_arrays").attr("stream_handle")(given);
    std::uintptr_t number = 0;
    if (!nb::try_cast(handle, number))
        throw CollectiveError("stream " + std::string(nb::repr(handle).c_str()) +
                              " is no handle of a stream");
    return reinterpret_cast<void*>(number);
}

const GpuArray* gpu_array_of(nb::handle object) {
    static PyTypeObject* const base = reinterpret_cast<PyTypeObject*>(nb::type<GpuArray>().ptr());
    if (!PyType_IsSubtype(Py_TYPE(object.ptr()), base) || !nb::inst_ready(object)) return nullptr;
    return nb::inst_ptr<GpuArray>(object);
}

} // namespace jali

using namespace jali;

void bind_gpu_array(nb::module_& m) {
    nb::class_<GpuArray>(m, "GpuArray", "A C-contiguous array somewhere on a device.")
        .def(
            "__init__",
            [](GpuArray* self, nb::object gpu, std::shared_ptr<GpuMemory> memory, nb::tuple shape,
               const std::string& element) {
                auto kind = std::make_shared<ArrayKind>(std::move(gpu), std::move(shape), element);
                if (kind->nbytes > memory->size()) {
                    const std::string text = "an array of shape " +
                                             std::string(nb::repr(kind->shape).c_str()) + " and type " +
                                             element + " needs " + std::to_string(kind->nbytes) +
                                             " bytes, not " + std::to_string(memory->size());
                    raise_python("jali.errors", "ParameterError", text.c_str());
                    throw nb::python_error();
                }
                const GpuAddress address = memory->address();
                const auto stream = reinterpret_cast<std::uintptr_t>(kind->gpu->stream());
                new (self) GpuArray{std::move(kind), address, std::move(memory), stream};
            },
            "gpu"_a, "memory"_a, "shape"_a, "element"_a, "The beginning of a block of jali's memory.")
        .def(
            "__init__",
            [](GpuArray* self, nb::object gpu, GpuAddress address, nb::tuple shape,
               const std::string& element, std::uintptr_t owner_stream, bool read_only, nb::object owner) {
                auto kind = std::make_shared<ArrayKind>(std::move(gpu), std::move(shape), element);
                new (self)
                    GpuArray{std::move(kind), address, nullptr, owner_stream, read_only, std::move(owner)};
            },
            "gpu"_a, "address"_a, "shape"_a, "element"_a, "owner_stream"_a, "read_only"_a, "owner"_a.none(),
            "Where the array `owner` of another library lies, which goes on to use it on that stream. None: "
            "whoever makes this keeps that array.")
        .def_prop_ro(
            "gpu", [](const GpuArray& self) { return self.kind->gpu_object; },
            nb::for_getter(nb::sig("def gpu(self) -> Gpu")))
        .def_prop_ro("address", [](const GpuArray& self) { return self.address; })
        .def_prop_ro("memory", [](const GpuArray& self) { return self.memory; })
        .def_prop_ro("shape", [](const GpuArray& self) { return self.kind->shape; })
        .def_prop_ro(
            "element", [](const GpuArray& self) { return self.kind->element; },
            nb::for_getter(nb::sig("def element(self) -> str")))
        .def_prop_ro("size", [](const GpuArray& self) { return self.kind->size; })
        .def_prop_ro("nbytes", [](const GpuArray& self) { return self.kind->nbytes; })
        .def_prop_ro("ndim", [](const GpuArray& self) { return self.kind->shape.size(); })
        .def_prop_ro(
            "owner",
            [](const GpuArray& self) { return self.owner.is_valid() ? self.owner : nb::object(nb::none()); })
        .def_ro("read_only", &GpuArray::read_only)
        .def_ro("owner_stream", &GpuArray::owner_stream, "Handle of the stream on which the owner goes on.");
    m.def(
        "let_owners_go_on",
        [](nb::handle arrays) {
            std::vector<const GpuArray*> all;
            for (nb::handle array : arrays) all.push_back(gpu_array_of(array));
            let_owners_go_on(all);
        },
        "arrays"_a,
        "Whoever owns these arrays goes on with them when jali's work so far is done; what is none is "
        "ignored.");
}
