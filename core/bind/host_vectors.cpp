// Linear combinations and inner products of NumPy's arrays (vectors/host_vectors.hpp): arrays of a type or
// form that the core does not take are left to NumPy, by returning None.
#include "vectors/host_vectors.hpp"

#include <complex>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

// The memory of a contiguous array of real or complex numbers, held until the destructor.
class HostVector {
  public:
    HostVector(nb::handle array, bool writable) {
        const int flags = PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(array.ptr(), &view_, flags) != 0) {
            view_.obj = nullptr;
            PyErr_Clear();
            return;
        }
        type_ = type_of(view_.format);
        if (type_) count_ = static_cast<std::size_t>(view_.len) / size_of(*type_);
    }
    HostVector(HostVector&& other) noexcept : view_(other.view_), type_(other.type_), count_(other.count_) {
        other.view_.obj = nullptr;
    }
    ~HostVector() {
        if (view_.obj != nullptr) PyBuffer_Release(&view_);
    }
    HostVector& operator=(HostVector&&) = delete;

    std::optional<VectorType> type() const { return type_; }
    std::size_t count() const { return count_; }
    void* data() const { return view_.buf; }
    // Element k of one belongs to element k of the other.
    bool is_like(const HostVector& other) const {
        if (!type_ || type_ != other.type_ || view_.ndim != other.view_.ndim) return false;
        if (view_.ndim == 1) return view_.shape[0] == other.view_.shape[0];
        for (int k = 0; k < view_.ndim; ++k)
            if (view_.shape[k] != other.view_.shape[k] || view_.strides[k] != other.view_.strides[k])
                return false;
        return true;
    }
    bool overlaps(const HostVector& other) const {
        const auto *begin = static_cast<const std::byte*>(data()),
                   *theirs = static_cast<const std::byte*>(other.data());
        return begin != theirs && begin < theirs + other.view_.len && theirs < begin + view_.len;
    }

  private:
    static std::optional<VectorType> type_of(const char* format) {
        const std::string_view name = format == nullptr ? "" : format;
        if (name == "f") return VectorType::fp32;
        if (name == "d") return VectorType::fp64;
        if (name == "Zf") return VectorType::complex64;
        if (name == "Zd") return VectorType::complex128;
        return std::nullopt;
    }

    Py_buffer view_{};
    std::optional<VectorType> type_;
    std::size_t count_ = 0;
};

constexpr std::size_t brief = 1 << 14; // elements: less work than releasing the interpreter's lock

template <class Work>
auto without_interpreter(std::size_t count, const Work& work) {
    if (count < brief) return work();
    nb::gil_scoped_release released;
    return work();
}

// Numbers of Python and of NumPy; nothing else is a factor.
std::optional<std::complex<double>> number_of(nb::handle given) {
    if (PyFloat_Check(given.ptr())) return PyFloat_AS_DOUBLE(given.ptr());
    const Py_complex number = PyComplex_AsCComplex(given.ptr());
    if (PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        return std::nullopt;
    }
    return std::complex<double>(number.real, number.imag);
}

bool takes(VectorType type, std::complex<double> factor) {
    return factor.imag() == 0 || type == VectorType::complex64 || type == VectorType::complex128;
}

// The assignments of Python's tuples, with the owners of the memory.
class Assignments {
  public:
    // False: not for the core.
    bool read(nb::handle given) {
        const nb::object all = nb::steal(PySequence_Fast(given.ptr(), "assignments are a sequence"));
        if (!all.is_valid()) throw nb::python_error();
        const Py_ssize_t size = PySequence_Fast_GET_SIZE(all.ptr());
        std::vector<std::size_t> counts;
        for (Py_ssize_t k = 0; k < size; ++k) {
            const nb::handle one = PySequence_Fast_GET_ITEM(all.ptr(), k);
            if (!PyTuple_CheckExact(one.ptr()) || PyTuple_GET_SIZE(one.ptr()) != 3) return false;
            const nb::object terms =
                nb::steal(PySequence_Fast(PyTuple_GET_ITEM(one.ptr(), 2), "terms are a sequence"));
            if (!terms.is_valid()) throw nb::python_error();
            const auto own = number_of(PyTuple_GET_ITEM(one.ptr(), 1));
            if (!own || !hold(PyTuple_GET_ITEM(one.ptr(), 0), true) || !takes(*held_[0].type(), *own))
                return false;
            assignments_.push_back({held_.back().data(), *own, {}});
            counts.push_back(PySequence_Fast_GET_SIZE(terms.ptr()));
            for (std::size_t j = 0; j < counts.back(); ++j) {
                const nb::handle term = PySequence_Fast_GET_ITEM(terms.ptr(), j);
                if (!PyTuple_CheckExact(term.ptr()) || PyTuple_GET_SIZE(term.ptr()) != 2) return false;
                const auto factor = number_of(PyTuple_GET_ITEM(term.ptr(), 0));
                if (!factor || !takes(*held_[0].type(), *factor)) return false;
                if (!hold(PyTuple_GET_ITEM(term.ptr(), 1), false)) return false;
                if (held_.back().data() == assignments_.back().y && held_[0].count() > 0) return false;
                terms_.push_back({*factor, held_.back().data()});
            }
        }
        std::size_t begin = 0;
        for (std::size_t k = 0; k < counts.size(); begin += counts[k++])
            assignments_[k].terms = std::span(terms_).subspan(begin, counts[k]);
        return !held_.empty();
    }
    double run(bool norm) const {
        const std::size_t count = held_[0].count();
        return without_interpreter(
            count, [&] { return assign_vectors(*held_[0].type(), count, assignments_, norm); });
    }

