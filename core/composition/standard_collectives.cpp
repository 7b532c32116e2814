#include "composition/standard_collectives.hpp"
#include "settings/counted.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace jali {

namespace {

using std::to_string;
using Counts = std::vector<std::int64_t>;

constexpr std::array<std::string_view, collectives> collective_names{
    "broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce", "scatter", "gather", "all_to_all",
};
constexpr std::array<std::string_view, 5> form_names{"single", "composed", "rooted", "mirrored", "pairwise"};

std::string joined(std::span<const std::string_view> names) {
    std::string text;
    for (const auto name : names) text += (text.empty() ? "" : ", ") + std::string(name);
    return text;
}

// Where each of the counted pieces begins, and at the end their sum.
Counts offsets_of(const Counts& counts, const std::string& what) {
    Counts offsets{0};
    offsets.reserve(counts.size() + 1);
    for (const std::int64_t count : counts) {
        if (count > std::numeric_limits<std::int64_t>::max() - offsets.back()) {
            throw PlanError(what + ": the counts add up to more elements than 64 bits can number");
        }
        offsets.push_back(offsets.back() + count);
    }
    return offsets;
}

Counts at_root(int ranks, int root, std::int64_t count) {
    Counts counts(ranks, 0);
    counts[root] = count;
    return counts;
}

// The common data for writing all collectives. Buffer numbers: in place, `send` and `recv` are both "data".
struct Writer {
    const CollectiveCall& call;
    int ranks;
    Composition composition;
    int send = 0, recv = 0;

    Writer(int ranks, const CollectiveCall& call) : call(call), ranks(ranks), composition(ranks, call.type) {}

    void buffers(Counts send_counts, Counts recv_counts) {
        send = composition.add_buffer("send", std::move(send_counts));
        recv = composition.add_buffer("recv", std::move(recv_counts), false);
    }
    void data(Counts counts) { send = recv = composition.add_buffer("data", std::move(counts)); }
    int work(Counts counts) { return composition.add_buffer("work", std::move(counts), false); }

    RankSet all() const { return RankSet::all(ranks); }
    RankSet others(int rank) const { return RankSet::others(ranks, rank); }
    RankSet one(int rank) const { return RankSet::one(ranks, rank); }

