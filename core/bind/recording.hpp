// What this thread records for a graph, as jali.recording has it.
#pragma once

#include <nanobind/nanobind.h>

namespace jali {

nanobind::object tape(); // None: it records nothing
// Raises RecordingError while this thread records: what `name` does cannot be part of a graph.
void refuse_call(const char* name);

} // namespace jali
