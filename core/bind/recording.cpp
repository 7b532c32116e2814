#include "bind/recording.hpp"

namespace nb = nanobind;

namespace jali {

namespace {

// The module is looked up once and kept for ever, and not as a static of a function's own, for whose guard
// other threads would wait while an import goes on.
PyObject *recording = nullptr, *recorders = nullptr;

bool anybody_records() {
    if (recording == nullptr) {
        nb::object module = nb::module_::import_("jali.recording");
        recorders = PyUnicode_InternFromString("recorders");
        recording = module.release().ptr();
    }
    const nb::object threads = nb::steal(PyObject_GetAttr(recording, recorders));
    if (!threads.is_valid()) throw nb::python_error();
    return PyObject_IsTrue(threads.ptr()) != 0;
}

} // namespace

nb::object tape() {
    return anybody_records() ? nb::handle(recording).attr("current")() : nb::none();
}

void refuse_call(const char* name) {
    if (anybody_records()) nb::handle(recording).attr("refuse_call")(name);
}

} // namespace jali
