// Whether Python objects still hold the very objects that they held: what a traced function saw, compared
// before every run.
//
// A row is one object and what was seen in it. Everything is compared by identity, in tens of nanoseconds;
// whether other objects mean the same is for Python to find out (jali.codegen.captured).
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

enum class Holder { names, function, list, dictionary, object, type };

struct Row {
    Holder holder;
    nb::object of;
    nb::tuple names; // looked up in `of`, or in its dictionary
    nb::tuple seen;
};

PyObject* seen_at(const Row& row, Py_ssize_t k) {
    return PyTuple_GET_ITEM(row.seen.ptr(), k);
}

Py_ssize_t length(const nb::tuple& tuple) {
    return PyTuple_GET_SIZE(tuple.ptr());
}

class Unchanged {
  public:
    explicit Unchanged(nb::object missing) : missing_(std::move(missing)) {}

    void add(const std::string& holder, nb::object of, nb::tuple names, nb::tuple seen) {
        static constexpr const char* words[] = {"names", "function", "list", "dictionary", "object", "type"};
        for (int k = 0; k < 6; ++k)
            if (holder == words[k]) {
                rows_.push_back({static_cast<Holder>(k), std::move(of), std::move(names), std::move(seen)});
                return;
            }
        throw nb::value_error("no such holder");
    }

    bool check() const {
        // By number and by copies: looking into a dictionary may run code of its keys, which may do anything.
        for (std::size_t k = 0; k < rows_.size(); ++k) {
            const Row row = rows_[k];
            if (!holds(row)) return false;
        }
        return true;
    }

    int traverse(visitproc visit, void* arg) const {
        Py_VISIT(missing_.ptr());
        for (const Row& row : rows_) {
            Py_VISIT(row.of.ptr());
            Py_VISIT(row.names.ptr());
            Py_VISIT(row.seen.ptr());
        }
        return 0;
    }

    void clear() {
        const auto rows = std::move(rows_);
        rows_.clear();
    }

  private:
    bool holds(const Row& row) const {
        PyObject* of = row.of.ptr();
        switch (row.holder) {
        case Holder::names:
            return in_dictionary(of, row, 0);
        case Holder::function:
            return in_function(of, row);
        case Holder::list:
            return in_list(of, row);
        case Holder::dictionary:
            return whole_dictionary(of, row);
        case Holder::object: {
            if (reinterpret_cast<PyObject*>(Py_TYPE(of)) != seen_at(row, 0)) return false;
            const nb::object dictionary = nb::steal(PyObject_GenericGetDict(of, nullptr));
            if (!dictionary.is_valid()) {
                PyErr_Clear();
                return false;
            }
            return in_dictionary(dictionary.ptr(), row, 1);
        }
        case Holder::type:
            return in_type(reinterpret_cast<PyTypeObject*>(of), row);
        }
        return false;
    }

    bool in_dictionary(PyObject* dictionary, const Row& row, Py_ssize_t first) const {
        const Py_ssize_t count = length(row.names);
        const bool empty =
            dictionary == nullptr || PyDict_Size(dictionary) == 0; // as those of most functions are
        for (Py_ssize_t k = 0; k < count; ++k) {
            PyObject* now =
                empty ? nullptr : PyDict_GetItemWithError(dictionary, PyTuple_GET_ITEM(row.names.ptr(), k));
            if (now == nullptr && !empty && PyErr_Occurred()) {
                PyErr_Clear();
                return false;
            }
            if ((now == nullptr ? missing_.ptr() : now) != seen_at(row, first + k)) return false;
        }
        return true;
    }

    bool in_function(PyObject* function, const Row& row) const {
        const auto or_none = [](PyObject* object) { return object == nullptr ? Py_None : object; };
        if (PyFunction_GetCode(function) != seen_at(row, 0) ||
            or_none(PyFunction_GetDefaults(function)) != seen_at(row, 1) ||
            or_none(PyFunction_GetKwDefaults(function)) != seen_at(row, 2))
            return false;
        PyObject* closure = PyFunction_GetClosure(function);
        const Py_ssize_t cells = closure == nullptr ? 0 : PyTuple_GET_SIZE(closure);
        for (Py_ssize_t k = 0; k < cells; ++k) {
            PyObject* now = PyCell_GET(PyTuple_GET_ITEM(closure, k));
            if ((now == nullptr ? missing_.ptr() : now) != seen_at(row, 3 + k)) return false;
        }
        return in_dictionary(reinterpret_cast<PyFunctionObject*>(function)->func_dict, row, 3 + cells);
    }

    static bool in_list(PyObject* list, const Row& row) {
        const Py_ssize_t count = PyList_GET_SIZE(list);
        if (count != length(row.seen)) return false;
        for (Py_ssize_t k = 0; k < count; ++k)
            if (PyList_GET_ITEM(list, k) != seen_at(row, k)) return false;
        return true;
    }

    static bool whole_dictionary(PyObject* dictionary, const Row& row) {
        const Py_ssize_t count = PyDict_Size(dictionary);
        if (2 * count != length(row.seen)) return false;
        Py_ssize_t position = 0;
        PyObject *key = nullptr, *value = nullptr;
        for (Py_ssize_t k = 0; k < count && PyDict_Next(dictionary, &position, &key, &value); ++k)
            if (key != seen_at(row, k) || value != seen_at(row, count + k)) return false;
        return true;
    }

    bool in_type(PyTypeObject* type, const Row& row) const {
        const Py_ssize_t names = length(row.names);
        if (!in_dictionary(type->tp_dict, row, 0)) return false;
        PyObject* bases = type->tp_bases;
        const Py_ssize_t count = PyTuple_GET_SIZE(bases);
        if (names + count + 1 != length(row.seen)) return false;
        for (Py_ssize_t k = 0; k < count; ++k)
            if (PyTuple_GET_ITEM(bases, k) != seen_at(row, names + k)) return false;
        return reinterpret_cast<PyObject*>(Py_TYPE(type)) == seen_at(row, names + count);
    }

    nb::object missing_;
    std::vector<Row> rows_;
};

// Objects hold what they were seen in, which may hold them: the collector has to see through.
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return nb::inst_ready(self) ? nb::inst_ptr<Unchanged>(self)->traverse(visit, arg) : 0;
}

int clear(PyObject* self) {
    nb::inst_ptr<Unchanged>(self)->clear();
    return 0;
}

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {0, nullptr}};

} // namespace

void bind_unchanged(nb::module_& m) {
    nb::class_<Unchanged>(m, "Unchanged", nb::type_slots(slots),
                          "Objects and what was seen in them, to be compared by identity.")
        .def(nb::init<nb::object>(), "missing"_a, "`missing` stands for what is not there.")
        .def(
            "add", &Unchanged::add, "holder"_a, "of"_a, "names"_a, "seen"_a,
            "names: seen[k] is of[names[k]]. function: its code, defaults, keyword defaults, contents of its "
            "closure, its attributes. list: its elements. dictionary: its keys, then its values. object: its "
            "type, then its own attributes of these names. type: its attributes, its bases, its type.")
        .def("check", &Unchanged::check, "Whether all of it is there still.");
}
