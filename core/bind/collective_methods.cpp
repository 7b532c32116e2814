// The collectives of jali.comm.Communicator as methods: callables with the signature and docstring of a
// function in Python. collective_call.cpp implements a call.
#include "bind/collective_call.hpp"
#include "bind/graph_recorder.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/typing.h>
#include <structmember.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

// The parameters of a method, by its function in Python.
struct Signature {
    Collective collective;
    std::vector<CallArguments::Parameter> order;
    std::vector<nb::object> names; // of the same
    std::size_t positional = 0;
    std::vector<nb::object> held;
    CallArguments defaults;

    explicit Signature(const nb::object& function)
        : collective(collective_of(nb::cast<std::string>(function.attr("__name__")))) {
        const nb::object code = function.attr("__code__");
        const nb::object all = code.attr("co_varnames");
        const auto count = nb::cast<std::size_t>(code.attr("co_argcount"));
        const std::size_t end = count + nb::cast<std::size_t>(code.attr("co_kwonlyargcount"));
        positional = count - 1;
        for (std::size_t k = 1; k < end; ++k) { // the first is self
            const auto name = nb::cast<std::string>(all[k]);
            const auto found = std::ranges::find(CallArguments::names, name);
            order.push_back(static_cast<CallArguments::Parameter>(found - CallArguments::names.begin()));
            names.push_back(nb::steal(PyUnicode_InternFromString(name.c_str())));
            if (found == CallArguments::names.end()) throw std::invalid_argument("no parameter " + name);
        }
        const nb::object defaults_of_last = function.attr("__defaults__"),
                         by_name = function.attr("__kwdefaults__");
        const std::size_t given = defaults_of_last.is_none() ? 0 : nb::len(defaults_of_last);
        for (std::size_t k = 0; k < given; ++k)
            set_default(order[positional - given + k], defaults_of_last[k]);
        for (std::size_t k = positional; k < order.size(); ++k) set_default(order[k], by_name[names[k]]);
    }

    // False: these are no arguments of the method.
    bool bind(std::span<PyObject* const> given, std::size_t positional_given, PyObject* words,
              CallArguments& into) const {
        if (positional_given > positional) return false;
        into = defaults;
        for (std::size_t k = 0; k < positional_given; ++k) into.values[order[k]] = given[k];
        for (std::size_t k = positional_given; k < given.size(); ++k) {
            PyObject* word = PyTuple_GET_ITEM(words, k - positional_given);
            const std::size_t which = index_of(word);
            if (which < positional_given || which == order.size()) return false;
            into.values[order[which]] = given[k];
        }
        return into.values[CallArguments::x] != nullptr;
    }

  private:
    void set_default(CallArguments::Parameter which, nb::object value) {
        defaults.values[which] = value.ptr();
        held.push_back(std::move(value));
    }
    std::size_t index_of(PyObject* word) const {
        const auto same = [&](const nb::object& name) { return name.ptr() == word; };
        auto found = std::ranges::find_if(names, same);
        if (found == names.end()) // a program's names need not be interned
            found = std::ranges::find_if(
                names, [&](const nb::object& name) { return PyUnicode_Compare(name.ptr(), word) == 0; });
        return static_cast<std::size_t>(found - names.begin());
    }
};

// A method of a class whose objects have a CollectiveCalls in their attribute `collective_calls`.
constexpr const char* method_type_name = "jali._core.CollectiveMethod";
struct CollectiveMethod {
    PyObject head;
    vectorcallfunc call;
    PyObject* described; // the function in Python
    const Signature* signature;
};

// Not valid: it has none.
nb::object calls_of(PyObject* self) {
    static PyObject* const name = PyUnicode_InternFromString("collective_calls");
    static const nb::handle type = nb::type<CollectiveCalls>();
    nb::object found = nb::steal(PyObject_GetAttr(self, name));
    if (!found.is_valid()) PyErr_Clear();
    return found.is_valid() && found.type().is(type) && nb::inst_ready(found) ? std::move(found)
                                                                              : nb::object();
}

PyObject* call_collective(PyObject* object, PyObject* const* given, std::size_t flagged, PyObject* names);

// all_reduce(self=communicator, x=...): the object goes first.
PyObject* call_with_self_named(PyObject* object, PyObject* const* given, PyObject* names) {
    std::vector<PyObject*> ordered{nullptr};
    nb::list others;
    for (Py_ssize_t k = 0; names != nullptr && k < PyTuple_GET_SIZE(names); ++k) {
        const nb::handle name = PyTuple_GET_ITEM(names, k);
        if (PyUnicode_CompareWithASCIIString(name.ptr(), "self") == 0) {
            ordered[0] = given[k];
            continue;
        }
        ordered.push_back(given[k]);
        others.append(name);
    }
    if (ordered[0] != nullptr) return call_collective(object, ordered.data(), 1, nb::tuple(others).ptr());
    return PyObject_Vectorcall(reinterpret_cast<CollectiveMethod*>(object)->described, given, 0, names);
}

// With a communicator, the first argument, and the other arguments.
using StepRole = decltype(&call_from_python);
PyObject* do_collective(const CollectiveMethod* method, StepRole role, PyObject* const* given,
                        std::size_t flagged, PyObject* names) {
    const auto positional = static_cast<std::size_t>(PyVectorcall_NARGS(flagged));
    const std::size_t words = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    try {
        CallArguments arguments;
        if (!method->signature->bind({given + 1, positional + words - 1}, positional - 1, names, arguments)) {
            // Python raises the error of the arguments.
            const nb::object none = nb::steal(PyObject_Vectorcall(method->described, given, flagged, names));
            if (none.is_valid()) throw std::logic_error("arguments that Python takes and jali does not");
            return nullptr;
        }
        const nb::object calls = calls_of(given[0]);
        const std::string name(name_of(method->signature->collective));
        if (!calls.is_valid())
            throw nb::type_error((name + " is a method of jali.comm.Communicator, not of a " +
                                  nb::type_name(nb::handle(given[0]).type()).c_str())
                                     .c_str());
        return role(*nb::inst_ptr<CollectiveCalls>(calls), given[0], method->signature->collective, arguments)
            .release()
            .ptr();
    } catch (nb::python_error& error) {
        error.restore();
        return nullptr;
    } catch (...) { // nanobind translates it to an error of Python
        const nb::object raise =
            nb::cpp_function([error = std::current_exception()] { std::rethrow_exception(error); });
        return PyObject_CallNoArgs(raise.ptr());
    }
}

