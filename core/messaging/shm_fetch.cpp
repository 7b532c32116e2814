#include "messaging/shm_fetch.hpp"

#include <cerrno>
#include <fstream>

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

namespace jali::shm {

namespace {

std::uint64_t shown;

using Copy = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

int copy(Copy copy, pid_t process, std::uint64_t there, std::byte* here, std::size_t bytes) {
    while (bytes > 0) {
        const iovec ours{here, bytes};
        const iovec theirs{reinterpret_cast<void*>(there), bytes};
        const ssize_t done = copy(process, &ours, 1, &theirs, 1, 0);
        if (done < 0) return errno;
        if (done == 0) return EFAULT;
        here += done;
        there += static_cast<std::uint64_t>(done);
        bytes -= static_cast<std::size_t>(done);
    }
    return 0;
}

} // namespace

FetchProbe make_probe(std::uint64_t value) {
    // Scope 1 lets only ancestors read a process, unless the process names further readers.
    int scope = 0;
    std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
    if (scope == 1) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if (shown == 0) shown = value;
    return {getpid(), reinterpret_cast<std::uint64_t>(&shown), shown};
}

int fetch(pid_t process, std::uint64_t address, void* into, std::size_t bytes) {
    return copy(process_vm_readv, process, address, static_cast<std::byte*>(into), bytes);
}

int put(pid_t process, std::uint64_t address, const void* from, std::size_t bytes) {
    return copy(process_vm_writev, process, address, static_cast<std::byte*>(const_cast<void*>(from)), bytes);
}

bool can_fetch(const FetchProbe& probe) {
    std::uint64_t value = 0;
    return fetch(static_cast<pid_t>(probe.process), probe.address, &value, sizeof value) == 0 &&
           value == probe.value;
}

} // namespace jali::shm