    void multicast(Piece from, Piece to, std::int64_t count, int root, RankSet leaves) {
        composition.multicast(from, to, count, root, std::move(leaves));
    }
    // From all ranks.
    void reduce(Piece from, Piece to, std::int64_t count, int root) {
        composition.reduce(from, to, count, all(), root, call.operation, call.user);
    }
    void fence() { composition.fence(); }
};

// Every rank's piece of `buffer` goes to the same place on all others.
void spread(Writer& w, int buffer, const Counts& offsets) {
    for (int i = 0; i < w.ranks; ++i) {
        const Piece piece{buffer, offsets[i]};
        w.multicast(piece, piece, offsets[i + 1] - offsets[i], i, w.others(i));
    }
}

void write_broadcast(Writer& w, Form form, std::int64_t count) {
    const int root = w.call.root;
    if (w.call.in_place)
        w.data({count});
    else
        w.buffers(at_root(w.ranks, root, count), {count});
    if (form == Form::single) {
        w.multicast({w.send, 0}, {w.recv, 0}, count, root, w.call.in_place ? w.others(root) : w.all());
        return;
    }
    const Counts at = near_equal_offsets(count, w.ranks);
    for (int i = 0; i < w.ranks; ++i) {
        w.multicast({w.send, at[i]}, {w.recv, at[i]}, at[i + 1] - at[i], root, w.one(i));
    }
    w.fence();
    spread(w, w.recv, at);
}

// Results of chunks wait in "work", since ranks other than the root have no other place: `recv` has no
// elements there, and `send` must not be changed.
void write_reduce(Writer& w, Form form, std::int64_t count) {
    const int root = w.call.root;
    if (w.call.in_place)
        w.data({count});
    else
        w.buffers({count}, at_root(w.ranks, root, count));
    if (form == Form::single) {
        w.reduce({w.send, 0}, {w.recv, 0}, count, root);
        return;
    }
    const Counts at = near_equal_offsets(count, w.ranks);
    Counts waiting(w.ranks);
    for (int i = 0; i < w.ranks; ++i) waiting[i] = i == root ? 0 : at[i + 1] - at[i];
    const int work = w.work(std::move(waiting));
    for (int i = 0; i < w.ranks; ++i) {
        const Piece to = i == root ? Piece{w.recv, at[i]} : Piece{work, 0};
        w.reduce({w.send, at[i]}, to, at[i + 1] - at[i], i);
    }
    w.fence();
    for (int i = 0; i < w.ranks; ++i) {
        if (i != root) w.multicast({work, 0}, {w.recv, at[i]}, at[i + 1] - at[i], i, w.one(root));
    }
}

void write_all_reduce(Writer& w, Form form, std::int64_t count) {
    const bool in_place = w.call.in_place;
    if (in_place)
        w.data({count});
    else
        w.buffers({count}, {count});
    if (form == Form::rooted) {
        w.reduce({w.send, 0}, {w.recv, 0}, count, w.call.root);
        w.fence();
        w.multicast({w.recv, 0}, {w.recv, 0}, count, w.call.root, w.others(w.call.root));
    } else if (form == Form::composed) {
        const Counts at = near_equal_offsets(count, w.ranks);
        for (int i = 0; i < w.ranks; ++i) w.reduce({w.send, at[i]}, {w.recv, at[i]}, at[i + 1] - at[i], i);
        w.fence();
        spread(w, w.recv, at);
    } else {
        // In place, others still read what a rank's own result replaces.
        const int result = in_place ? w.work({count}) : w.recv;
        for (int i = 0; i < w.ranks; ++i) w.reduce({w.send, 0}, {result, 0}, count, i);
        if (!in_place) return;
        w.fence();
        for (int i = 0; i < w.ranks; ++i) w.multicast({result, 0}, {w.recv, 0}, count, i, w.one(i));
    }
}

void write_all_gather(Writer& w, Form form, const Counts& counts, const Counts& at) {
    const int root = w.call.root;
    const std::int64_t total = at.back();
    const bool in_place = w.call.in_place;
    if (in_place)
        w.data({total});
    else
        w.buffers(counts, {total});
    for (int i = 0; i < w.ranks; ++i) {
        const Piece from{w.send, in_place ? at[i] : 0}, to{w.recv, at[i]};
        if (form == Form::single)
            w.multicast(from, to, counts[i], i, in_place ? w.others(i) : w.all());
        else if (!in_place || i != root)
            w.multicast(from, to, counts[i], i, w.one(root));
    }
    if (form == Form::single) return;
    w.fence();
    w.multicast({w.recv, 0}, {w.recv, 0}, total, root, w.others(root));
}

void write_reduce_scatter(Writer& w, Form form, const Counts& counts, const Counts& at) {
    const int root = w.call.root;
    const std::int64_t total = at.back();
    const bool in_place = w.call.in_place;
    if (in_place)
        w.data({total});
    else
        w.buffers({total}, counts);
    const auto result = [&](int i) { return Piece{w.recv, in_place ? at[i] : 0}; };
    if (form == Form::single) {
        for (int i = 0; i < w.ranks; ++i) w.reduce({w.send, at[i]}, result(i), counts[i], i);
        return;
    }
    const int sum = in_place ? w.recv : w.work(at_root(w.ranks, root, total));
    w.reduce({w.send, 0}, {sum, 0}, total, root);
    w.fence();
    for (int i = 0; i < w.ranks; ++i) {
        if (!in_place || i != root) w.multicast({sum, at[i]}, result(i), counts[i], root, w.one(i));
    }
}

// Scatter, and gather, which is the same with all arrows turned.
void write_scatter_or_gather(Writer& w, Form form, const Counts& counts, const Counts& at) {
    const int root = w.call.root;
    const bool scatters = w.call.collective == Collective::scatter, in_place = w.call.in_place;
    Counts whole = at_root(w.ranks, root, at.back());
    if (in_place) {
        Counts held = counts;
        held[root] = at.back();
        w.data(std::move(held));
    } else if (scatters) {
        w.buffers(std::move(whole), counts);
    } else {
        w.buffers(counts, std::move(whole));
    }
    for (int i = 0; i < w.ranks; ++i) {
        if (in_place && i == root) continue;
        if (form == Form::mirrored)
            w.composition.reduce({w.send, at[i]}, {w.recv, 0}, counts[i], w.one(root), i, Operation::sum);
        else if (scatters)
            w.multicast({w.send, at[i]}, {w.recv, 0}, counts[i], root, w.one(i));
        else
            w.multicast({w.send, 0}, {w.recv, at[i]}, counts[i], i, w.one(root));
    }
}

void write_all_to_all(Writer& w, Form form, const Counts& given) {
    const int p = w.ranks;
    const bool in_place = w.call.in_place;
    const auto count = [&](int i, int j) {
        return given.size() == 1 ? given[0] : given[static_cast<std::size_t>(i) * p + j];
    };
    const auto from_rank = [&](int i) {
        Counts row(p);
        for (int j = 0; j < p; ++j) row[j] = count(i, j);
        return offsets_of(row, "all_to_all");
    };
    const auto to_rank = [&](int j) {
        Counts column(p);
        for (int i = 0; i < p; ++i) column[i] = count(i, j);
        return offsets_of(column, "all_to_all");
    };
    Counts sent(p), received(p);
    for (int i = 0; i < p; ++i) {
        sent[i] = from_rank(i).back();
        received[i] = to_rank(i).back();
    }
    // All messages, those to oneself included or not; pairwise by how far they go.
    const auto write_messages = [&](bool to_oneself, const auto& write) {
        for (int distance = 0; distance < p; ++distance) {
            for (int i = 0; i < p; ++i) {
                const int j = (i + distance) % p;
                if (i != j || to_oneself) write(i, j);
            }
            const bool wrote_some = distance > 0 || to_oneself;
            if (form == Form::pairwise && wrote_some && distance + 1 < p) w.fence();
        }
    };
    if (!in_place) {
        w.buffers(std::move(sent), std::move(received));
        std::vector<Counts> from, into; // where messages begin at senders and receivers
        for (int i = 0; i < p; ++i) {
            from.push_back(from_rank(i));
            into.push_back(to_rank(i));
        }
        write_messages(true, [&](int i, int j) {
            w.multicast({w.send, from[i][j]}, {w.recv, into[j][i]}, count(i, j), i, w.one(j));
        });
        return;
    }
    for (int i = 0; i < p; ++i) {
        for (int j = 0; j < i; ++j) {
            if (count(i, j) != count(j, i)) {
                throw PlanError("all_to_all in place: rank " + to_string(i) + " sends " +
                                counted(count(i, j), "element") + " to rank " + to_string(j) +
                                " and receives " + to_string(count(j, i)) + "; both must be the same");
            }
        }
    }
    w.data(sent);
    const int work = w.work(std::move(sent));
    std::vector<Counts> at; // symmetric counts: the place of rank j's message at rank i, both ways
    for (int i = 0; i < p; ++i) at.push_back(from_rank(i));
    write_messages(false, [&](int i, int j) {
        w.multicast({w.send, at[i][j]}, {work, at[j][i]}, count(i, j), i, w.one(j));
    });
    w.fence();
    for (int i = 0; i < p; ++i) {
        w.multicast({work, 0}, {w.recv, 0}, at[i][i], i, w.one(i));
        const std::int64_t after = at[i][i + 1];
        w.multicast({work, after}, {w.recv, after}, at[i].back() - after, i, w.one(i));
    }
}

bool counts_vector(Collective collective) {
    return collective == Collective::broadcast || collective == Collective::reduce ||
           collective == Collective::all_reduce;
}

} // namespace

