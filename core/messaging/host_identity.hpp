// Which host this is, so that ranks can tell who shares one.
#pragma once

#include <string>

namespace jali {

// Equal for processes that run on one host, and only for those.
std::string host_identity();

} // namespace jali
