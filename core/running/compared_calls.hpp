// Checked mode: ranks compare what they call before anything moves.
//
// Every rank describes its call; where the descriptions differ, all ranks throw the same error, which says
// who called what and from which line of the program, and the group goes on.
#pragma once

#include "composition/standard.hpp"
#include "messaging/communicator.hpp"

#include <source_location>
#include <string>
#include <utility>
#include <vector>

namespace jali {

struct DescribedCall {
    std::vector<std::pair<std::string, std::string>> facts; // keys and values; of "call" what is called
    std::string location;                                   // in the program
};

DescribedCall describe(const CollectiveCall& call, bool on_devices, const std::source_location& location);

// Throws AgreedError on every rank unless all describe the same call, wherever it stands. Collective.
void compare_calls(Communicator& ranks, const DescribedCall& mine);

} // namespace jali
