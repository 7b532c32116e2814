// Schedules become a transfer graph.
#include "simulation/transfer_graph.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <unordered_map>

namespace jali {

namespace {

using Node = TransferGraph::Node;
using Kind = TransferGraph::Kind;

struct Key {
    std::uint64_t a, b, c;
    bool operator==(const Key&) const = default;
};

struct KeyHash {
    std::size_t operator()(const Key& key) const {
        std::uint64_t h = key.a * 0x9e3779b97f4a7c15ull;
        h = (h ^ (h >> 29) ^ key.b) * 0xbf58476d1ce4e5b9ull;
        h = (h ^ (h >> 32) ^ key.c) * 0x94d049bb133111ebull;
        return h ^ (h >> 31);
    }
};

std::uint64_t pack(std::int32_t high, std::int32_t low) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(high)) << 32 |
           static_cast<std::uint32_t>(low);
}

double region_bytes(const Region& region) {
    return static_cast<double>(region.bytes);
}

} // namespace

TransferGraph::TransferGraph(int ranks, bool coalesce) : ranks_(ranks), coalesce_(coalesce) {
}

int TransferGraph::library_number(const std::string& name) {
    const auto found = std::find(libraries_.begin(), libraries_.end(), name);
    if (found != libraries_.end()) return static_cast<int>(found - libraries_.begin());
    libraries_.push_back(name);
    return static_cast<int>(libraries_.size()) - 1;
}

void TransferGraph::add(int rank, const Schedule& schedule) {
    std::vector<int> library_of;
    for (const std::string& name : schedule.libraries()) library_of.push_back(library_number(name));

    const int first = nodes();
    std::vector<int> first_of; // per step: the node of its part 0; parts of a kernel follow each other
    first_of.reserve(schedule.steps().size());
    std::unordered_map<Key, int, KeyHash> known;
    std::unordered_map<Key, std::int64_t, KeyHash>
        sent;                   // messages so far, per direction, peer, library and tag
    std::vector<int> last_need; // per node of this rank: its last dependent, so that no need is listed twice
    std::vector<std::pair<int, int>> needs; // (node, its predecessor)

    const auto new_node = [&](Node node) {
        node.rank = rank;
        nodes_.push_back(node);
        return nodes() - 1;
    };
    const auto coalesced = [&](Node node) {
        if (!coalesce_ || node.mark.stage < 0) return new_node(node);
        const Key key{static_cast<std::uint64_t>(node.kind) << 16 | static_cast<std::uint16_t>(node.library),
                      pack(node.mark.stage, node.mark.chunk),
                      pack(static_cast<std::int32_t>(node.order), node.peer)};
        const auto [at, inserted] = known.try_emplace(key, -1);
        if (inserted)
            at->second = new_node(node);
        else
            nodes_[at->second].bytes += node.bytes;
        return at->second;
    };
    const auto message = [&](Kind kind, int peer, int library, int tag, const Region& region, Mark mark) {
        if (peer < 0 || peer >= ranks_) {
            throw ScheduleError("rank " + std::to_string(rank) + " has a message with rank " +
                                std::to_string(peer) + " of " + std::to_string(ranks_));
        }
        Node node{
            kind, static_cast<std::int16_t>(library_of.at(library)), rank, peer, mark, region_bytes(region),
            0};
        if (!coalesce_ || mark.stage < 0) {
            const Key key{static_cast<std::uint64_t>(kind), pack(peer, tag),
                          static_cast<std::uint64_t>(library)};
            node.order = static_cast<std::int64_t>(pack(tag, static_cast<std::int32_t>(sent[key]++)));
        }
        return coalesced(node);
    };

    // Copies out of messages wait for them, copies into messages of the same stage and chunk must not.
    const auto unpacks = [&](const Step& step) {
        for (const Port& need : step.parts[0].needs) {
            const Step& before = schedule.steps()[need.step];
            if (std::holds_alternative<Receive>(before.action) && before.mark.stage == step.mark.stage &&
                before.mark.chunk == step.mark.chunk)
                return 1;
        }
        return 0;
    };
    for (const Step& step : schedule.steps()) {
        int node = -1;
        if (const auto* receive = std::get_if<Receive>(&step.action)) {
            node = message(Kind::receive, receive->from, receive->library, receive->tag, receive->into,
                           step.mark);
        } else if (const auto* send = std::get_if<Send>(&step.action)) {
            node = message(Kind::send, send->to, send->library, send->tag, send->from, step.mark);
        } else if (const auto* copy = std::get_if<Copy>(&step.action)) {
            double bytes = 0;
            for (const CopySpec& spec : copy->specs) bytes += 2 * region_bytes(spec.to);
            node = coalesced({Kind::copy, 0, rank, -1, step.mark, bytes, unpacks(step)});
        } else if (const auto* reduce = std::get_if<Reduce>(&step.action)) {
            double bytes = 0;
            for (const ReduceSpec& spec : reduce->specs)
                bytes += region_bytes(spec.into) * static_cast<double>(spec.from.size() + 1);
            node = coalesced({Kind::reduction, 0, rank, -1, step.mark, bytes, 0});
        } else {
            node = new_node({});
            for (std::size_t k = 1; k < step.parts.size(); ++k) new_node({});
        }
        first_of.push_back(node);
    }
    for (std::size_t k = 0; k < first_of.size(); ++k) {
        const Step& step = schedule.steps()[k];
        for (std::size_t part = 0; part < step.parts.size(); ++part) {
            const int node = first_of[k] + static_cast<int>(part);
            if (part > 0) needs.emplace_back(node, node - 1);
            for (const Port& port : step.parts[part].needs) {
                const int needed = first_of.at(port.step) + port.part;
                if (needed != node) needs.emplace_back(node, needed);
            }
        }
    }
    // Needs by node: a counting sort, then each kept once.
    const int count = nodes() - first;
    std::vector<std::int32_t> begin(count + 1, 0), sorted(needs.size());
    for (const auto& need : needs) ++begin[need.first - first + 1];
    for (int k = 0; k < count; ++k) begin[k + 1] += begin[k];
    std::vector<std::int32_t> at(begin.begin(), begin.end() - 1);
    for (const auto& [node, needed] : needs) sorted[at[node - first]++] = needed;
    last_need.assign(count, -1);
    for (int k = 0; k < count; ++k) {
        for (int j = begin[k]; j < begin[k + 1]; ++j) {
            if (last_need[sorted[j] - first] == k) continue;
            last_need[sorted[j] - first] = k;
            needs_.push_back(sorted[j]);
        }
        needs_begin_.push_back(static_cast<std::int64_t>(needs_.size()));
    }
}

