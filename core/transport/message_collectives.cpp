#include "transport/message_collectives.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace jali {

namespace {

std::span<std::byte> writable(std::span<std::int64_t> values) {
    return std::as_writable_bytes(values);
}

void exchange(Mail& mail, std::span<const std::byte> data, int to, std::span<std::byte> into, int from,
              const char* what) {
    std::array<std::unique_ptr<Request>, 2> both{mail.receive(into, from), mail.send(data, to)};
    mail.wait(both, what);
}

void send(Mail& mail, std::span<const std::byte> data, int to, const char* what) {
    std::unique_ptr<Request> request = mail.send(data, to);
    mail.wait({&request, 1}, what);
}

void receive(Mail& mail, std::span<std::byte> data, int from, const char* what) {
    std::unique_ptr<Request> request = mail.receive(data, from);
    mail.wait({&request, 1}, what);
}

} // namespace

// After round k each rank knows of the arrival of 2^(k+1) ranks.
void barrier_by_messages(Mail& mail) {
    const int ranks = mail.size();
    for (int far = 1; far < ranks; far *= 2)
        exchange(mail, {}, (mail.rank() + far) % ranks, {}, (mail.rank() - far + ranks) % ranks, "a barrier");
}

// Recursive doubling among the largest power of two of ranks; each rank beyond has one of them speak for it.
void all_reduce_sum_by_messages(Mail& mail, std::span<std::int64_t> values) {
    constexpr const char* what = "a sum";
    const int rank = mail.rank();
    int half = 1;
    while (2 * half <= mail.size()) half *= 2;
    std::vector<std::int64_t> theirs(values.size());
    const auto add = [&] {
        for (std::size_t k = 0; k < values.size(); ++k)
            values[k] = static_cast<std::int64_t>(static_cast<std::uint64_t>(values[k]) +
                                                  static_cast<std::uint64_t>(theirs[k])); // wraps
    };
    if (rank >= half) {
        send(mail, std::as_bytes(values), rank - half, what);
        return receive(mail, writable(values), rank - half, what);
    }
    const bool speaks = rank + half < mail.size();
    if (speaks) {
        receive(mail, writable(theirs), rank + half, what);
        add();
    }
    for (int far = 1; far < half; far *= 2) {
        exchange(mail, std::as_bytes(values), rank ^ far, writable(theirs), rank ^ far, what);
        add();
    }
    if (speaks) send(mail, std::as_bytes(values), rank + half, what);
}

// Bruck: before the round with distance d a rank holds what ranks rank, rank + 1, ..., rank + d - 1 gave.
std::vector<std::vector<std::byte>> all_gather_by_messages(Mail& mail, std::span<const std::byte> mine) {
    constexpr const char* what = "an all-gather";
    const int ranks = mail.size(), rank = mail.rank();
    std::vector<std::int64_t> sizes(ranks); // sizes[k] is that of rank + k
    sizes[0] = static_cast<std::int64_t>(mine.size());
    const auto rounds = [&](auto&& round) {
        for (int far = 1; far < ranks; far *= 2)
            round(far, std::min(far, ranks - far), (rank - far + ranks) % ranks, (rank + far) % ranks);
    };
    rounds([&](int far, int count, int to, int from) {
        exchange(mail, std::as_bytes(std::span(sizes).first(count)), to,
                 writable(std::span(sizes).subspan(far, count)), from, what);
    });
    std::vector<std::size_t> starts(ranks + 1, 0);
    for (int k = 0; k < ranks; ++k) starts[k + 1] = starts[k] + static_cast<std::size_t>(sizes[k]);
    std::vector<std::byte> all(starts[ranks]);
    std::copy(mine.begin(), mine.end(), all.begin());
    rounds([&](int far, int count, int to, int from) {
        const std::span<std::byte> bytes(all);
        exchange(mail, bytes.first(starts[count]), to,
                 bytes.subspan(starts[far], starts[far + count] - starts[far]), from, what);
    });
    std::vector<std::vector<std::byte>> result(ranks);
    for (int k = 0; k < ranks; ++k)
        result[(rank + k) % ranks].assign(all.begin() + static_cast<std::ptrdiff_t>(starts[k]),
                                          all.begin() + static_cast<std::ptrdiff_t>(starts[k + 1]));
    return result;
}

// Counted from the root, rank r hears from r without its lowest bit and tells r + 1, r + 2, ... below that
// bit.
std::vector<std::byte> broadcast_by_messages(Mail& mail, std::span<const std::byte> data, int root) {
    constexpr const char* what = "a broadcast";
    const int ranks = mail.size();
    const int place = (mail.rank() - root + ranks) % ranks;
    const auto at = [&](int there) { return (there + root) % ranks; };
    std::vector<std::byte> result;
    if (place == 0) result.assign(data.begin(), data.end());
    int bit = 1;
    while (bit < ranks && (place & bit) == 0) bit *= 2;
    std::int64_t size = static_cast<std::int64_t>(result.size());
    if (place != 0) {
        receive(mail, writable({&size, 1}), at(place - bit), what);
        result.resize(static_cast<std::size_t>(size));
        receive(mail, result, at(place - bit), what);
    }
    std::vector<std::unique_ptr<Request>> sends;
    for (bit /= 2; bit > 0; bit /= 2) {
        if (place + bit >= ranks) continue;
        sends.push_back(mail.send(std::as_bytes(std::span(&size, 1)), at(place + bit)));
        sends.push_back(mail.send(result, at(place + bit)));
    }
    mail.wait(sends, what);
    return result;
}

} // namespace jali
