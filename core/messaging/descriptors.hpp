// File descriptors for other processes of this user on this host.
//
// A process that exports descriptors gets a token, a few numbers that travel like any message; a process with
// the token fetches duplicates, as often as it needs while the exporter exists. A thread of the exporting
// process sends them over a socket in Linux's abstract namespace (SCM_RIGHTS), so that the exporting program
// need not be at a certain point and no permission to read another process is needed (ptrace, which
// containers and Yama deny). Both processes must share a network namespace. Each side gets the identity of
// the other from the kernel: no descriptor is sent to or accepted from another user, nor accepted from
// another process than the token's where both share a process namespace.
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
    std::uint64_t secret;                 // required to fetch the descriptors
    std::uint64_t number;                 // of the exporter's pieces
    std::uint64_t namespace_of_processes; // in which `process` is its number; 0: unknown
};

// Descriptors with the sizes of their memory; the destructor ends the export and closes them.
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

// The descriptors of a token, from another process or this one. Waits a few seconds at most. Throws
// DescriptorError with the reason if the fetch fails or another process answers.
std::vector<SharedPiece> fetch_descriptors(const FdToken& token);

} // namespace jali
