#include "messaging/message_collectives.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

namespace jali {

namespace {

struct Head {
    Call call;
    std::uint64_t body; // bytes that follow
};
static_assert(sizeof(Head) == 64);

// A head and its body are one message up to this size, which every transport sends at once; a longer body is
// a message of its own.
constexpr std::size_t one_message = 8192;

using Bytes = std::span<const std::byte>;

// The messages of one call on one rank.
class Talk {
  public:
    Talk(ControlChannel& channel, Call::Kind kind, std::size_t bytes, int root, std::string_view what)
        : channel_(channel), call_(kind, ++channel.calls, bytes, root, what),
          letters_(std::make_unique_for_overwrite<Letters>()) {}

    // After an error the transport may still read or write pending messages: their memory is kept.
    ~Talk() {
        if (sends_.empty()) return;
        sends_.clear();
        static_cast<void>(letters_.release());
    }
    Talk(const Talk&) = delete;
    Talk& operator=(const Talk&) = delete;

    void send(int to, Bytes first = {}, Bytes second = {}) {
        const std::size_t body = first.size() + second.size();
        const Head head{call_, body};
        const std::size_t size = sizeof head + body;
        std::byte* const letter = letters_->sent.emplace_back(new std::byte[size]).get();
        std::memcpy(letter, &head, sizeof head);
        std::copy(first.begin(), first.end(), letter + sizeof head);
        std::copy(second.begin(), second.end(), letter + sizeof head + first.size());
        const Bytes all(letter, size);
        const std::size_t opening = size <= one_message ? size : sizeof head;
        sends_.push_back(channel_.send(all.first(opening), to));
        if (opening < size) sends_.push_back(channel_.send(all.subspan(opening), to));
    }

    // The body that this rank has or receives and forwards: one copy for all sends.
    void keep(Bytes data) { letters_->body.assign(data.begin(), data.end()); }
    void keep_from(int from) {
        const Bytes body = receive(from);
        if (body.data() != letters_->body.data()) keep(body);
    }
    void pass_on(int to) {
        const Bytes body = letters_->body;
        if (sizeof(Head) + body.size() <= one_message) return send(to, body);
        const Head head{call_, body.size()};
        std::byte* const letter = letters_->sent.emplace_back(new std::byte[sizeof head]).get();
        std::memcpy(letter, &head, sizeof head);
        sends_.push_back(channel_.send({letter, sizeof head}, to));
        sends_.push_back(channel_.send(body, to));
    }
    std::vector<std::byte> take() {
        finish();
        return std::move(letters_->body);
    }

    // The body of the next message from rank `from`, valid until the next receive.
    Bytes receive(int from) {
        const std::span<std::byte> opening(letters_->opening);
        await([&] { return channel_.receive(opening, from, true); });
        Head head;
        std::memcpy(static_cast<void*>(&head), opening.data(), sizeof head);
        if (!call_.agrees_with(head.call)) {
            const std::string cause = mismatch_text(call_, channel_.rank(), head.call, from, channel_.size());
            channel_.fail(cause);
            throw TransportError(cause);
        }
        if (sizeof head + head.body <= one_message) return opening.subspan(sizeof head, head.body);
        letters_->body.resize(head.body);
        await([&] { return channel_.receive(letters_->body, from, false); });
        return letters_->body;
    }

    Bytes receive(int from, std::size_t bytes) {
        const Bytes body = receive(from);
        check_bytes(body, bytes, from, call_.text());
        return body;
    }

    Bytes exchange(int to, Bytes first, Bytes second, int from) {
        send(to, first, second);
        return receive(from);
    }

    // With the ranks below and above.
    void greet() {
        const int ranks = channel_.size();
        send((channel_.rank() + ranks - 1) % ranks);
        receive((channel_.rank() + 1) % ranks, 0);
    }

    void finish() {
        channel_.wait(sends_, call_.text());
        sends_.clear();
    }

  private:
    struct Letters {
        std::vector<std::unique_ptr<std::byte[]>> sent;
        std::vector<std::byte> body;
        std::byte opening[one_message]; // as received
    };

    template <class Start>
    void await(Start start) {
        std::unique_ptr<Request> request = start();
        channel_.wait({&request, 1}, call_.text());
    }

