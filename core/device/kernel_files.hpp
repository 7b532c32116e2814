// Files of the kernel cache: what is compiled, sealed with a digest, beside its source, which may be edited.
//
// The directory belongs to its user alone, since what lies in it is run. One process compiles, others wait on
// a file lock and load what it made. Files appear complete, by a rename, and are never changed; what is
// damaged, or could have been changed by others, is made again, with a warning. Other files define the
// kernels and how they are compiled: kernel_cache.hpp for devices, src/jali/codegen/kernel_cache.py for the
// host.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jali {

// No compiler, a text that it rejects, or a cache that cannot be used.
struct CompileError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// $JALI_CACHE_DIR, or jali/ in the user's cache directory; made if absent, for its user alone. Throws
// CompileError where it cannot be made, belongs to another user or can be written by others.
std::filesystem::path cache_directory();

// The cache entry of a kernel.
struct CachedKernel {
    std::filesystem::path source, result; // of one directory
    std::string text;                     // of the source, unless edited
    // Compiles `source` into the file `target`. Throws CompileError, std::system_error.
    std::function<void(const std::filesystem::path& source, const std::filesystem::path& target)> compile;
    std::function<void()> interrupted; // by a signal, while another process compiles; may throw, may be empty
};

// Which file it is; equal for one and the same.
using FileIdentity = std::pair<std::uint64_t, std::uint64_t>;
std::optional<FileIdentity> identity_of(const std::filesystem::path& file); // none: there is no such file

// The machine code in `result`, compiled where that is missing, damaged or older than its source. Throws
// CompileError.
std::vector<std::byte> compiled(const CachedKernel& kernel);

// Compiles it again, where `result` still is the file of this identity; `wrong` is what is wrong with that.
// Throws CompileError.
void compile_again(const CachedKernel& kernel, const std::string& wrong, std::optional<FileIdentity> useless);

// A file of this text, written where it is missing or has another. Throws CompileError.
void keep_text(const std::filesystem::path& file, std::string_view text);

// Writes a file so that other processes see all of it or none. Throws std::system_error.
void write_whole(const std::filesystem::path& file, std::span<const std::byte> contents);

// Without comments: the names of bound functions in them do not make another kernel.
std::string without_comments(std::string_view text);

// The name of a kernel in the cache: that of the site function, and a digest of all that it depends on.
std::string cache_key(std::string_view name, std::span<const std::string> parts);

} // namespace jali
