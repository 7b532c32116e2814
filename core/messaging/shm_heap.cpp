#include "messaging/shm_heap.hpp"
#include "device/arena.hpp"
#include "messaging/communicator.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

namespace jali::shm {

namespace {

// Addresses, not memory: so many that no process fills them, so few that those of many ranks can be mapped.
constexpr std::size_t heap_bytes = std::size_t{1} << 37;

[[noreturn]] void fail(const std::string& doing, int error) {
    throw TransportError("memory that ranks of one host share: cannot " + doing + ": " +
                         std::strerror(error));
}

} // namespace

Heap& Heap::of_process() {
    static Heap* heap = new Heap;
    return *heap;
}

std::size_t Heap::page_bytes() {
    static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

Heap::Heap() {
    Descriptor file(memfd_create("jali", MFD_CLOEXEC));
    if (file.number() < 0) fail("make a file in memory", errno);
    if (ftruncate(file.number(), static_cast<off_t>(heap_bytes)) != 0)
        fail("make a file in memory of " + std::to_string(heap_bytes >> 30) + " GiB, all of them empty",
             errno);
    file_ = file.number();
    free_[0] = heap_bytes;
    std::vector<SharedPiece> pieces;
    pieces.push_back({std::move(file), heap_bytes});
    exporter_ = std::make_unique<FdExporter>(std::move(pieces));
    // A forked child must find the lock free and must not change the parent's pages.
    pthread_atfork([] { of_process().mutex_.lock(); }, [] { of_process().mutex_.unlock(); },
                   [] { of_process().copy_for_child(); });
}

std::unique_ptr<Heap::Piece> Heap::replace(std::byte* pages, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    const auto room = std::find_if(free_.begin(), free_.end(), [&](auto& f) { return f.second >= bytes; });
    if (room == free_.end())
        throw TransportError("memory that ranks of one host share: " + std::to_string(heap_bytes >> 30) +
                             " GiB of a process are in use; JALI_HALO_POLICY=messages-overlap needs none");
    const std::size_t offset = room->first;
    // Reserved now: a page that cannot be allocated later would be a bus error.
    if (fallocate(file_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0)
        fail("get " + readable_bytes(bytes), errno);
    auto piece = std::make_unique<Piece>(offset, pages, bytes);
    for (std::size_t done = 0; done < bytes;) {
        const ssize_t n = pwrite(file_, pages + done, bytes - done, static_cast<off_t>(offset + done));
        if (n < 0 && errno != EINTR) fail("write what is there into it", errno);
        done += n > 0 ? static_cast<std::size_t>(n) : 0;
    }
    if (mmap(pages, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
             static_cast<off_t>(offset)) == MAP_FAILED)
        fail("map it", errno);
    const std::size_t left = room->second - bytes;
    free_.erase(room);
    if (left > 0) free_[offset + bytes] = left;
    pieces_[offset] = piece.get();
    return piece;
}

void Heap::free(const Piece& piece) noexcept {
    std::lock_guard lock(mutex_);
    if (pieces_.erase(piece.offset) == 0) return; // it was not taken to the end, or is the parent's
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(piece.offset),
              static_cast<off_t>(piece.bytes));
    auto here = free_.emplace(piece.offset, piece.bytes).first;
    if (const auto next = std::next(here); next != free_.end() && here->first + here->second == next->first) {
        here->second += next->second;
        free_.erase(next);
    }
    if (here == free_.begin()) return;
    const auto before = std::prev(here);
    if (before->first + before->second != here->first) return;
    before->second += here->second;
    free_.erase(here);
}

// After fork, on the only thread of the child.
void Heap::copy_for_child() noexcept {
    for (const auto& [offset, piece] : pieces_) {
        void* copy = mmap(nullptr, piece->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (copy == MAP_FAILED) _exit(1); // rather than write into the parent's fields
        std::memcpy(copy, piece->pages, piece->bytes);
        if (mremap(copy, piece->bytes, piece->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, piece->pages) ==
            MAP_FAILED)
            _exit(1);
    }
    pieces_.clear();
    file_ = -1; // it is the parent's, and exposes nothing for the child
    mutex_.unlock();
}

Heap::Piece::~Piece() {
    of_process().free(*this);
}

std::shared_ptr<MappedHeap> MappedHeap::of(const FdToken& token) {
    static std::mutex mutex;
    static auto& known = *new std::map<std::pair<std::uint64_t, std::uint64_t>, std::weak_ptr<MappedHeap>>;
    std::lock_guard lock(mutex);
    std::weak_ptr<MappedHeap>& offset = known[{token.name, token.number}];
    std::shared_ptr<MappedHeap> heap = offset.lock();
    if (!heap) offset = heap = std::make_shared<MappedHeap>(token);
    return heap;
}

MappedHeap::MappedHeap(const FdToken& token) {
    const auto pieces = fetch_descriptors(token);
    if (pieces.size() != 1 || pieces[0].bytes != heap_bytes)
        throw TransportError("memory that ranks of one host share: another rank's has another form");
    void* base = mmap(nullptr, heap_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                      pieces[0].descriptor.number(), 0);
    if (base == MAP_FAILED) fail("map that of another rank", errno);
    madvise(base, heap_bytes, MADV_DONTDUMP);
    madvise(base, heap_bytes, MADV_DONTFORK);
    base_ = static_cast<std::byte*>(base);
}

MappedHeap::~MappedHeap() {
    munmap(base_, heap_bytes);
}

} // namespace jali::shm
