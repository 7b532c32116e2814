// Named ranges for the vendors' profilers: NVIDIA's NVTX and AMD's roctx, found at run time.
//
// What pushes and what pops is one table of libraries, an entry each; nothing is linked and no header is
// used. Ranges are off until they are turned on (JALI_NVTX). NVTX has two ways: a library of an older toolkit
// that exports the functions, and a tool that announces itself by NVTX_INJECTION64_PATH (Nsight does) and
// passes its functions on request. AMD's side has never run on hardware.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace jali {

struct RangesFound {
    std::string name, library; // empty: nothing was found
    std::string why_not;
};

// The available ranges: searched once in a process.
const RangesFound& find_ranges();

// From now on. Warns on stderr, once, if no tool takes them.
void turn_ranges_on();

// A range of this thread from now to pop_range(). False, and nothing to be popped, when ranges are off.
bool push_range(std::string_view name);
void pop_range();

} // namespace jali
