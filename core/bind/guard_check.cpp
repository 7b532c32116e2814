// Guards of a traced function: whether Python objects still hold the very objects that they held, compared
// before every run.
//
// A guard is one object and its recorded contents. All are compared by identity, in tens of nanoseconds;
// Python code determines whether other objects are equivalent (jali.codegen.guards).
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

enum class Holder { names, function, list, dictionary, object, type };

struct Guard {
    Holder holder;
    nb::object of;
    nb::tuple names; // looked up in `of`, or in its dictionary
    nb::tuple seen;
};

PyObject* seen_at(const Guard& guard, Py_ssize_t k) {
    return PyTuple_GET_ITEM(guard.seen.ptr(), k);
}

Py_ssize_t length(const nb::tuple& tuple) {
    return PyTuple_GET_SIZE(tuple.ptr());
}

class GuardCheck {
  public:
    explicit GuardCheck(nb::object missing) : missing_(std::move(missing)) {}

    void add(const std::string& holder, nb::object of, nb::tuple names, nb::tuple seen) {
        static constexpr const char* words[] = {"names", "function", "list", "dictionary", "object", "type"};
        for (int k = 0; k < 6; ++k)
            if (holder == words[k]) {
                guards_.push_back({static_cast<Holder>(k), std::move(of), std::move(names), std::move(seen)});
                return;
            }
        throw nb::value_error("no such holder");
    }

    bool check() const {
        // By number and by copies: a dictionary lookup may run code of its keys, with any effect.
        for (std::size_t k = 0; k < guards_.size(); ++k) {
            const Guard guard = guards_[k];
            if (!holds(guard)) return false;
        }
        return true;
    }

    int traverse(visitproc visit, void* arg) const {
        Py_VISIT(missing_.ptr());
        for (const Guard& guard : guards_) {
            Py_VISIT(guard.of.ptr());
            Py_VISIT(guard.names.ptr());
            Py_VISIT(guard.seen.ptr());
        }
        return 0;
    }

    void clear() {
        const auto guards = std::move(guards_);
        guards_.clear();
    }

  private:
    bool holds(const Guard& guard) const {
        PyObject* of = guard.of.ptr();
        switch (guard.holder) {
        case Holder::names:
            return in_dictionary(of, guard, 0);
        case Holder::function:
            return in_function(of, guard);
        case Holder::list:
            return in_list(of, guard);
        case Holder::dictionary:
            return whole_dictionary(of, guard);
        case Holder::object: {
            if (reinterpret_cast<PyObject*>(Py_TYPE(of)) != seen_at(guard, 0)) return false;
            const nb::object dictionary = nb::steal(PyObject_GenericGetDict(of, nullptr));
            if (!dictionary.is_valid()) {
                PyErr_Clear();
                return false;
            }
            return in_dictionary(dictionary.ptr(), guard, 1);
        }
        case Holder::type:
            return in_type(reinterpret_cast<PyTypeObject*>(of), guard);
        }
        return false;
    }

    bool in_dictionary(PyObject* dictionary, const Guard& guard, Py_ssize_t first) const {
        const Py_ssize_t count = length(guard.names);
        const bool empty =
            dictionary == nullptr || PyDict_Size(dictionary) == 0; // as those of most functions are
        for (Py_ssize_t k = 0; k < count; ++k) {
            PyObject* now =
                empty ? nullptr : PyDict_GetItemWithError(dictionary, PyTuple_GET_ITEM(guard.names.ptr(), k));
            if (now == nullptr && !empty && PyErr_Occurred()) {
                PyErr_Clear();
                return false;
            }
            if ((now == nullptr ? missing_.ptr() : now) != seen_at(guard, first + k)) return false;
        }
        return true;
    }

    bool in_function(PyObject* function, const Guard& guard) const {
        const auto or_none = [](PyObject* object) { return object == nullptr ? Py_None : object; };
        if (PyFunction_GetCode(function) != seen_at(guard, 0) ||
            or_none(PyFunction_GetDefaults(function)) != seen_at(guard, 1) ||
            or_none(PyFunction_GetKwDefaults(function)) != seen_at(guard, 2))
            return false;
        PyObject* closure = PyFunction_GetClosure(function);
        const Py_ssize_t cells = closure == nullptr ? 0 : PyTuple_GET_SIZE(closure);
        for (Py_ssize_t k = 0; k < cells; ++k) {
            PyObject* now = PyCell_GET(PyTuple_GET_ITEM(closure, k));
            if ((now == nullptr ? missing_.ptr() : now) != seen_at(guard, 3 + k)) return false;
        }
        return in_dictionary(reinterpret_cast<PyFunctionObject*>(function)->func_dict, guard, 3 + cells);
    }

    static bool in_list(PyObject* list, const Guard& guard) {
        const Py_ssize_t count = PyList_GET_SIZE(list);
        if (count != length(guard.seen)) return false;
        for (Py_ssize_t k = 0; k < count; ++k)
            if (PyList_GET_ITEM(list, k) != seen_at(guard, k)) return false;
        return true;
    }

    static bool whole_dictionary(PyObject* dictionary, const Guard& guard) {
        const Py_ssize_t count = PyDict_Size(dictionary);
        if (2 * count != length(guard.seen)) return false;
        Py_ssize_t position = 0;
        PyObject *key = nullptr, *value = nullptr;
        for (Py_ssize_t k = 0; k < count && PyDict_Next(dictionary, &position, &key, &value); ++k)
            if (key != seen_at(guard, k) || value != seen_at(guard, count + k)) return false;
        return true;
    }

    bool in_type(PyTypeObject* type, const Guard& guard) const {
        const Py_ssize_t names = length(guard.names);
        if (!in_dictionary(type->tp_dict, guard, 0)) return false;
        PyObject* bases = type->tp_bases;
        const Py_ssize_t count = PyTuple_GET_SIZE(bases);
        if (names + count + 1 != length(guard.seen)) return false;
        for (Py_ssize_t k = 0; k < count; ++k)
            if (PyTuple_GET_ITEM(bases, k) != seen_at(guard, names + k)) return false;
        return reinterpret_cast<PyObject*>(Py_TYPE(type)) == seen_at(guard, names + count);
    }

    nb::object missing_;
    std::vector<Guard> guards_;
};

// Guards may be part of reference cycles: the collector has to traverse them.
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return nb::inst_ready(self) ? nb::inst_ptr<GuardCheck>(self)->traverse(visit, arg) : 0;
}

int clear(PyObject* self) {
    nb::inst_ptr<GuardCheck>(self)->clear();
    return 0;
}

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {0, nullptr}};

} // namespace

void bind_guard_check(nb::module_& m) {
    nb::class_<GuardCheck>(m, "GuardCheck", nb::type_slots(slots),
                           "Objects and what was seen in them, to be compared by identity.")
        .def(nb::init<nb::object>(), "missing"_a, "`missing` stands for what is not there.")
        .def(
            "add", &GuardCheck::add, "holder"_a, "of"_a, "names"_a, "seen"_a,
            "names: seen[k] is of[names[k]]. function: its code, defaults, keyword defaults, contents of its "
            "closure, its attributes. list: its elements. dictionary: its keys, then its values. object: its "
            "type, then its own attributes of these names. type: its attributes, its bases, its type.")
        .def("check", &GuardCheck::check, "Whether all of it is there still.");
}
