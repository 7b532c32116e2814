#include "bind/host_arrays.hpp"
#include "bind/errors.hpp"

#include <string>

namespace nb = nanobind;

namespace jali {

namespace {

[[noreturn]] void refuse(const std::string& text) {
    raise_python("jali.errors", "ParameterError", text.c_str());
    throw nb::python_error();
}

} // namespace

bool HostArray::read(nb::handle object) {
    if (PyObject_CheckBuffer(object.ptr())) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_STRIDES) != 0) {
            view_.obj = nullptr;
            PyErr_Clear();
            return false;
        }
        data_ = static_cast<std::byte*>(view_.buf);
        bytes_ = static_cast<std::size_t>(view_.len);
        shape_ = {view_.shape, static_cast<std::size_t>(view_.ndim)};
        contiguous_ = PyBuffer_IsContiguous(&view_, 'C') != 0;
        read_only_ = view_.readonly != 0;
        return is_read_ = true;
    }
    nb::ndarray<nb::c_contig, nb::device::cpu> writable;
    if (!nb::try_cast(object, borrowed_, false)) return false;
    read_only_ = !nb::try_cast(object, writable, false);
    data_ = static_cast<std::byte*>(const_cast<void*>(borrowed_.data()));
    bytes_ = borrowed_.nbytes();
    contiguous_ = true;
    return is_read_ = true;
}

HostArrays::HostArrays(std::size_t count)
    : more_(count > few_.size() ? count : 0), more_addresses_(more_.size()),
      addresses_(more_.empty() ? few_addresses_.data() : more_addresses_.data(), count) {
}

std::span<std::byte* const> HostArrays::fit(const PersistentPlan& plan, std::span<const nb::handle> objects) {
    const auto& buffers = plan.schedule().buffers();
    const auto count = static_cast<std::size_t>(plan.user_buffers());
    if (objects.size() != count)
        refuse(plan.what() + " takes " + std::to_string(count) + " arrays, " +
               std::to_string(objects.size()) + " were given");
    for (std::size_t k = 0; k < count; ++k) {
        const Buffer& buffer = buffers[k];
        if (buffer.bytes == 0) continue;
        const HostArray& array = (*this)[k];
        const bool written = plan.writes(static_cast<int>(k));
        if (!array.is_read() || !array.is_contiguous() || (written && array.is_read_only()))
            refuse(plan.what() + ": the " + nb::type_name(objects[k].type()).c_str() + " given for buffer '" +
                   buffer.name + "' is no " + (written ? "writable" : "readable") +
                   " C-contiguous array in host memory; pass numpy.ascontiguousarray of it" +
                   (written ? ", or one you may write" : ""));
        if (array.bytes() != buffer.bytes)
            refuse(plan.what() + ": buffer '" + buffer.name + "' has " + std::to_string(buffer.bytes) +
                   " bytes on this rank, the array given for it has " + std::to_string(array.bytes()));
        addresses_[k] = array.data();
    }
    for (std::size_t a = 0; a < count; ++a) {
        for (std::size_t b = 0; b < count; ++b) {
            const bool written = plan.writes(static_cast<int>(a));
            if (a == b || !written || (plan.writes(static_cast<int>(b)) && b < a)) continue;
            if (addresses_[a] == nullptr || addresses_[b] == nullptr) continue;
            if (addresses_[a] + buffers[a].bytes <= addresses_[b] ||
                addresses_[b] + buffers[b].bytes <= addresses_[a])
                continue;
            refuse(plan.what() + ": the arrays of buffers '" + buffers[a].name + "' and '" + buffers[b].name +
                   "' overlap, and '" + buffers[a].name +
                   "' is written; give them memory of their own, or plan it in place");
        }
    }
    return addresses_.first(count);
}

std::shared_ptr<HostArrays> held_until_the_end(std::size_t count) {
    return {new HostArrays(count), [](HostArrays* arrays) {
                nb::gil_scoped_acquire acquired;
                delete arrays;
            }};
}

void run_on_host(PersistentPlan& plan, std::span<std::byte* const> buffers) {
    // Short messages often complete at once.
    if (plan.brief() && plan.can_start_at_once()) {
        plan.start(buffers);
        if (plan.test()) return;
        nb::gil_scoped_release released;
        plan.wait();
        return;
    }
    nb::gil_scoped_release released;
    plan.run(buffers);
}

} // namespace jali