std::string_view name_of(Collective collective) {
    const auto number = static_cast<std::size_t>(collective);
    if (number >= std::size(collective_names)) // a cast has made it
        throw CollectiveError("there is no collective of number " + std::to_string(number));
    return collective_names[number];
}

Collective collective_of(std::string_view name) {
    std::string plain(name);
    std::replace(plain.begin(), plain.end(), '-', '_');
    for (int k = 0; k < collectives; ++k) {
        if (collective_names[k] == plain) return static_cast<Collective>(k);
    }
    throw PlanError("there is no collective '" + std::string(name) + "'; use one of " +
                    joined(collective_names));
}

std::string_view name_of(Form form) {
    return form_names[static_cast<int>(form)];
}

Form form_of(std::string_view name) {
    for (std::size_t k = 0; k < form_names.size(); ++k) {
        if (form_names[k] == name) return static_cast<Form>(k);
    }
    throw PlanError("there is no form '" + std::string(name) + "'; use one of " + joined(form_names));
}

std::int64_t payload(const CollectiveCall& call, int ranks) {
    const auto bytes = static_cast<std::int64_t>(size_of(call.type));
    if (call.counts.size() != 1) {
        std::int64_t all = 0;
        for (const std::int64_t count : call.counts) all += count;
        return bytes * all / (call.collective == Collective::all_to_all ? ranks : 1);
    }
    const bool whole = call.collective == Collective::all_reduce ||
                       call.collective == Collective::broadcast || call.collective == Collective::reduce;
    return bytes * call.counts[0] * (whole ? 1 : ranks);
}

