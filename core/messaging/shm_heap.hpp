// Pages of this process that others of its host map: one file in memory, allocated in pieces.
//
// The file is as long as all that may ever be exposed and empty at first, so that one mapping also reaches
// pieces allocated later. A piece replaces pages that the process has already, whose address and contents
// stay. Freed pieces are returned to the system. A forked child gets copies of its own.
#pragma once

#include "messaging/descriptors.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace jali::shm {

class Heap {
  public:
    // The heap of this process, made at the first call and never destroyed. Throws TransportError that names
    // what the system lacks.
    static Heap& of_process();

    FdToken token() const { return exporter_->token(); } // with which others open the file

    // A piece in place of pages.
    class Piece {
      public:
        Piece(std::size_t offset, std::byte* pages, std::size_t bytes)
            : offset(offset), pages(pages), bytes(bytes) {}
        ~Piece();
        Piece(const Piece&) = delete;
        const std::size_t offset; // in the file
        std::byte* const pages;
        const std::size_t bytes;
    };
    // `pages` and `bytes` are multiples of page_bytes(). Throws OutOfMemory, TransportError.
    std::unique_ptr<Piece> replace(std::byte* pages, std::size_t bytes);

    static std::size_t page_bytes();

    Heap(const Heap&) = delete;

  private:
    Heap();
    void free(const Piece& piece) noexcept;
    void copy_for_child() noexcept;

    int file_ = -1;
    std::unique_ptr<FdExporter> exporter_;
    std::mutex mutex_;
    std::map<std::size_t, std::size_t> free_; // offset, bytes: never adjacent
    std::map<std::size_t, const Piece*> pieces_;
};

// The heap of another process, mapped as a whole.
class MappedHeap {
  public:
    // The heap of this token, mapped once for all callers. Throws DescriptorError, TransportError.
    static std::shared_ptr<MappedHeap> of(const FdToken& token);

    explicit MappedHeap(const FdToken& token);
    ~MappedHeap();
    MappedHeap(const MappedHeap&) = delete;
    std::byte* at(std::size_t offset) const { return base_ + offset; }

  private:
    std::byte* base_;
};

} // namespace jali::shm
