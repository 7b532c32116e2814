#include "device/kernel_files.hpp"
#include "device/sha256.hpp"
#include "settings/notice.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <random>
#include <system_error>

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace jali {

namespace fs = std::filesystem;

namespace {

using Bytes = std::vector<std::byte>;

constexpr std::string_view mark = "\njali-2\n"; // the end of what is compiled, behind two digests
constexpr std::size_t seal_size = 2 * sizeof(Sha256::Digest) + mark.size();
constexpr std::int64_t most_bytes = 1 << 30; // of a file here; far more than any kernel has

// The file, or what was put in its place, cannot be used; the text is the reason.
struct UselessFile : std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[noreturn]] void fail(int error, const fs::path& file) {
    throw std::system_error(error, std::generic_category(), file.string());
}

std::string_view text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Warnings are issued when no lock is held any more: their handler may need a lock of a thread that waits for
// this one.
class Warnings {
  public:
    void add(std::string words) { all_.push_back("the kernel cache: " + std::move(words)); }
    void give() {
        for (const std::string& words : std::exchange(all_, {})) warn(words);
    }
    ~Warnings() { // after an error, which is more useful than an exception from a warning
        try {
            give();
        } catch (...) {
        }
    }

  private:
    std::vector<std::string> all_;
};

class File {
  public:
    File(const fs::path& path, int flags, mode_t mode = 0)
        : fd_(open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, mode)) {
        if (fd_ < 0) fail(errno, path);
    }
    ~File() { close(fd_); }
    File(const File&) = delete;
    int fd() const { return fd_; }

  private:
    int fd_;
};

struct stat status_of(const fs::path& path) {
    struct stat status{};
    if (stat(path.c_str(), &status) != 0) fail(errno, path);
    return status;
}

FileIdentity identity_of(const struct stat& status) {
    return {status.st_dev, status.st_ino};
}

void refuse_other_kinds(const fs::path& path, const struct stat& status) {
    if (S_ISDIR(status.st_mode)) fail(EISDIR, path);
    if (S_ISREG(status.st_mode)) return;
    const char* kind = S_ISFIFO(status.st_mode)                             ? "a pipe"
                       : S_ISSOCK(status.st_mode)                           ? "a socket"
                       : S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode) ? "a device"
                                                                            : "something else";
    throw UselessFile(path.string() + " is " + kind + ", not a file");
}

// Throws UselessFile if it is no regular file, or if another user owns or could have changed it;
// std::system_error.
Bytes contents_of(const fs::path& path) {
    refuse_other_kinds(path, status_of(path));
    const File file(path, O_RDONLY); // a pipe that got the name in between must not block
    struct stat status{};
    if (fstat(file.fd(), &status) != 0) fail(errno, path);
    refuse_other_kinds(path, status);
    if (status.st_uid != geteuid() && status.st_uid != 0) throw UselessFile("it belongs to another user");
    if ((status.st_mode & S_IWOTH) != 0) throw UselessFile("it can be written by others");
    if (status.st_size > most_bytes)
        throw UselessFile(path.string() + ": " + std::to_string(status.st_size) + " bytes are too many");
    Bytes contents(static_cast<std::size_t>(status.st_size));
    std::size_t read = 0;
    while (read < contents.size()) {
        const ssize_t more =
            pread(file.fd(), contents.data() + read, contents.size() - read, static_cast<off_t>(read));
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) fail(errno, path);
        if (more == 0) break;
        read += static_cast<std::size_t>(more);
    }
    contents.resize(read);
    return contents;
}

// How the names of its temporary files begin.
std::string start_beside(const fs::path& path) {
    return std::string(1, '.').append(path.filename().string()).append(1, '.');
}

// The name of a temporary file, unique on all hosts.
fs::path beside(const fs::path& path) {
    std::random_device random;
    char digits[17];
    std::snprintf(digits, sizeof digits, "%08x%08x", random(), random());
    return path.parent_path() / (start_beside(path) + digits);
}