PyObject* call_collective(PyObject* object, PyObject* const* given, std::size_t flagged, PyObject* names) {
    if (PyVectorcall_NARGS(flagged) == 0) return call_with_self_named(object, given, names);
    return do_collective(reinterpret_cast<CollectiveMethod*>(object), &call_from_python, given, flagged,
                         names);
}

PyObject* bind_to(PyObject* method, PyObject* self, PyObject*) {
    return self == nullptr ? Py_NewRef(method) : PyMethod_New(method, self);
}

int visit(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(reinterpret_cast<CollectiveMethod*>(object)->described);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

int release(PyObject* object) {
    Py_CLEAR(reinterpret_cast<CollectiveMethod*>(object)->described);
    return 0;
}

void drop(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    delete reinterpret_cast<CollectiveMethod*>(object)->signature;
    release(object);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* of_described(PyObject* object, void* name) {
    PyObject* described = reinterpret_cast<CollectiveMethod*>(object)->described;
    return name == nullptr ? Py_NewRef(described)
                           : PyObject_GetAttrString(described, static_cast<const char*>(name));
}

nb::object collective_method(nb::object described) {
    static PyMemberDef members[] = {
        {"__vectorcalloffset__", T_PYSSIZET, offsetof(CollectiveMethod, call), READONLY, nullptr}, {}};
    static PyGetSetDef attributes[] = {
        {"__wrapped__", of_described, nullptr, nullptr, nullptr},
        {"__doc__", of_described, nullptr, nullptr, const_cast<char*>("__doc__")},
        {"__name__", of_described, nullptr, nullptr, const_cast<char*>("__name__")},
        {"__qualname__", of_described, nullptr, nullptr, const_cast<char*>("__qualname__")},
        {"__module__", of_described, nullptr, nullptr, const_cast<char*>("__module__")},
        {}};
    static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                  {Py_tp_descr_get, reinterpret_cast<void*>(bind_to)},
                                  {Py_tp_traverse, reinterpret_cast<void*>(visit)},
                                  {Py_tp_clear, reinterpret_cast<void*>(release)},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(drop)},
                                  {Py_tp_members, members},
                                  {Py_tp_getset, attributes},
                                  {0, nullptr}};
    static PyType_Spec spec = {method_type_name, sizeof(CollectiveMethod), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC |
                                   Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
                               slots};
    static auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (type == nullptr) throw nb::python_error();
    auto signature = std::make_unique<const Signature>(described);
    PyObject* object = type->tp_alloc(type, 0);
    if (object == nullptr) throw nb::python_error();
    auto* method = reinterpret_cast<CollectiveMethod*>(object);
    method->call = call_collective;
    method->described = described.release().ptr();
    method->signature = signature.release();
    return nb::steal(object);
}

} // namespace

void bind_collective_methods(nb::module_& m) {
    nb::class_<CollectiveCalls>(m, "CollectiveCalls", "What a communicator has for its collectives.")
        .def(
            "__init__",
            [](CollectiveCalls* self, std::shared_ptr<Communicator> ranks, bool checked) {
                new (self) CollectiveCalls{std::move(ranks), checked};
            },
            "ranks"_a, "checked"_a)
        .def_rw("checked", &CollectiveCalls::checked, "Calls that do not say so are compared.")
        .def_prop_rw(
            "there", [](const CollectiveCalls& self) { return self.there; },
            [](CollectiveCalls& self, std::shared_ptr<Collectives> made) { self.there = std::move(made); },
            "The collectives; None until the first call.");
    m.def(
        "explain_collective",
        [](nb::handle communicator, nb::handle method, const nb::args& arguments, const nb::kwargs& named) {
            if (Py_TYPE(method.ptr())->tp_call != &PyVectorcall_Call ||
                std::strcmp(Py_TYPE(method.ptr())->tp_name, method_type_name) != 0)
                throw nb::type_error("what is explained is a collective");
            std::vector<PyObject*> given{communicator.ptr()};
            nb::list names;
            for (nb::handle argument : arguments) given.push_back(argument.ptr());
            const std::size_t positional = given.size();
            for (const auto& [name, value] : named) {
                names.append(name);
                given.push_back(value.ptr());
            }
            const nb::object text = nb::steal(do_collective(reinterpret_cast<CollectiveMethod*>(method.ptr()),
                                                            &explain_from_python, given.data(), positional,
                                                            nb::tuple(names).ptr()));
            if (!text.is_valid()) throw nb::python_error();
            return text;
        },
        "communicator"_a, "method"_a, "arguments"_a, "named"_a,
        "Which way a call of this collective takes, and why, in words.");
    m.def("count_recorders", &count_recorders, "change"_a,
          "So many more threads record a graph: while there are some, calls ask whether theirs does.");
    m.attr("Method") = nb::type_var("Method"); // type checkers see the decorated method as it was
    m.def("collective_method", &collective_method, "function"_a,
          nb::sig("def collective_method(function: Method) -> Method"),
          "The collective that this function is named after, with its signature and words.");
}
