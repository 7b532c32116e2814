// Methods whose calls end in a plan on a device, and the shortest way from such a call to its launch.
//
// The first call of a kind asks the Python method, which checks everything, finds or makes the plan and
// leaves a note of it. Later calls whose arguments look the same take that plan straight away, on the
// addresses of their arrays. Arguments look the same if numbers, words and tuples are equal, arrays agree in
// device, type and shape, and the same places hold the same object. Everything else is asked of Python every
// time: arrays of the host, functions, calls that are checked, and what goes wrong. While a thread of the
// process records a graph, every call is, since it may be one that is recorded.
#include "bind/errors.hpp"
#include "bind/placed_array.hpp"
#include "collective/device_plan.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/typing.h>
#include <structmember.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

constexpr std::size_t most_arguments = 12, most_calls = 1024;

std::atomic<int> recorders = 0; // threads that record a graph

// One argument of a call under way.
struct Argument {
    nb::handle given;
    const PlacedArray* array = nullptr; // null: it is a value
    std::size_t first = 0;              // the first argument that is the same object
    nb::object lent;                    // what holds `array` where another library owns it; a list as a tuple

    nb::handle value() const { return lent.is_valid() ? nb::handle(lent) : given; }
};

// What is remembered of one.
struct Pattern {
    std::shared_ptr<const ArrayKind> kind;
    bool read_only = false;
    std::size_t first = 0;
    nb::object value;

    explicit Pattern(const Argument& a) : first(a.first) {
        if (a.array != nullptr) {
            kind = a.array->kind;
            read_only = a.array->read_only;
        } else {
            value = nb::borrow(a.value());
        }
    }

    bool fits(const Argument& a) const {
        if (first != a.first || (kind != nullptr) != (a.array != nullptr)) return false;
        if (kind != nullptr) return read_only == a.array->read_only && *kind == *a.array->kind;
        const nb::handle other = a.value();
        return value.is(other) || (value.type().is(other.type()) && value.equal(other));
    }
};

// How a buffer of the plan, or the result, is found among the arguments.
struct Source {
    enum What { argument, fresh, nothing } what;
    std::size_t number = 0;
};

// A call that was made before.
struct Known {
    PyObject* method = nullptr;
    std::vector<nb::object> names; // of the last arguments
    std::vector<Pattern> arguments;

    nb::object kept;
    DevicePlan* plan = nullptr; // the same
    std::vector<Source> buffers;
    Source result{Source::nothing};
    std::shared_ptr<const ArrayKind> fresh; // of a result that is made for the call, and its type in Python
    nb::object fresh_type;
    nb::object request; // a type that is made of device and result; invalid: the call returns the result
    nb::object gpu;
};

// What Python said last about a call that it has put on its way.
struct Note {
    nb::object plan, result, request;
    nb::tuple arrays;
};

struct Call {
    PyObject* method = nullptr;
    PyObject* names = nullptr;
    std::size_t count = 0, hash = 0;
    std::array<Argument, most_arguments> arguments;

    std::span<const Argument> given() const { return {arguments.data(), count}; }
};

void mix(std::size_t& hash, std::size_t more) {
    hash = (hash ^ more) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
}

std::size_t bits_of(const void* pointer) {
    return reinterpret_cast<std::size_t>(pointer);
}

// The calls of one communicator.
class PlannedCalls {
  public:
    explicit PlannedCalls(nb::object lend) : lend_(std::move(lend)) {}