void append(const fs::path& path, int flags, std::span<const std::byte> bytes) {
    const File file(path, O_WRONLY | O_CREAT | flags, 0666);
    while (!bytes.empty()) {
        const ssize_t more = write(file.fd(), bytes.data(), bytes.size());
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) fail(errno, path);
        bytes = bytes.subspan(static_cast<std::size_t>(more));
    }
    struct stat status{};
    // whatever the umask permits, no other user may write what this user runs
    if (fstat(file.fd(), &status) != 0 || fchmod(file.fd(), status.st_mode & 07777 & ~022U) != 0)
        fail(errno, path);
}

void rename_to(const fs::path& from, const fs::path& to) {
    if (rename(from.c_str(), to.c_str()) != 0) fail(errno, to);
}

struct Temporary {
    const fs::path path;
    ~Temporary() { unlink(path.c_str()); }
};

// What is compiled, as the cache keeps it: machine code, and a name for the source that it was made from. A
// loader ignores what follows an object; a driver gets the code only, since its call takes no size and it may
// crash on a damaged image.
struct Compiled {
    Bytes code;
    Sha256::Digest origin;
};

// What follows the code in the file of this name, which the digest covers as well, so that no file can
// replace that of another kernel.
Bytes seal(const Compiled& compiled, const fs::path& file) {
    const Sha256::Digest digest = Sha256()
                                      .add(file.filename().string())
                                      .add(std::string_view("\0", 1))
                                      .add(compiled.origin)
                                      .add(std::string_view("\0", 1))
                                      .add(compiled.code)
                                      .digest();
    Bytes end(compiled.origin.begin(), compiled.origin.end());
    end.insert(end.end(), digest.begin(), digest.end());
    const auto last = std::as_bytes(std::span(mark));
    end.insert(end.end(), last.begin(), last.end());
    return end;
}

// Throws UselessFile with the fault of the file, std::system_error.
Compiled read_compiled(const fs::path& path) {
    Compiled found{contents_of(path), {}};
    const std::size_t size = found.code.size();
    if (size < seal_size || !text_of(found.code).ends_with(mark))
        throw UselessFile(std::to_string(size) + " bytes do not end with a digest");
    const Bytes end(found.code.end() - seal_size, found.code.end());
    std::copy_n(end.begin(), found.origin.size(), found.origin.begin());
    found.code.resize(size - seal_size);
    if (seal(found, path) != end) throw UselessFile("its digest is that of other contents");
    return found;
}

bool is_newer(const struct stat& a, const struct stat& b) {
    return std::pair(a.st_mtim.tv_sec, a.st_mtim.tv_nsec) > std::pair(b.st_mtim.tv_sec, b.st_mtim.tv_nsec);
}

// What was compiled; none if it is missing, its source is newer, or `wrong` is what is wrong with it.
std::optional<Compiled> current(const CachedKernel& kernel, std::string& wrong) {
    wrong.clear();
    try {
        if (is_newer(status_of(kernel.source), status_of(kernel.result))) return std::nullopt;
        return read_compiled(kernel.result);
    } catch (const UselessFile& error) {
        wrong = std::string("is damaged (") + error.what() + ")";
    } catch (const std::system_error& error) {
        if (error.code().value() != ENOENT) wrong = "is damaged (" + error.code().message() + ")";
    }
    return std::nullopt;
}

std::string_view stripped(std::string_view text) {
    const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    return text;
}

Sha256::Digest origin_of(std::string_view text) {
    const std::string kernel = without_comments(text);
    return Sha256().add(stripped(kernel)).digest();
}

// The end of this source, which distinguishes it from a truncated one and from that of another kernel.
std::string last_line(const fs::path& source) {
    return "// the end of " + source.filename().string() +
           "; without this line the file is taken for damaged and written anew\n";
}