// In place there is the larger of the two.
std::vector<std::size_t> bytes_of_buffers(const CollectiveCall& call, int ranks, int rank) {
    const auto& counts = call.counts;
    const auto count = [&](int which) { return counts[counts.size() == 1 ? 0 : which]; };
    std::int64_t part = count(rank), whole = 0;
    if (call.collective == Collective::all_to_all) { // sent and received counts
        part = 0;
        for (int other = 0; other < ranks; ++other) {
            whole += count(rank * ranks + other);
            part += count(other * ranks + rank);
        }
    } else if (call.collective == Collective::all_reduce || call.collective == Collective::broadcast ||
               call.collective == Collective::reduce) {
        part = whole = count(0);
    } else {
        for (int other = 0; other < ranks; ++other) whole += count(other);
    }
    const bool from_root = call.collective == Collective::broadcast || call.collective == Collective::scatter;
    const bool to_root = call.collective == Collective::reduce || call.collective == Collective::gather;
    const bool gathers = call.collective == Collective::all_gather || call.collective == Collective::gather;
    std::int64_t sent = gathers ? part : whole, received = gathers ? whole : part;
    if (rank != call.root && from_root) sent = 0;
    if (rank != call.root && to_root) received = 0;
    const auto bytes = [&](std::int64_t n) { return static_cast<std::size_t>(n) * size_of(call.type); };
    if (call.in_place) return {bytes(std::max(sent, received))};
    return {bytes(sent), bytes(received)};
}

bool CollectiveCall::operator==(const CollectiveCall& other) const {
    const auto others = [&](auto member) { return this->*member == other.*member; };
    return others(&CollectiveCall::collective) && others(&CollectiveCall::type) &&
           others(&CollectiveCall::counts) && others(&CollectiveCall::root) &&
           others(&CollectiveCall::operation) && others(&CollectiveCall::in_place) &&
           others(&CollectiveCall::reproducible) && others(&CollectiveCall::algorithm) &&
           (user == other.user || (user && other.user && user->is_same(*other.user)));
}

std::vector<Form> forms_of(Collective collective) {
    switch (collective) {
    case Collective::all_reduce:
        return {Form::single, Form::composed, Form::rooted};
    case Collective::scatter:
        return {Form::single, Form::mirrored};
    case Collective::gather:
        return {Form::single};
    case Collective::all_to_all:
        return {Form::single, Form::pairwise};
    default:
        return {Form::single, Form::composed};
    }
}

std::vector<std::int64_t> near_equal_offsets(std::int64_t count, int ranks) {
    Counts offsets(ranks + 1);
    for (int i = 0; i <= ranks; ++i)
        offsets[i] = count / ranks * i + std::min<std::int64_t>(i, count % ranks);
    return offsets;
}