    // False: there is something among the arguments by which no plan can be found.
    bool read(Call& call, PyObject* const* arguments, std::size_t count) const {
        mix(call.hash, bits_of(call.method));
        for (std::size_t k = 0; k < count; ++k) {
            Argument& a = call.arguments[k];
            a.given = arguments[k];
            a.first = 0;
            while (!call.arguments[a.first].given.is(a.given)) ++a.first;
            if (!read(a, call)) return false;
        }
        call.count = count;
        if (call.names != nullptr)
            for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(call.names); ++k)
                mix(call.hash, bits_of(PyTuple_GET_ITEM(call.names, k)));
        return true;
    }

    std::shared_ptr<const Known> find(const Call& call) const {
        const auto [first, last] = known_.equal_range(call.hash);
        for (auto it = first; it != last; ++it)
            if (fits(*it->second, call)) return it->second;
        return nullptr;
    }

    // Remembers a call that Python has made, as far as its note allows.
    void learn(const Call& call) {
        if (!note_) return;
        const Note note = *std::exchange(note_, std::nullopt);
        Known known;
        known.method = call.method;
        for (Py_ssize_t k = 0; call.names != nullptr && k < PyTuple_GET_SIZE(call.names); ++k)
            known.names.push_back(nb::borrow(PyTuple_GET_ITEM(call.names, k)));
        for (const Argument& a : call.given()) known.arguments.emplace_back(a);
        known.kept = note.plan;
        known.plan = nb::cast<DevicePlan*>(note.plan);
        const auto found = [&](nb::handle array) -> std::optional<Source> {
            if (array.is_none()) return Source{Source::nothing};
            const PlacedArray* place = placed_array(array);
            for (std::size_t k = 0; k < call.count; ++k) {
                const Argument& a = call.arguments[k];
                if (a.given.is(array) ||
                    (place != nullptr && place->owner.is_valid() && a.given.is(place->owner)))
                    return Source{Source::argument, k};
            }
            if (array.is(note.result) && place != nullptr && place->memory) return Source{Source::fresh};
            return std::nullopt;
        };
        for (nb::handle array : note.arrays) {
            const auto source = found(array);
            if (!source) return;
            known.buffers.push_back(*source);
            if (const PlacedArray* place = placed_array(array)) known.gpu = place->kind->gpu_object;
        }
        const auto result = found(note.result);
        if (!result || !known.gpu.is_valid()) return;
        known.result = *result;
        if (result->what == Source::fresh) {
            known.fresh = placed_array(note.result)->kind;
            known.fresh_type = nb::borrow(note.result.type());
        }
        if (!note.request.is_none()) known.request = note.request;
        if (known_.size() >= most_calls) known_.clear();
        known_.emplace(call.hash, std::make_shared<const Known>(std::move(known)));
    }

    void note(nb::object plan, nb::tuple arrays, nb::object result, nb::object request) {
        note_ = Note{std::move(plan), std::move(result), std::move(request), std::move(arrays)};
    }
    void forget_note() { note_.reset(); }
    void clear() { known_.clear(); }
    std::size_t size() const { return known_.size(); }

  private:
    bool read(Argument& a, Call& call) const {
        PyObject* object = a.given.ptr();
        PyTypeObject* type = Py_TYPE(object);
        mix(call.hash, a.first);
        if (object == Py_None || object == Py_True || object == Py_False) {
            mix(call.hash, bits_of(object));
            return true;
        }
        if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyTuple_Type)
            return read_value(a, call);
        a.array = placed_array(a.given);
        if (a.array == nullptr) {
            if (type == &PyList_Type) {
                a.lent = nb::steal(PyList_AsTuple(object));
                return read_value(a, call);
            }
            if (a.first < index_of(a, call)) {
                a.lent = call.arguments[a.first].lent;
            } else {
                // What is wrong with the array is for the method to say, in its order.
                a.lent = nb::steal(PyObject_CallOneArg(lend_.ptr(), object));
                if (!a.lent.is_valid()) PyErr_Clear();
            }
            a.array = a.lent.is_valid() ? placed_array(a.lent) : nullptr;
            if (a.array == nullptr) return false;
        }
        mix(call.hash, bits_of(a.array->kind->gpu.get()));
        mix(call.hash, a.array->kind->nbytes * data_types + static_cast<std::size_t>(a.array->kind->type));
        return true;
    }

    static std::size_t index_of(const Argument& a, const Call& call) {
        return static_cast<std::size_t>(&a - call.arguments.data());
    }

    static bool read_value(const Argument& a, Call& call) {
        const Py_hash_t hash = PyObject_Hash(a.value().ptr());
        if (hash == -1) PyErr_Clear();
        mix(call.hash, static_cast<std::size_t>(hash));
        return hash != -1;
    }

    static bool fits(const Known& known, const Call& call) {
        const std::size_t names = call.names == nullptr ? 0 : PyTuple_GET_SIZE(call.names);
        if (known.method != call.method || known.arguments.size() != call.count ||
            known.names.size() != names)
            return false;
        for (std::size_t k = 0; k < names; ++k)
            if (known.names[k].ptr() != PyTuple_GET_ITEM(call.names, k)) return false;
        for (std::size_t k = 0; k < call.count; ++k)
            if (!known.arguments[k].fits(call.arguments[k])) return false;
        return true;
    }

    nb::object lend_; // where an array of another library lies, None if it is not on a device
    std::unordered_multimap<std::size_t, std::shared_ptr<const Known>> known_;
    std::optional<Note> note_;
};