// The kernel in `source`, edited or not, which is written where there is none.
std::string kept_source(const CachedKernel& kernel, Warnings& warnings) {
    const fs::path& source = kernel.source;
    const std::string end = last_line(source);
    std::string wrong;
    try {
        const Bytes contents = contents_of(source);
        const std::string_view kept = text_of(contents), line = stripped(end);
        if (const auto at = kept.rfind(line); at != std::string_view::npos &&
                                              stripped(kept.substr(at + line.size())).empty() &&
                                              kept.substr(0, at).find('\0') == std::string_view::npos)
            return std::string(kept.substr(0, at));
        if (!kept.empty()) wrong = "its last line is missing";
    } catch (const UselessFile& error) {
        wrong = error.what();
    } catch (const std::system_error& error) {
        if (error.code().value() != ENOENT) throw;
    }
    if (!wrong.empty()) {
        const fs::path aside = source.string() + ".damaged";
        rename_to(source, aside);
        warnings.add(source.string() + " is damaged (" + wrong + "); it is written anew, and was moved to " +
                     aside.string());
    }
    std::string text = kernel.text;
    text.erase(text.find_last_not_of(" \t\n\v\f\r") + 1);
    text += "\n" + end;
    write_whole(source, std::as_bytes(std::span(text)));
    return kernel.text;
}

// Holds a lock on this file, which is removed afterwards. Throws std::system_error.
class Lock {
  public:
    Lock(const fs::path& path, const std::function<void()>& interrupted) : path_(path) {
        for (;;) {
            file_.emplace(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
            while (flock(file_->fd(), LOCK_EX) != 0) {
                // A file system without locks: files still appear complete, and are only made more than once.
                if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP) {
                    alone_ = false;
                    break;
                }
                if (errno != EINTR) fail(errno, path);
                if (interrupted) interrupted();
            }
            // The previous holder has removed it, and another process may have made a new one.
            struct stat status{};
            if (fstat(file_->fd(), &status) == 0 && jali::identity_of(path) == identity_of(status)) return;
        }
    }
    ~Lock() { unlink(path_.c_str()); }
    Lock(const Lock&) = delete;
    bool alone() const { return alone_; }

  private:
    bool alone_ = true;
    const fs::path path_;
    std::optional<File> file_;
};

// Of processes that were killed.
void remove_left_behind(const fs::path& result) {
    const std::string start = start_beside(result);
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(result.parent_path(), error))
        if (entry.path().filename().string().starts_with(start)) unlink(entry.path().c_str());
}

[[noreturn]] void say_unwritable(const fs::path& directory, int error) {
    const bool full = error == ENOSPC || error == EDQUOT;
    throw CompileError(
        "the kernel cache " + directory.string() +
        " cannot be written: " + std::generic_category().message(error) + "; " +
        (full ? "free some space or set JALI_CACHE_DIR" : "set JALI_CACHE_DIR to a directory of yours"));
}

// Writes the source, unless the user keeps an edited one there, and compiles it; one process does, others
// wait.
Compiled make(const CachedKernel& kernel, const std::string& wrong, std::optional<FileIdentity> useless,
              Warnings& warnings) {
    const auto& [source, result, text, compile, interrupted] = kernel;
    try {
        const Lock lock(result.parent_path() / (result.stem().string() + ".lock"), interrupted);
        std::string now;
        if (auto found = current(kernel, now); found && (!useless || jali::identity_of(result) != useless))
            return *std::move(found); // made while we waited
        if (lock.alone()) remove_left_behind(result);
        if (!wrong.empty()) warnings.add(result.string() + " " + wrong + "; it is made again");
        const std::string kept = kept_source(kernel, warnings);
        const struct stat made_from = status_of(source);
        const Temporary temporary{beside(result)};
        compile(source, temporary.path);
        append(temporary.path, O_APPEND, {}); // sets its mode, whatever the umask of the compiling process
        Compiled compiled{contents_of(temporary.path), origin_of(kept)};
        append(temporary.path, O_APPEND, seal(compiled, result));
        // As old as its source, so that a source edited meanwhile is newer, whatever the clocks say.
        const timespec times[2] = {made_from.st_mtim, made_from.st_mtim};
        if (utimensat(AT_FDCWD, temporary.path.c_str(), times, 0) != 0) fail(errno, temporary.path);
        rename_to(temporary.path, result);
        return compiled;
    } catch (const UselessFile& error) {
        throw CompileError("the kernel cache " + result.parent_path().string() +
                           " cannot be used: " + error.what());
    } catch (const std::system_error& error) {
        say_unwritable(result.parent_path(), error.code().value());
    }
}

// The directory of the user's that holds ".cache"; a home that is not absolute is none.
std::string home() {
    if (!settings().home.empty()) return settings().home;
    const passwd* entry = getpwuid(getuid());
    return entry != nullptr ? entry->pw_dir : "~";
}

} // namespace