void TransferGraph::begin_rank(int rank, const std::vector<std::string>& libraries) {
    rank_ = rank;
    library_of_.clear();
    for (const std::string& name : libraries) library_of_.push_back(library_number(name));
}

void TransferGraph::add_node(Node node, const std::vector<int>& needs, int first) {
    node.rank = rank_;
    if (node.peer >= 0) node.library = static_cast<std::int16_t>(library_of_[node.library]);
    nodes_.push_back(node);
    for (const int need : needs) needs_.push_back(first + need);
    needs_begin_.push_back(static_cast<std::int64_t>(needs_.size()));
}

std::optional<double> TransferGraph::difference(const TransferGraph& other, const std::vector<int>& peer_of,
                                                bool only_messages) const {
    if (!only_messages && (nodes() != other.nodes() || needs_.size() != other.needs_.size()))
        return std::nullopt;
    using NodeKey = std::tuple<int, int, int, int, std::string, std::int64_t>;
    const auto sorted_keys = [&](const TransferGraph& graph, const std::vector<int>* peers) {
        std::vector<std::pair<NodeKey, int>> keys; // and the number of the node
        for (int k = 0; k < graph.nodes(); ++k) {
            const Node& node = graph.nodes_[k];
            const bool message = node.peer >= 0;
            if (only_messages && !message) continue;
            keys.push_back({{static_cast<int>(node.kind), node.mark.stage, node.mark.chunk,
                             message && peers != nullptr ? (*peers)[node.peer] : node.peer,
                             message ? graph.libraries_[node.library] : "", node.order},
                            k});
        }
        std::sort(keys.begin(), keys.end());
        return keys;
    };
    const auto mine = sorted_keys(*this, &peer_of), theirs = sorted_keys(other, nullptr);
    if (mine.size() != theirs.size()) return std::nullopt;
    std::vector<int> number_of(other.nodes()); // theirs -> mine
    double most = 0;
    for (std::size_t k = 0; k < mine.size(); ++k) {
        if (mine[k].first != theirs[k].first) return std::nullopt;
        const int i = mine[k].second, j = theirs[k].second;
        const double a = nodes_[i].bytes, b = other.nodes_[j].bytes;
        if (a != b) most = std::max(most, std::abs(a - b) / std::max(a, b));
        number_of[j] = i;
    }
    if (only_messages) return most;
    std::vector<int> a, b;
    for (int j = 0; j < nodes(); ++j) {
        const int i = number_of[j];
        a.assign(needs_.begin() + needs_begin_[i], needs_.begin() + needs_begin_[i + 1]);
        b.clear();
        for (auto e = other.needs_begin_[j]; e < other.needs_begin_[j + 1]; ++e)
            b.push_back(number_of[other.needs_[e]]);
        std::sort(a.begin(), a.end());
        std::sort(b.begin(), b.end());
        if (a != b) return std::nullopt;
    }
    return most;
}

