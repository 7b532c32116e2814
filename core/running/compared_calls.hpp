// Checked mode: ranks compare what they call before anything moves.
//
// Every rank describes its call; where the descriptions differ, all ranks throw the same error, which names
// the calls, their ranks and lines of the program, and the group remains usable.
#pragma once

#include "composition/standard_collectives.hpp"
#include "messaging/communicator.hpp"

#include <source_location>
#include <string>
#include <utility>
#include <vector>

namespace jali {

struct DescribedCall {
    std::vector<std::pair<std::string, std::string>> facts; // keys and values; "call": the called function
    std::string location;                                   // in the program
};

DescribedCall describe(const CollectiveCall& call, bool on_devices, const std::source_location& location);

// Throws AgreedError on every rank unless all describe the same call, from any location. Collective.
void compare_calls(Communicator& ranks, const DescribedCall& mine);

} // namespace jali
