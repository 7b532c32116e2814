// File descriptors for other processes of this user on this host.
//
// Who exports some gets a token, a few numbers that travel like any message; who has the token fetches
// duplicates, as often as it likes while the exporter stands. A thread of the exporting process hands them
// out over a socket in Linux's abstract namespace (SCM_RIGHTS), so that neither the program there has to be
// in a certain place nor the right to look into another process is needed (ptrace, which containers and Yama
// withhold). Both processes must share a network namespace. Each side asks the kernel who the other one is:
// nothing is handed to another user, nor taken from one, nor from another process than the token's where
// the two number processes alike.
#pragma once

#include "device/virtual_memory.hpp"

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace jali {

struct DescriptorError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct FdToken {
    std::int64_t process;
    std::uint64_t name;                   // of its socket
    std::uint64_t secret;                 // who does not know it gets nothing
    std::uint64_t number;                 // of the exporter's pieces
    std::uint64_t namespace_of_processes; // in which `process` is its number; 0: unknown
};

// Descriptors with the sizes of what they stand for; not exported any more, and closed, when dropped.
class FdExporter {
  public:
    // Throws DescriptorError where there can be no socket.
    explicit FdExporter(std::vector<SharedPiece> pieces);
    ~FdExporter();
    FdExporter(const FdExporter&) = delete;
    const FdToken& token() const { return token_; }

  private:
    FdToken token_{};
};

// What a token stands for, from another process or this one. Waits a few seconds at most. Throws
// DescriptorError that says why it cannot be had, or that somebody else answers.
std::vector<SharedPiece> fetch_descriptors(const FdToken& token);

} // namespace jali