std::optional<FileIdentity> identity_of(const fs::path& file) {
    struct stat status{};
    if (stat(file.c_str(), &status) != 0) return std::nullopt;
    return identity_of(status);
}

fs::path cache_directory() {
    const Settings& now = settings();
    const fs::path base =
        now.xdg_cache_home.empty() ? fs::path(home()) / ".cache" : fs::path(now.xdg_cache_home);
    if (now.cache_dir.empty() && !base.is_absolute())
        throw CompileError(
            "there is no place for the kernel cache: this user has no home directory (it would be " +
            base.string() + "); set JALI_CACHE_DIR to a directory of yours");
    const fs::path directory = now.cache_dir.empty() ? base / "jali" : fs::absolute(now.cache_dir);
    const std::string called = "the kernel cache " + directory.string();
    struct stat status{};
    try {
        if (stat(directory.c_str(), &status) != 0) {
            fs::create_directories(directory.parent_path());
            if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) fail(errno, directory);
            status = status_of(directory);
        }
    } catch (const std::system_error& error) {
        throw CompileError(called + " cannot be made: " + error.code().message() +
                           "; set JALI_CACHE_DIR to a directory of yours");
    }
    if (!S_ISDIR(status.st_mode))
        throw CompileError(called + " is not a directory; set JALI_CACHE_DIR to one");
    if (status.st_uid != getuid())
        throw CompileError(called + " belongs to another user; set JALI_CACHE_DIR to a directory of yours");
    if ((status.st_mode & 022) != 0) {
        char mode[8];
        std::snprintf(mode, sizeof mode, "%o", status.st_mode & 07777U);
        throw CompileError(called + " can be written by others (mode " + mode +
                           ") and would be run as your code: chmod 700 " + directory.string() +
                           ", or set JALI_CACHE_DIR");
    }
    return directory;
}

std::vector<std::byte> compiled(const CachedKernel& kernel) {
    Warnings warnings;
    std::string wrong;
    std::optional<Compiled> found = current(kernel, wrong);
    if (!found) found = make(kernel, wrong, std::nullopt, warnings);
    if (found->origin != origin_of(kernel.text))
        warnings.add(kernel.source.string() +
                     " was edited and is used as it is; remove it to have what jali generates");
    warnings.give();
    return std::move(found->code);
}

void compile_again(const CachedKernel& kernel, const std::string& wrong,
                   std::optional<FileIdentity> useless) {
    Warnings warnings;
    make(kernel, wrong, useless, warnings);
    warnings.give();
}

void keep_text(const fs::path& file, std::string_view text) {
    std::string wrong;
    try {
        const Bytes contents = contents_of(file);
        if (text_of(contents) == text) return;
        wrong = "it differs from what jali brings along";
    } catch (const UselessFile& error) {
        wrong = error.what();
    } catch (const std::system_error& error) {
        if (error.code().value() != ENOENT) say_unwritable(file.parent_path(), error.code().value());
    }
    Warnings warnings;
    if (!wrong.empty()) warnings.add(file.string() + " is damaged (" + wrong + "); it is written anew");
    try {
        write_whole(file, std::as_bytes(std::span(text)));
    } catch (const std::system_error& error) {
        say_unwritable(file.parent_path(), error.code().value());
    }
    warnings.give();
}

void write_whole(const fs::path& file, std::span<const std::byte> contents) {
    const Temporary temporary{beside(file)};
    append(temporary.path, O_EXCL, contents);
    rename_to(temporary.path, file);
}

std::string without_comments(std::string_view text) {
    std::string kept;
    kept.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const auto comment = std::min(text.find("//", at), text.size());
        kept += text.substr(at, comment - at);
        at = std::min(text.find('\n', comment), text.size());
    }
    return kept;
}

std::string cache_key(std::string_view name, std::span<const std::string> parts) {
    Sha256 all;
    for (const std::string& part : parts) {
        if (&part != parts.data()) all.add(std::string_view("\0", 1));
        all.add(part);
    }
    std::string key(name.substr(0, 40));
    for (char& c : key)
        if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
    return key + "-" + hexadecimal(all.digest()).substr(0, 20);
}

} // namespace jali
