// Two threads and one ring of shared memory, under the thread sanitizer: every envelope arrives once, in
// order, with its own data, however the two are interleaved.
#include "messaging/shm_ring.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

using namespace jali::shm;

constexpr std::size_t arena_bytes = 4096; // small: it wraps and fills all the time
constexpr int messages = 40000;

static std::size_t size_of(int k) {
    return static_cast<std::size_t>(k) * 2654435761u % 1999 + 1;
}
static std::byte byte_of(int k, std::size_t i) {
    return static_cast<std::byte>(k * 31 + i * 7);
}

int main() {
    void* memory = std::aligned_alloc(line, Ring::size(arena_bytes));
    std::memset(memory, 0, Ring::size(arena_bytes));
    auto* ring = static_cast<Ring*>(memory);

    std::thread writer([ring] {
        RingWriter out(ring, arena_bytes);
        for (int k = 0; k < messages; ++k) {
            while (!out.has_slot()) std::this_thread::yield();
            Envelope envelope;
            envelope.tag = k;
            if (k % 3 == 0) {
                envelope.kind = Kind::in_slot;
                envelope.bytes = inline_bytes;
                for (std::size_t i = 0; i < inline_bytes; ++i) envelope.data[i] = byte_of(k, i);
            } else {
                envelope.kind = Kind::in_arena;
                envelope.bytes = size_of(k);
                std::byte* room = nullptr;
                while ((room = out.reserve(envelope.bytes, envelope.details)) == nullptr)
                    std::this_thread::yield();
                for (std::size_t i = 0; i < envelope.bytes; ++i) room[i] = byte_of(k, i);
            }
            out.push(envelope);
        }
    });

    int wrong = 0;
    RingReader in(ring, arena_bytes);
    for (int k = 0; k < messages; ++k) {
        const Slot* slot;
        while ((slot = in.front()) == nullptr) std::this_thread::yield();
        Details details;
        std::memcpy(&details, slot->body, sizeof details);
        const std::byte* data = slot->kind == Kind::in_slot ? slot->body : in.at(details.position);
        wrong += slot->tag != k;
        wrong += slot->bytes != (k % 3 == 0 ? inline_bytes : size_of(k));
        for (std::size_t i = 0; i < slot->bytes; ++i) wrong += data[i] != byte_of(k, i);
        in.pop();
    }
    writer.join();
    std::free(memory);
    std::printf("%d wrong\n", wrong);
    return wrong != 0;
}