nb::object run(const Known& known, const Call& call) {
    nb::object fresh;
    GpuAddress fresh_address = 0;
    if (known.fresh) {
        PlacedArray array = PlacedArray::like(known.fresh, "collective");
        fresh_address = array.address;
        fresh = nb::inst_alloc(known.fresh_type);
        new (nb::inst_ptr<PlacedArray>(fresh)) PlacedArray(std::move(array));
        nb::inst_mark_ready(fresh);
    }
    std::array<GpuAddress, DevicePlan::most_buffers> addresses{};
    for (std::size_t k = 0; k < known.buffers.size(); ++k) {
        const Source& source = known.buffers[k];
        if (source.what == Source::argument) addresses[k] = call.arguments[source.number].array->address;
        if (source.what == Source::fresh) addresses[k] = fresh_address;
    }
    {
        nb::gil_scoped_release released; // a full stream waits, perhaps for a rank that is a thread
        known.plan->run({addresses.data(), known.buffers.size()}, known.plan->gpu()->stream());
    }
    std::array<const PlacedArray*, most_arguments> arrays{};
    for (std::size_t k = 0; k < call.count; ++k) arrays[k] = call.arguments[k].array;
    let_owners_go_on({arrays.data(), call.count});
    nb::object result = known.result.what == Source::argument
                            ? nb::borrow(call.arguments[known.result.number].given)
                        : known.result.what == Source::fresh ? fresh
                                                             : nb::none();
    return known.request.is_valid() ? known.request(known.gpu, result) : result;
}

// Whether arrays of the host are among the arguments: then there is no plan to be found, and no time to be
// lost.
bool on_host(std::span<PyObject* const> arguments) {
    static PyTypeObject* const array = reinterpret_cast<PyTypeObject*>(
        nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr());
    return std::any_of(arguments.begin(), arguments.end(), [](PyObject* a) { return Py_TYPE(a) == array; });
}

// A method of a class whose objects have a PlannedCalls in their attribute `planned_calls`.
struct PlannedMethod {
    PyObject head;
    vectorcallfunc call;
    PyObject* asked; // the method in Python
};

PlannedCalls* calls_of(PyObject* self) {
    static PyObject* const name = PyUnicode_InternFromString("planned_calls");
    static const nb::handle type = nb::type<PlannedCalls>();
    const nb::object found = nb::steal(PyObject_GetAttr(self, name));
    if (!found.is_valid()) PyErr_Clear(); // the method will say what it lacks
    return found.is_valid() && found.type().is(type) ? nb::inst_ptr<PlannedCalls>(found) : nullptr;
}

PyObject* call_planned(PyObject* object, PyObject* const* arguments, std::size_t flagged, PyObject* names) {
    auto* method = reinterpret_cast<PlannedMethod*>(object);
    const auto positional = static_cast<std::size_t>(PyVectorcall_NARGS(flagged));
    const std::size_t all = positional + (names == nullptr ? 0 : PyTuple_GET_SIZE(names));
    const auto ask = [&] { return PyObject_Vectorcall(method->asked, arguments, flagged, names); };
    try {
        if (positional == 0 || recorders.load(std::memory_order_relaxed) != 0) return ask();
        if (all - 1 > most_arguments || on_host({arguments, all})) return ask();
        PlannedCalls* calls = calls_of(arguments[0]);
        Call call;
        call.method = object;
        call.names = names;
        if (calls == nullptr || !calls->read(call, arguments + 1, all - 1)) return ask();
        if (const auto known = calls->find(call)) return run(*known, call).release().ptr();
        calls->forget_note();
        nb::object result = nb::steal(ask());
        if (result.is_valid()) calls->learn(call);
        calls->forget_note();
        return result.release().ptr();
    } catch (nb::python_error& error) {
        error.restore();
        return nullptr;
    } catch (...) { // nanobind knows which error of Python this is
        const nb::object raise =
            nb::cpp_function([error = std::current_exception()] { std::rethrow_exception(error); });
        return PyObject_CallNoArgs(raise.ptr());
    }
}

