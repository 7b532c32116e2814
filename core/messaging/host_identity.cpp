#include "messaging/host_identity.hpp"

#include <fstream>

#include <sys/utsname.h>

namespace jali {

std::string host_identity() {
    utsname names{};
    uname(&names);
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    return std::string(names.nodename) + " " + boot;
}

} // namespace jali
