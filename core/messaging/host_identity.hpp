// The identity of this host, so that ranks can determine which of them share a host.
#pragma once

#include <string>

namespace jali {

// Equal for processes that run on one host, and only for those.
std::string host_identity();

} // namespace jali
