// A queue from one process to another in memory that both have mapped: one writer, one reader, no locks.
//
// Slots of one cache line are used in turn; a slot holds the number of the lap in which it was written last,
// so the reader detects a message in the line that carries it, and a short message takes this line only.
// Longer payloads lie in an arena beside the slots, in the same order. The reader publishes its position; the
// writer reads it only when it seems to have run out of room.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace jali::shm {

constexpr std::size_t line = 64;
constexpr std::size_t inline_bytes = 40;
constexpr std::uint64_t slots = 128; // of one ring

enum class Kind : std::uint16_t {
    in_slot = 1, // a message whose data is in the slot
    in_arena,    // a message whose data is in the arena
    rendezvous,  // a message that its receiver fetches or requests
    ask,         // reader to writer: send the data of rendezvous `id` as pieces for receive `other`
    share,       // reader to writer: help to copy the data of rendezvous `id` to address `other`, by share
                 // `position`
    piece,       // part of a message, for receive `id`
    over         // reader to writer: rendezvous `id` is done
};

// The body of a slot whose 40 bytes are not the data itself.
struct Details {
    std::uint64_t id = 0, other = 0;
    std::uint64_t position = 0, end = 0; // of the data in the arena, counted from the first byte ever
    std::uint64_t offset = 0;            // of a piece in its message
};
static_assert(sizeof(Details) == inline_bytes);

struct Envelope {
    Kind kind{};
    std::int32_t tag = 0;
    std::uint32_t context = 0;
    std::uint64_t bytes = 0; // of the message, or of the piece
    union {
        std::byte data[inline_bytes];
        Details details;
    };

    Envelope() : details() {}
};

struct alignas(line) Slot {
    std::atomic<std::uint32_t> lap;
    Kind kind;
    std::int32_t tag;
    std::uint32_t context;
    std::uint64_t bytes;
    std::byte body[inline_bytes];
};
static_assert(sizeof(Slot) == line && std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

// A long message that both ends copy, each what it claims next, so that neither waits while the other works.
struct alignas(line) Share {
    std::atomic<std::uint64_t> claimed, copied; // stretches; claims go past the end
    std::atomic<std::int32_t> error;            // of the kernel, the first
    std::atomic<std::uint32_t> taken;           // set by the reader, cleared by the writer
};
constexpr std::size_t shares = 16; // of one ring

// The layout in memory, all zero at first; the arena follows.
struct Ring {
    alignas(line) std::atomic<std::uint64_t> slots_taken;
    std::atomic<std::uint64_t> arena_taken;
    Slot slot[slots];
    Share share[shares];

    std::byte* arena() { return reinterpret_cast<std::byte*>(this + 1); }
    static std::size_t size(std::size_t arena_bytes) { return sizeof(Ring) + arena_bytes; }
};

class RingWriter {
  public:
    RingWriter() = default;
    RingWriter(Ring* ring, std::size_t arena_bytes) : ring_(ring), arena_bytes_(arena_bytes) {}

    bool has_slot() {
        if (next_ - slots_taken_ < slots) return true;
        slots_taken_ = ring_->slots_taken.load(std::memory_order_acquire);
        return next_ - slots_taken_ < slots;
    }

    // Where to put `bytes` bytes (at most half the arena) of the next envelope, or nullptr while there is no
    // room; fills in position and end.
    std::byte* reserve(std::size_t bytes, Details& details) {
        const std::size_t rounded = (bytes + line - 1) & ~(line - 1);
        const std::size_t offset = arena_next_ % arena_bytes_;
        const std::uint64_t start =
            offset + rounded > arena_bytes_ ? arena_next_ + (arena_bytes_ - offset) : arena_next_;
        if (start + rounded - arena_taken_ > arena_bytes_) {
            arena_taken_ = ring_->arena_taken.load(std::memory_order_acquire);
            if (start + rounded - arena_taken_ > arena_bytes_) return nullptr;
        }
        details.position = start;
        details.end = start + rounded;
        return ring_->arena() + start % arena_bytes_;
    }

    Share& share(std::uint64_t number) const { return ring_->share[number]; }

    // There must be a slot.
    void push(const Envelope& envelope) {
        Slot& slot = ring_->slot[next_ % slots];
        slot.kind = envelope.kind;
        slot.tag = envelope.tag;
        slot.context = envelope.context;
        slot.bytes = envelope.bytes;
        std::memcpy(slot.body, &envelope.details, inline_bytes);
        if (envelope.kind == Kind::in_arena || envelope.kind == Kind::piece)
            arena_next_ = envelope.details.end;
        slot.lap.store(static_cast<std::uint32_t>(next_ / slots + 1), std::memory_order_release);
        ++next_;
    }

  private:
    Ring* ring_ = nullptr;
    std::size_t arena_bytes_ = 0;
    std::uint64_t next_ = 0, slots_taken_ = 0, arena_next_ = 0, arena_taken_ = 0;
};

class RingReader {
  public:
    RingReader() = default;
    RingReader(Ring* ring, std::size_t arena_bytes) : ring_(ring), arena_bytes_(arena_bytes) {}

    // The next message, or nullptr. Stays until pop().
    const Slot* front() const {
        const Slot& slot = ring_->slot[next_ % slots];
        const auto lap = static_cast<std::uint32_t>(next_ / slots + 1);
        return slot.lap.load(std::memory_order_acquire) == lap ? &slot : nullptr;
    }

    Share& share(std::uint64_t number) const { return ring_->share[number]; }

    const std::byte* at(std::uint64_t position) const { return ring_->arena() + position % arena_bytes_; }

    void pop() {
        const Slot& slot = ring_->slot[next_ % slots];
        if (slot.kind == Kind::in_arena || slot.kind == Kind::piece) {
            Details details;
            std::memcpy(&details, slot.body, sizeof details);
            ring_->arena_taken.store(details.end, std::memory_order_release);
        }
        ring_->slots_taken.store(++next_, std::memory_order_release);
    }

  private:
    Ring* ring_ = nullptr;
    std::size_t arena_bytes_ = 0;
    std::uint64_t next_ = 0;
};

} // namespace jali::shm
