// Reading another process's memory directly, where the kernel permits it: one copy for a long message.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/types.h>

namespace jali::shm {

// The address of a number that other processes read to test whether they have access.
struct FetchProbe {
    std::int64_t process;
    std::uint64_t address, value;
};

// This process's probe. Permits the ranks to read this process where the kernel requires it (Yama).
FetchProbe make_probe(std::uint64_t value);

// Copies from the memory of `process`. 0, or the error number.
int fetch(pid_t process, std::uint64_t address, void* into, std::size_t bytes);

// The reverse: writes to the other process.
int put(pid_t process, std::uint64_t address, const void* from, std::size_t bytes);

bool can_fetch(const FetchProbe& probe);

} // namespace jali::shm
