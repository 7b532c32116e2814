// The recording of this thread for a graph, see jali.graph_recorder.
#pragma once

#include <nanobind/nanobind.h>

namespace jali {

nanobind::object recorder(); // None: it records nothing
// Raises RecordingError while this thread records: what `name` does cannot be part of a graph.
void refuse_call(const char* name);
// Likewise: `what` (a sentence's subject and verb) cannot be, `instead` can.
void refuse_recorded(const char* what, const char* instead);

// So many more threads record: while there are none, no call is passed to Python.
void count_recorders(int change);

} // namespace jali