PyObject* bind_to(PyObject* method, PyObject* self, PyObject*) {
    return self == nullptr ? Py_NewRef(method) : PyMethod_New(method, self);
}

int visit(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(reinterpret_cast<PlannedMethod*>(object)->asked);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

int release(PyObject* object) {
    Py_CLEAR(reinterpret_cast<PlannedMethod*>(object)->asked);
    return 0;
}

void drop(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    release(object);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* of_asked(PyObject* object, void* name) {
    PyObject* asked = reinterpret_cast<PlannedMethod*>(object)->asked;
    return name == nullptr ? Py_NewRef(asked) : PyObject_GetAttrString(asked, static_cast<const char*>(name));
}

nb::object planned(nb::object asked) {
    static PyMemberDef members[] = {
        {"__vectorcalloffset__", T_PYSSIZET, offsetof(PlannedMethod, call), READONLY, nullptr}, {}};
    static PyGetSetDef attributes[] = {
        {"__wrapped__", of_asked, nullptr, nullptr, nullptr},
        {"__doc__", of_asked, nullptr, nullptr, const_cast<char*>("__doc__")},
        {"__name__", of_asked, nullptr, nullptr, const_cast<char*>("__name__")},
        {"__qualname__", of_asked, nullptr, nullptr, const_cast<char*>("__qualname__")},
        {"__module__", of_asked, nullptr, nullptr, const_cast<char*>("__module__")},
        {}};
    static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                  {Py_tp_descr_get, reinterpret_cast<void*>(bind_to)},
                                  {Py_tp_traverse, reinterpret_cast<void*>(visit)},
                                  {Py_tp_clear, reinterpret_cast<void*>(release)},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(drop)},
                                  {Py_tp_members, members},
                                  {Py_tp_getset, attributes},
                                  {0, nullptr}};
    static PyType_Spec spec = {"jali._core.PlannedMethod", sizeof(PlannedMethod), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                                   Py_TPFLAGS_METHOD_DESCRIPTOR,
                               slots};
    static auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (type == nullptr) throw nb::python_error();
    PyObject* object = type->tp_alloc(type, 0);
    if (object == nullptr) throw nb::python_error();
    auto* method = reinterpret_cast<PlannedMethod*>(object);
    method->call = call_planned;
    method->asked = asked.release().ptr();
    return nb::steal(object);
}

} // namespace

void bind_planned_calls(nb::module_& m) {
    nb::class_<PlannedCalls>(m, "PlannedCalls",
                             "Calls whose plan is known by what their arguments look like.")
        .def(nb::init<nb::object>(), "lend"_a,
             "`lend(x)`: the PlacedArray of another library's array; None if it is not on a device.")
        .def("note", &PlannedCalls::note, "plan"_a, "arrays"_a, "result"_a.none(), "request"_a.none(),
             "The call under way has run this plan on these arrays, and another like it may do the same. "
             "`request(gpu, result)`, unless it is None, is what it returns.")
        .def("clear", &PlannedCalls::clear, "The next call of each kind asks Python again.")
        .def("__len__", &PlannedCalls::size);
    m.def(
        "count_recorders", [](int change) { recorders += change; }, "change"_a,
        "So many more threads record a graph: while there are some, planned methods are asked every time.");
    m.attr("Method") = nb::type_var("Method"); // type checkers see the decorated method as it was
    m.def("planned", &planned, "method"_a, nb::sig("def planned(method: Method) -> Method"),
          "A method that takes plans from the `planned_calls` of its object, and is asked where there are "
          "none.");
}
