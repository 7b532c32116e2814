#include "bind/graph_recorder.hpp"

#include <atomic>

namespace nb = nanobind;

namespace jali {

namespace {

std::atomic<int> recorders = 0;

bool anybody_records() {
    return recorders.load(std::memory_order_relaxed) != 0;
}

// Looked up once and kept for ever, and not a function-local static, for whose guard other threads would wait
// during an import.
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