    ControlChannel& channel_;
    Call call_;
    std::unique_ptr<Letters> letters_;
    std::vector<std::unique_ptr<Request>> sends_;
};

// round(k-th distance 1, 2, 4, ..., destination, source)
template <class Round>
void for_distances(const ControlChannel& channel, Round round) {
    const int ranks = channel.size(), rank = channel.rank();
    for (int far = 1; far < ranks; far *= 2) round(far, (rank - far + ranks) % ranks, (rank + far) % ranks);
}

} // namespace

// After round k each rank has proof of the arrival of 2^(k+1) ranks.
void barrier_by_messages(ControlChannel& channel, std::string_view what) {
    Talk talk(channel, Call::barrier, 0, 0, what);
    for_distances(channel, [&](int, int to, int from) { talk.exchange(to, {}, {}, from); });
    talk.finish();
}

// Recursive doubling among the largest power of two of ranks; each further rank is represented by one of
// them.
void all_reduce_sum_by_messages(ControlChannel& channel, std::span<std::int64_t> values,
                                std::string_view what) {
    const int rank = channel.rank(), ranks = channel.size();
    if (ranks == 1) return;
    Talk talk(channel, Call::sum, values.size_bytes(), 0, what);
    int half = 1;
    while (2 * half <= ranks) half *= 2;
    const Bytes mine = std::as_bytes(values);
    const auto add = [&](Bytes theirs) { // of equal length: the calls agree
        for (std::size_t k = 0; k < values.size(); ++k) {
            std::int64_t value;
            std::memcpy(&value, theirs.data() + k * sizeof value, sizeof value);
            values[k] = static_cast<std::int64_t>(static_cast<std::uint64_t>(values[k]) +
                                                  static_cast<std::uint64_t>(value)); // wraps
        }
    };
    if (ranks > 2) talk.greet(); // two ranks are neighbours anyway
    if (rank >= half) {
        talk.send(rank - half, mine);
        const Bytes total = talk.receive(rank - half, mine.size());
        std::memcpy(values.data(), total.data(), total.size());
        return talk.finish();
    }
    const bool speaks = rank + half < ranks;
    if (speaks) add(talk.receive(rank + half, mine.size()));
    for (int far = 1; far < half; far *= 2) {
        talk.send(rank ^ far, mine);
        add(talk.receive(rank ^ far, mine.size()));
    }
    if (speaks) talk.send(rank + half, mine);
    talk.finish();
}

// Bruck: before the round with distance d a rank holds what ranks rank, rank + 1, ..., rank + d - 1 gave. A
// message is the sizes of its parts, then the parts.
std::vector<std::vector<std::byte>>
all_gather_by_messages(ControlChannel& channel, std::span<const std::byte> mine, std::string_view what) {
    const int ranks = channel.size(), rank = channel.rank();
    Talk talk(channel, Call::gather, mine.size(), 0, what);
    std::vector<std::uint64_t> sizes{mine.size()}; // sizes[k] is that of rank + k
    std::vector<std::byte> all(mine.begin(), mine.end());
    for_distances(channel, [&](int far, int to, int from) {
        const auto count = static_cast<std::size_t>(std::min(far, ranks - far));
        const std::size_t bytes = std::accumulate(
            sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(count), std::size_t{0});
        const Bytes theirs =
            talk.exchange(to, std::as_bytes(std::span(sizes).first(count)), Bytes(all).first(bytes), from);
        const std::size_t begin = std::min(count * sizeof sizes[0], theirs.size());
        sizes.resize(sizes.size() + count, 0);
        std::memcpy(sizes.data() + sizes.size() - count, theirs.data(), begin);
        check_bytes(theirs,
                    std::accumulate(sizes.end() - static_cast<std::ptrdiff_t>(count), sizes.end(), begin),
                    from, "an all-gather");
        all.insert(all.end(), theirs.begin() + static_cast<std::ptrdiff_t>(begin), theirs.end());
    });
    talk.finish();
    std::vector<std::vector<std::byte>> result(ranks);
    auto at = all.begin();
    for (int k = 0; k < ranks; ++k) {
        const auto end = at + static_cast<std::ptrdiff_t>(sizes[k]);
        result[(rank + k) % ranks].assign(at, end);
        at = end;
    }
    return result;
}

// Counted from the root, rank r receives from r without its lowest bit and sends to r + 1, r + 2, ... below
// that bit.
std::vector<std::byte> broadcast_by_messages(ControlChannel& channel, std::span<const std::byte> data,
                                             int root, std::string_view what) {
    const int ranks = channel.size();
    const int relative_rank = (channel.rank() - root + ranks) % ranks;
    const auto at = [&](int there) { return (there + root) % ranks; };
    if (ranks == 1) return {data.begin(), data.end()};
    Talk talk(channel, Call::broadcast, relative_rank == 0 ? data.size() : 0, root, what);
    if (relative_rank == 0) talk.keep(data);
    if (ranks == 2) { // two ranks are neighbours anyway
        const int other = 1 - channel.rank();
        if (relative_rank == 0) {
            talk.pass_on(other);
            talk.receive(other, 0);
        } else {
            talk.send(other);
            talk.keep_from(other);
        }
        return talk.take();
    }
    talk.greet();
    int bit = 1;
    while (bit < ranks && (relative_rank & bit) == 0) bit *= 2;
    if (relative_rank != 0) talk.keep_from(at(relative_rank - bit));
    for (bit /= 2; bit > 0; bit /= 2)
        if (relative_rank + bit < ranks) talk.pass_on(at(relative_rank + bit));
    return talk.take();
}

} // namespace jali
