// Observes every call that the interpreter makes in one thread, and reports only the relevant ones to Python.
//
// The inputs of a site function follow from the code that ran while it was traced
// (jali.codegen.executed_code). Most of this code is jali's own, called tens of thousands of times: such
// calls end here, in nanoseconds.
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
        if (aside_.is_valid()) {
            if (event == PyTrace_RETURN && aside_.ptr() == reinterpret_cast<PyObject*>(frame)) aside_.reset();
            return 0;
        }
        if (event != PyTrace_CALL && event != PyTrace_C_CALL) return 0;
        const auto code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
        if (event == PyTrace_C_CALL) {
            if (!reported_.contains(code.ptr())) return 0;
            return result_of(PyObject_CallFunctionObjArgs(called_.ptr(), frame, callee, nullptr)) ? 0 : -1;
        }
        const auto globals = nb::steal(PyFrame_GetGlobals(frame));
        const auto [known, first] = known_.try_emplace({code.ptr(), globals.ptr()}, What::ignore);
        if (first || known->second == What::again) {
            const auto answer = result_of(PyObject_CallFunctionObjArgs(entered_.ptr(), frame, nullptr));
            if (!answer) return -1;
            known->second = meaning(answer);
            if (known->second == What::report) reported_.insert(code.ptr());
        }
        if (known->second == What::aside) aside_ = nb::borrow(reinterpret_cast<PyObject*>(frame));
        return 0;
    }

  private:
    enum class What { ignore, again, aside, report };

    static What meaning(const nb::object& word) {
        static constexpr const char* words[] = {"ignore", "again", "aside"};
        for (int k = 0; k < 3; ++k)
            if (PyUnicode_Check(word.ptr()) && PyUnicode_CompareWithASCIIString(word.ptr(), words[k]) == 0)
                return static_cast<What>(k);
        return What::report;
    }

    struct CodeKey {
        PyObject *code, *globals;
        bool operator==(const CodeKey&) const = default;
    };
    struct Hash {
        std::size_t operator()(const CodeKey& p) const {
            return std::hash<void*>()(p.code) * 31 + std::hash<void*>()(p.globals);
        }
    };

    static nb::object result_of(PyObject* result) { return nb::steal(result); }

    nb::object entered_, called_;
    nb::object aside_; // a frame; until it returns no call is reported
    // `entered` keeps code and globals, so no address is reused.
    std::unordered_map<CodeKey, What, Hash> known_;
    std::unordered_set<PyObject*> reported_;
};

int hear(PyObject* self, PyFrameObject* frame, int event, PyObject* callee) {
    return nb::inst_ptr<CallObserver>(self)->hear(frame, event, callee);
}

} // namespace

void bind_call_observer(nb::module_& m) {
    nb::class_<CallObserver>(m, "CallObserver", "A profiling hook; sys.setprofile(None) ends it.")
        .def(nb::init<nb::object, nb::object>(), "entered"_a, "called"_a,
             "entered(frame) is called when code with its globals runs for the first time, and keeps both. "
             "It answers `report` (called(frame, function) of the compiled functions that it calls), "
             "`ignore`, "
             "`again` (ask at the next call) or `aside` (observe nothing until it returns). What the two "
             "raise "
             "is "
             "raised at the call.")
        .def(
            "start", [](nb::handle self) { PyEval_SetProfile(hear, self.ptr()); },
            "In this thread, from now on.");
}