  private:
    // False unless it is like the others, and the same memory as each or none in common.
    bool hold(nb::handle array, bool writable) {
        held_.emplace_back(array, writable);
        const HostVector& one = held_.back();
        for (const HostVector& other : held_)
            if (!other.is_like(one) || other.overlaps(one)) return false;
        return true;
    }

    std::vector<HostVector> held_;
    std::vector<VectorTerm> terms_;
    std::vector<VectorAssignment> assignments_;
};

nb::object assign_host_vectors(nb::handle given, bool norm) {
    Assignments assignments;
    if (!assignments.read(given)) return nb::none();
    return nb::float_(assignments.run(norm));
}

// Whether it was done: see the docstring below.
bool combine_host_vectors(nb::handle y, const std::vector<nb::handle>& xs,
                          const std::vector<std::pair<double, double>>& weights, double divisor,
                          double factor) {
    if (xs.size() != weights.size())
        throw std::invalid_argument("a combination has a weight for each vector");
    const HostVector out(y, true);
    std::vector<HostVector> held;
    std::vector<WeightedVector> terms;
    for (std::size_t k = 0; k < xs.size(); ++k) {
        const HostVector& x = held.emplace_back(xs[k], false);
        if (!out.is_like(x) || (out.count() > 0 && (x.data() == out.data() || x.overlaps(out)))) return false;
        terms.push_back({weights[k].first, weights[k].second, x.data()});
    }
    if (!out.type()) return false;
    without_interpreter(
        out.count(), [&] { combine_vectors(*out.type(), out.count(), out.data(), terms, divisor, factor); });
    return true;
}

nb::object inner_of_host_vectors(nb::handle x, nb::handle y) {
    const HostVector left(x, false), right(y, false);
    if (!left.is_like(right)) return nb::none();
    const std::complex<double> found = without_interpreter(
        left.count(), [&] { return inner_product(*left.type(), left.count(), left.data(), right.data()); });
    if (takes(*left.type(), {0, 1})) return nb::steal(PyComplex_FromDoubles(found.real(), found.imag()));
    return nb::float_(found.real());
}

} // namespace

void bind_host_vectors(nb::module_& m) {
    m.def(
        "assign_host_vectors", &assign_host_vectors, "assignments"_a, "norm"_a = false,
        nb::sig("def assign_host_vectors(assignments: Sequence[tuple[Any, Any, Sequence[tuple[Any, Any]]]], "
                "norm: "
                "bool = False) -> float | None"),
        "Assignments (y, c, [(a, x), ...]) one after the other, y = c y + a x + ..., in one pass over the "
        "memory of NumPy's arrays; the sum of |y|^2 of the last with `norm`, else 0. None, and nothing done, "
        "unless they are contiguous arrays of one floating type and shape, each the same memory as another "
        "or apart from it, and no y among its own terms.");
    m.def(
        "combine_host_vectors", &combine_host_vectors, "y"_a, "xs"_a, "weights"_a, "divisor"_a, "factor"_a,
        nb::sig("def combine_host_vectors(y: Any, xs: Sequence[Any], weights: Sequence[tuple[float, float]], "
                "divisor: float, factor: float) -> bool"),
        "y = (times x / over + ...) / divisor * factor, with a weight (times, over) for each x, added from "
        "left to "
        "right in one pass over memory, with NumPy's roundings. False, and nothing done, unless they are "
        "contiguous arrays of one floating type and shape, y apart from each x.");
    m.def(
        "inner_of_host_vectors", &inner_of_host_vectors, "x"_a, "y"_a,
        nb::sig("def inner_of_host_vectors(x: Any, y: Any) -> float | complex | None"),
        "The sum of conj(x) y in double precision, of contiguous arrays of one floating type and shape; None "
        "of others.");
}
