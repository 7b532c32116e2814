// Hears of every call that the interpreter makes in one thread, and tells Python only of those that matter.
//
// What a site function saw is known from the code that ran while it was traced (jali.codegen.observed). Most
// of that is jali's own, called tens of thousands of times: such calls end here, in nanoseconds.
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include <nanobind/nanobind.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

class CallObserver {
  public:
    CallObserver(nb::object entered, nb::object called)
        : entered_(std::move(entered)), called_(std::move(called)) {}

    // -1 with an exception set where one of the two functions raised it.
    int hear(PyFrameObject* frame, int event, PyObject* callee) {
        if (event != PyTrace_CALL && event != PyTrace_C_CALL) return 0;
        const auto code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
        if (event == PyTrace_C_CALL) {
            const auto found = watched_.find(code.ptr());
            if (found == watched_.end() || !found->second) return 0;
            return result_of(PyObject_CallFunctionObjArgs(called_.ptr(), frame, callee, nullptr)) ? 0 : -1;
        }
        const auto globals = nb::steal(PyFrame_GetGlobals(frame));
        if (!known_.insert({code.ptr(), globals.ptr()}).second) return 0;
        const auto watched =
            result_of(PyObject_CallFunctionObjArgs(entered_.ptr(), code.ptr(), globals.ptr(), nullptr));
        if (!watched) return -1;
        watched_[code.ptr()] = watched.ptr() == Py_True;
        return 0;
    }

  private:
    struct Place {
        PyObject *code, *globals;
        bool operator==(const Place&) const = default;
    };
    struct Hash {
        std::size_t operator()(const Place& p) const {
            return std::hash<void*>()(p.code) * 31 + std::hash<void*>()(p.globals);
        }
    };

    static nb::object result_of(PyObject* result) { return nb::steal(result); }

    nb::object entered_, called_;
    std::unordered_set<Place, Hash> known_; // `entered` keeps code and globals, so no address comes again
    std::unordered_map<PyObject*, bool> watched_;
};

int hear(PyObject* self, PyFrameObject* frame, int event, PyObject* callee) {
    return nb::inst_ptr<CallObserver>(self)->hear(frame, event, callee);
}

} // namespace

void bind_call_observer(nb::module_& m) {
    nb::class_<CallObserver>(m, "CallObserver", "A profiling hook; sys.setprofile(None) ends it.")
        .def(nb::init<nb::object, nb::object>(), "entered"_a, "called"_a,
             "entered(code, globals) is called when such code runs for the first time, keeps both and says "
             "whether its "
             "calls of compiled functions matter; then called(frame, function) is told of these. What they "
             "raise is raised "
             "at the call.")
        .def(
            "start", [](nb::handle self) { PyEval_SetProfile(hear, self.ptr()); },
            "In this thread, from now on.");
}