int TransferGraph::add_transfer(int from, int to, double bytes, const std::string& library, Mark mark,
                                const std::vector<int>& needs) {
    if (from < 0 || to < 0 || from >= ranks_ || to >= ranks_ || from == to) {
        throw ScheduleError("a transfer from rank " + std::to_string(from) + " to rank " +
                            std::to_string(to) + " of " + std::to_string(ranks_));
    }
    const int number = library_number(library);
    nodes_.push_back({Kind::send, static_cast<std::int16_t>(number), from, to, mark, bytes, -1});
    needs_.insert(needs_.end(), needs.begin(), needs.end());
    needs_begin_.push_back(static_cast<std::int64_t>(needs_.size()));
    return nodes() - 1;
}

int TransferGraph::add_work(int rank, double bytes, bool reduction, Mark mark,
                            const std::vector<int>& needs) {
    return add_own(reduction ? Kind::reduction : Kind::copy, rank, bytes, mark, needs);
}

int TransferGraph::add_kernel(int rank, double seconds, Mark mark, const std::vector<int>& needs) {
    return add_own(Kind::kernel, rank, seconds, mark, needs);
}

int TransferGraph::add_delay(int rank, double seconds, Mark mark, const std::vector<int>& needs) {
    return add_own(Kind::delay, rank, seconds, mark, needs);
}

int TransferGraph::add_own(Kind kind, int rank, double amount, Mark mark, const std::vector<int>& needs) {
    if (rank < 0 || rank >= ranks_)
        throw ScheduleError("rank " + std::to_string(rank) + " of " + std::to_string(ranks_) + " works");
    nodes_.push_back({kind, 0, rank, -1, mark, amount, 0});
    needs_.insert(needs_.end(), needs.begin(), needs.end());
    needs_begin_.push_back(static_cast<std::int64_t>(needs_.size()));
    return nodes() - 1;
}

void TransferGraph::finish(const Symmetry* symmetry, double slack) {
    symmetry_ = symmetry;
    joined_.resize(nodes());
    if (symmetry != nullptr) shift_.assign(nodes(), 0);
    std::unordered_map<Key, int, KeyHash> sends;
    sends.reserve(nodes_.size() / 2);
    const auto key_of = [](const Node& node, int from, int to) {
        return Key{pack(from, to), pack(node.mark.stage, node.mark.chunk),
                   static_cast<std::uint64_t>(node.order) * 64 + static_cast<std::uint64_t>(node.library)};
    };
    for (int k = 0; k < nodes(); ++k) {
        joined_[k] = k;
        const Node& node = nodes_[k];
        if (node.kind == Kind::send && node.order >= 0) sends.emplace(key_of(node, node.rank, node.peer), k);
    }
    const auto lonely = [](const Node& node, const char* what, const char* other) {
        return ScheduleError("rank " + std::to_string(node.rank) + what + std::to_string(node.peer) +
                             " in stage " + std::to_string(node.mark.stage) + ", chunk " +
                             std::to_string(node.mark.chunk) + ", which " + other);
    };
    for (int k = 0; k < nodes(); ++k) {
        const Node& node = nodes_[k];
        if (node.kind != Kind::receive) continue;
        int from = node.peer, to = node.rank;
        if (symmetry != nullptr) { // the send that represents it
            shift_[k] = symmetry->shift_of(from);
            from -= shift_[k];
            to = symmetry->shifted_back(to, shift_[k]);
        }
        const auto found = sends.find(key_of(node, from, to));
        if (found == sends.end()) throw lonely(node, " receives from rank ", "does not send it");
        const Node& send = nodes_[found->second];
        if (std::abs(send.bytes - node.bytes) > slack * std::max(send.bytes, node.bytes)) {
            throw lonely(node, " receives from rank ",
                         ("sends " + std::to_string(send.bytes) + " bytes, not " + std::to_string(node.bytes))
                             .c_str());
        }
        joined_[k] = found->second;
        sends.erase(found);
    }
    if (!sends.empty()) throw lonely(nodes_[sends.begin()->second], " sends to rank ", "does not receive it");
}

} // namespace jali
