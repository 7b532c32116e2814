#include "messaging/shm_segment.hpp"
#include "messaging/communicator.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace jali::shm {

namespace {

constexpr const char* folder = "/dev/shm";
constexpr const char* prefix = "jali-";

struct flock whole_file(short type) {
    struct flock lock{};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    return lock;
}

// True if no process holds the lock that owners take.
bool is_abandoned(int file) {
    struct flock lock = whole_file(F_WRLCK);
    return fcntl(file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

// Skips our own names: closing another descriptor of a file would release our lock on it.
void sweep(const std::string& own) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with(prefix) || name.starts_with(own)) continue;
        const int file = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (file < 0) continue;
        struct stat status{};
        if (fstat(file, &status) == 0 && status.st_uid == geteuid() && is_abandoned(file))
            unlink(entry.path().c_str());
        close(file);
    }
}

[[noreturn]] void fail(const std::string& doing, int error) {
    throw TransportError("shared memory between ranks: cannot " + doing + ": " + std::strerror(error) +
                         " (JALI_SHM=0 does without)");
}

} // namespace

Segment::~Segment() {
    if (memory_ == nullptr) return;
    remove_name();
    munmap(memory_, header_bytes + bytes_);
    close(file_);
}

Segment Segment::create(std::size_t bytes) {
    std::random_device random;
    const std::uint64_t nonce = (static_cast<std::uint64_t>(random()) << 32) | random();
    const std::string own = prefix + std::to_string(getpid()) + "-";
    sweep(own);

    Segment segment;
    segment.bytes_ = bytes;
    segment.owner_ = getpid();
    segment.file_ = ::open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (segment.file_ < 0) fail(std::string("make a file in ") + folder, errno);
    const auto give_up = [&](const std::string& doing, int error) {
        close(segment.file_);
        fail(doing, error);
    };
    struct flock lock = whole_file(F_WRLCK);
    if (fcntl(segment.file_, F_SETLK, &lock) != 0) give_up("lock a file in /dev/shm", errno);
    // Reserved now: a page that cannot be allocated later would be a bus error.
    if (const int error = posix_fallocate(segment.file_, 0, static_cast<off_t>(header_bytes + bytes)))
        give_up("reserve " + std::to_string((header_bytes + bytes) / 1024) + " KiB in /dev/shm", error);
    if (!segment.map()) give_up("map a file of /dev/shm", errno);
    std::memcpy(segment.memory_, &nonce, sizeof nonce);
    segment.name_ = std::string(folder) + "/" + own + std::to_string(nonce);
    const std::string path = "/proc/self/fd/" + std::to_string(segment.file_);
    if (linkat(AT_FDCWD, path.c_str(), AT_FDCWD, segment.name_.c_str(), AT_SYMLINK_FOLLOW) != 0)
        fail("name a file in /dev/shm", errno);
    segment.named_ = true;
    return segment;
}

Segment Segment::open(const std::string& name, std::uint64_t nonce, std::size_t bytes) {
    Segment segment;
    segment.bytes_ = bytes;
    segment.name_ = name;
    segment.file_ = ::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (segment.file_ < 0) return {};
    struct stat status{};
    const bool whole = fstat(segment.file_, &status) == 0 &&
                       static_cast<std::size_t>(status.st_size) == header_bytes + bytes;
    if (!whole || !segment.map()) {
        close(segment.file_);
        return {};
    }
    if (segment.nonce() != nonce) return {};
    return segment;
}

std::uint64_t Segment::nonce() const {
    std::uint64_t nonce;
    std::memcpy(&nonce, memory_, sizeof nonce);
    return nonce;
}

void Segment::remove_name() noexcept {
    if (named_ && owner_ == getpid()) unlink(name_.c_str());
    named_ = false;
}

bool Segment::owner_lives() const {
    return owner_ != 0 || !is_abandoned(file_);
}

void Segment::swap(Segment& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    std::swap(name_, other.name_);
    std::swap(owner_, other.owner_);
    std::swap(named_, other.named_);
}

bool Segment::map() {
    void* memory = mmap(nullptr, header_bytes + bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) return false;
    memory_ = static_cast<std::byte*>(memory);
    return true;
}

} // namespace jali::shm
