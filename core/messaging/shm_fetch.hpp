// Reading another process's memory directly, where the kernel permits it: one copy for a long message.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/types.h>

namespace jali::shm {

// Where a process keeps a number that others may read to see whether they can.
struct FetchProbe {
    std::int64_t process;
    std::uint64_t address, value;
};

// This process's probe. Tells a kernel that asks for it (Yama) that the ranks may read this process.
FetchProbe make_probe(std::uint64_t value);

// Copies from the memory of `process`. 0, or the error number.
int fetch(pid_t process, std::uint64_t address, void* into, std::size_t bytes);

// The same the other way round.
int put(pid_t process, std::uint64_t address, const void* from, std::size_t bytes);

bool can_fetch(const FetchProbe& probe);

} // namespace jali::shm