void check_root(Collective collective, int root, int ranks) {
    if (root < 0 || root >= ranks) {
        throw PlanError(std::string(name_of(collective)) + ": root " + to_string(root) +
                        " does not exist; ranks are 0 to " + to_string(ranks - 1));
    }
}

Composition standard_for_size(Collective collective, Form form, double bytes, int root, int ranks,
                              bool even) {
    CollectiveCall call;
    call.collective = collective;
    call.type = DataType::fp32;
    call.root = root;
    const bool whole = counts_vector(collective);
    const double elements = bytes / (whole ? 4.0 : 4.0 * ranks);
    if (!(elements < 0x1p62))
        throw PlanError(std::string(name_of(collective)) + ": more elements than 64 bits can number");
    std::int64_t count = std::max<std::int64_t>(1, static_cast<std::int64_t>(elements));
    if (even && whole) count = (count + ranks - 1) / ranks * ranks;
    call.counts = {count};
    return make_composition(ranks, call, form);
}

void check_call(int ranks, const CollectiveCall& call, Form form) {
    const std::string name(name_of(call.collective));
    const auto forms = forms_of(call.collective);
    if (std::find(forms.begin(), forms.end(), form) == forms.end()) {
        std::vector<std::string_view> names;
        for (const Form other : forms) names.push_back(name_of(other));
        throw PlanError(name + " has no form '" + std::string(name_of(form)) + "'; it has " + joined(names));
    }
    check_root(call.collective, call.root, ranks);
    const std::size_t p = static_cast<std::size_t>(ranks);
    const std::size_t each = call.collective == Collective::all_to_all ? p * p
                             : counts_vector(call.collective)          ? 1
                                                                       : p;
    if (call.counts.size() != 1 && call.counts.size() != each) {
        throw PlanError(name + " of " + counted(ranks, "rank") + " takes one count" +
                        (each == 1 ? "" : " or " + to_string(each)) + ", not " +
                        to_string(call.counts.size()));
    }
    const auto negative =
        std::find_if(call.counts.begin(), call.counts.end(), [](std::int64_t n) { return n < 0; });
    if (negative != call.counts.end()) {
        throw PlanError(name + ": count " + to_string(*negative) + " of chunk " +
                        to_string(negative - call.counts.begin()) + "; counts are 0 or more");
    }
}

Composition make_composition(int ranks, const CollectiveCall& call, Form form) {
    Writer w(ranks, call);
    check_call(ranks, call, form);
    if (call.collective == Collective::all_to_all) {
        write_all_to_all(w, form, call.counts);
        return std::move(w.composition);
    }
    if (counts_vector(call.collective)) {
        const std::int64_t count = call.counts[0];
        if (call.collective == Collective::broadcast)
            write_broadcast(w, form, count);
        else if (call.collective == Collective::reduce)
            write_reduce(w, form, count);
        else
            write_all_reduce(w, form, count);
        return std::move(w.composition);
    }
    const Counts counts = call.counts.size() == 1 ? Counts(ranks, call.counts[0]) : call.counts;
    const Counts at = offsets_of(counts, std::string(name_of(call.collective)));
    if (call.collective == Collective::all_gather)
        write_all_gather(w, form, counts, at);
    else if (call.collective == Collective::reduce_scatter)
        write_reduce_scatter(w, form, counts, at);
    else
        write_scatter_or_gather(w, form, counts, at);
    return std::move(w.composition);
}

} // namespace jali

std::size_t std::hash<jali::CollectiveCall>::operator()(const jali::CollectiveCall& call) const noexcept {
    std::size_t hash = std::hash<std::string>()(call.algorithm);
    const auto mix = [&](std::uint64_t more) {
        hash = (hash ^ more) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    };
    mix(static_cast<std::uint64_t>(call.collective) | static_cast<std::uint64_t>(call.type) << 8 |
        static_cast<std::uint64_t>(call.operation) << 16 | std::uint64_t{call.in_place} << 24 |
        std::uint64_t{call.reproducible} << 25 | static_cast<std::uint64_t>(call.root) << 32);
    for (const std::int64_t count : call.counts) mix(static_cast<std::uint64_t>(count));
    return hash;
}
