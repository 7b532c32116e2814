#include "bind/graph_recorder.hpp"

#include <atomic>

namespace nb = nanobind;

namespace jali {

namespace {

std::atomic<int> recorders = 0;

bool anybody_records() {
    return recorders.load(std::memory_order_relaxed) != 0;
}

// Looked up once and kept for ever, and not as a static of a function's own, for whose guard other threads
// would wait while an import goes on.
nb::handle graph_recorder() {
    static PyObject* module = nullptr;
    if (module == nullptr) module = nb::module_::import_("jali.graph_recorder").release().ptr();
    return module;
}

} // namespace

nb::object recorder() {
    return anybody_records() ? graph_recorder().attr("current")() : nb::none();
}

void refuse_call(const char* name) {
    if (anybody_records()) graph_recorder().attr("refuse_call")(name);
}

void refuse_recorded(const char* what, const char* instead) {
    if (anybody_records()) graph_recorder().attr("refuse")(what, instead);
}

void count_recorders(int change) {
    recorders += change;
}

} // namespace jali
