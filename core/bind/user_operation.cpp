#include "bind/user_operation.hpp"
#include "composition/composition.hpp"

#include <string>
#include <utility>

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace jali {

namespace {

const char* dtype_of(DataType type) {
    switch (type) {
    case DataType::fp16:
        return "float16";
    case DataType::fp32:
        return "float32";
    case DataType::fp64:
        return "float64";
    default:
        return name_of(type).data(); // NumPy's name too; a literal, so it ends with zero
    }
}

// NumPy has no bf16: ml_dtypes has, if it is there; else the function sees the 16 bits of each element.
nb::object numpy_dtype(DataType type) {
    const nb::module_ numpy = nb::module_::import_("numpy");
    if (type != DataType::bf16) return numpy.attr("dtype")(dtype_of(type));
    try {
        return numpy.attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_ImportError)) throw;
        return numpy.attr("dtype")("uint16");
    }
}

// f(a, b) of two arrays: its return value is the result; None means that b was updated in place.
class PythonOperation : public UserOperation {
  public:
    PythonOperation(nb::callable function, DataType type)
        : function_(std::move(function)), dtype_(numpy_dtype(type)), element_(size_of(type)) {
        const nb::object name = nb::getattr(function_, "__name__", nb::str("a function"));
        name_ = nb::cast<std::string>(nb::str(name));
    }
    ~PythonOperation() override {
        nb::gil_scoped_acquire acquired;
        function_.reset();
        dtype_.reset();
    }

    void combine(const void* in, void* inout, std::size_t count) const override {
        nb::gil_scoped_acquire acquired;
        const std::size_t bytes = count * element_;
        using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
        using ReadOnly = nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>;
        const nb::object a = nb::cast(ReadOnly(in, {bytes}), nb::rv_policy::reference).attr("view")(dtype_);
        const nb::object b = nb::cast(Bytes(inout, {bytes}), nb::rv_policy::reference).attr("view")(dtype_);
        const nb::object result = function_(a, b);
        if (!result.is_none() && !result.is(b)) b[nb::slice(nb::none(), nb::none(), nb::none())] = result;
    }
    std::string name() const override { return name_; }

    bool is_same(const UserOperation& other) const override {
        const auto* theirs = dynamic_cast<const PythonOperation*>(&other);
        if (theirs == nullptr) return false;
        nb::gil_scoped_acquire acquired;
        return function_.equal(theirs->function_) && dtype_.equal(theirs->dtype_);
    }

  private:
    nb::callable function_;
    nb::object dtype_;
    std::size_t element_;
    std::string name_;
};

} // namespace

std::shared_ptr<const UserOperation> user_operation(const nb::object& function, DataType type) {
    if (function.is_none()) return nullptr;
    if (!nb::isinstance<nb::callable>(function))
        throw PlanError("a user operation is a function of two arrays");
    return std::make_shared<PythonOperation>(nb::cast<nb::callable>(function), type);
}

} // namespace jali
