#include "transport/shm_fetch.hpp"

#include <cerrno>
#include <fstream>

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

namespace jali::shm {

namespace {

std::uint64_t shown;

} // namespace

FetchProbe offer_probe(std::uint64_t value) {
    // Scope 1 lets only ancestors read a process, unless it names who else may.
    int scope = 0;
    std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
    if (scope == 1) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if (shown == 0) shown = value;
    return {getpid(), reinterpret_cast<std::uint64_t>(&shown), shown};
}

int fetch(pid_t process, std::uint64_t address, void* into, std::size_t bytes) {
    auto* to = static_cast<std::byte*>(into);
    while (bytes > 0) {
        iovec here{to, bytes};
        iovec there{reinterpret_cast<void*>(address), bytes};
        const ssize_t done = process_vm_readv(process, &here, 1, &there, 1, 0);
        if (done < 0) return errno;
        if (done == 0) return EFAULT;
        to += done;
        address += static_cast<std::uint64_t>(done);
        bytes -= static_cast<std::size_t>(done);
    }
    return 0;
}

bool can_fetch(const FetchProbe& probe) {
    std::uint64_t value = 0;
    return fetch(static_cast<pid_t>(probe.process), probe.address, &value, sizeof value) == 0 &&
           value == probe.value;
}

} // namespace jali::shm
