#include "messaging/call.hpp"
#include "messaging/communicator.hpp"
#include "settings/counted.hpp"

#include <algorithm>
#include <cstring>

namespace jali {

Call::Call(Kind kind, std::uint64_t number, std::size_t bytes, int root, std::string_view text)
    : number(number), bytes(bytes), kind(kind), root(root) {
    std::copy_n(text.data(), std::min(text.size(), sizeof what - 1), what);
}

bool Call::agrees_with(const Call& other) const {
    return number == other.number && kind == other.kind && root == other.root &&
           (kind != sum || bytes == other.bytes) && std::memcmp(what, other.what, sizeof what) == 0;
}

std::string Call::text() const {
    const std::string purpose(what, strnlen(what, sizeof what));
    const std::string after = purpose.empty() ? "" : std::string(" (").append(purpose).append(")");
    switch (kind) {
    case barrier:
        return purpose.empty() ? "a barrier" : purpose;
    case sum: {
        const std::uint64_t numbers = bytes / sizeof(std::int64_t);
        return "a sum of " + std::to_string(numbers) + (numbers == 1 ? " number" : " numbers") + after;
    }
    case gather:
        return purpose.empty() ? "an all-gather" : purpose;
    case broadcast:
        return "a broadcast from rank " + std::to_string(root) + after;
    }
    return "a call of another kind";
}

std::string mismatch_text(const Call& mine, int rank, const Call& theirs, int other, int ranks) {
    const bool same = mine.number == theirs.number;
    const auto number = [](const Call& call) { return " (its call " + std::to_string(call.number) + ")"; };
    return "ranks disagree: rank " + std::to_string(rank) + " came to " + mine.text() +
           (same ? "" : number(mine)) + ", rank " + std::to_string(other) + " to " + theirs.text() +
           (same ? " (call " + std::to_string(mine.number) + " of these " + counted(ranks, "rank") + ")"
                 : number(theirs));
}

void check_bytes(std::span<const std::byte> given, std::size_t wanted, int from, std::string_view what) {
    if (given.size() == wanted) return;
    throw TransportError("rank " + std::to_string(from) + " gave " + std::to_string(given.size()) +
                         " bytes to " + std::string(what) + ", not " + std::to_string(wanted));
}

} // namespace jali
