#include "simulation/plan_graph.hpp"

#include "composition/plan_writer.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace jali {

namespace {

using Node = TransferGraph::Node;
using Kind = TransferGraph::Kind;

// The last writer and the readers since, by intervals of one buffer.
class Uses {
  public:
    void read(std::size_t begin, std::size_t end, int step, std::vector<int>& needs) {
        for (std::size_t covered = begin; covered < end;) {
            auto at = reaching(covered);
            if (at == parts_.end() || at->first >= end) {
                parts_.emplace_hint(at, covered, Part{end, -1, {step}});
                return;
            }
            if (at->first > covered) {
                const std::size_t next = at->first;
                parts_.emplace_hint(at, covered, Part{next, -1, {step}});
                covered = next;
                continue;
            }
            cut_after(at, end);
            Part& part = at->second;
            if (part.writer >= 0 && part.writer != step) needs.push_back(part.writer);
            if (part.readers.empty() || part.readers.back() != step) part.readers.push_back(step);
            covered = part.end;
        }
    }

    void write(std::size_t begin, std::size_t end, int step, std::vector<int>& needs) {
        if (begin == end) return;
        auto at = reaching(begin);
        const auto first = at;
        for (; at != parts_.end() && at->first < end; ++at) {
            cut_after(at, end);
            const Part& part = at->second;
            // Readers ran after the writer.
            const bool unread = part.readers.empty() || part.readers.front() == step;
            if (part.writer >= 0 && part.writer != step && unread) needs.push_back(part.writer);
            for (const int reader : part.readers)
                if (reader != step) needs.push_back(reader);
        }
        parts_.emplace_hint(parts_.erase(first, at), begin, Part{end, step, {}});
    }

  private:
    struct Part {
        std::size_t end;
        int writer; // -1: nobody yet
        std::vector<int> readers;
    };
    using Parts = std::map<std::size_t, Part>;

    // The first part that ends after `begin`, cut so that it does not begin before it.
    Parts::iterator reaching(std::size_t begin) {
        auto at = parts_.upper_bound(begin);
        if (at == parts_.begin()) return at;
        const auto before = std::prev(at);
        if (before->second.end <= begin) return at;
        if (before->first == begin) return before;
        cut_after(before, begin);
        return std::next(before);
    }

    void cut_after(Parts::iterator at, std::size_t where) {
        if (at->second.end <= where) return;
        Part rest = at->second;
        at->second.end = where;
        parts_.emplace_hint(std::next(at), where, std::move(rest));
    }

    Parts parts_;
};

// The work of one chunk of one rank: nodes by stage, their needs, the messages in each.
class ChunkSink {
  public:
    static constexpr bool named = false;

    int add_buffer(const std::string&, std::size_t, bool) {
        buffers_.emplace_back();
        return static_cast<int>(buffers_.size()) - 1;
    }

    int add_temporary(std::size_t) {
        temporaries_.emplace_back();
        return -static_cast<int>(temporaries_.size());
    }

    // PlanGraph handles repeated tags, since it has all chunks.
    void add_need(int, int) {}

    template <class Action>
    int add(const std::string&, Action&& action, const Mark& mark) {
        using A = std::remove_cvref_t<Action>;
        const int step = static_cast<int>(node_of_.size());
        needs_.clear();
        Node node;
        node.mark = mark;
        if constexpr (std::is_same_v<A, Receive>) {
            node.kind = Kind::receive;
            node.peer = action.from;
            node.library = static_cast<std::int16_t>(action.library);
            node.bytes = static_cast<double>(action.into.bytes);
            write(action.into, step);
        } else if constexpr (std::is_same_v<A, Send>) {
            node.kind = Kind::send;
            node.peer = action.to;
            node.library = static_cast<std::int16_t>(action.library);
            node.bytes = static_cast<double>(action.from.bytes);
            read(action.from, step);
        } else if constexpr (std::is_same_v<A, Copy>) {
            node.kind = Kind::copy;
            for (const CopySpec& spec : action.specs) {
                node.bytes += 2 * static_cast<double>(spec.to.bytes);
                read(spec.from, step);
            }
            for (const CopySpec& spec : action.specs) write(spec.to, step);
            for (const int need : needs_) { // of this chunk, as all here
                const Node& before = of_nodes[node_of_[need]].node;
                if (before.kind == Kind::receive && before.mark.stage == mark.stage) node.order = 1;
            }
        } else {
            static_assert(std::is_same_v<A, Reduce>);
            node.kind = Kind::reduction;
            for (const ReduceSpec& spec : action.specs) {
                node.bytes +=
                    static_cast<double>(spec.into.bytes) * static_cast<double>(spec.from.size() + 1);
                for (const Region& from : spec.from) read(from, step);
            }
            for (const ReduceSpec& spec : action.specs) write(spec.into, step);
        }
        const int to = node_for(node);
        node_of_.push_back(to);
        ++of_nodes[to].messages;
        for (const int need : needs_)
            if (const int from = node_of_[need]; from != to) edges_.emplace_back(to, from);
        return step;
    }

    struct NodeOfChunk {
        Node node;
        int messages = 0; // steps, to be exact
        std::vector<int> needs;
    };

    // Lists each need once and finds where stages begin.
    void finish(int stages) {
        std::sort(edges_.begin(), edges_.end());
        edges_.erase(std::unique(edges_.begin(), edges_.end()), edges_.end());
        for (const auto& [to, from] : edges_) of_nodes[to].needs.push_back(from);
        first_of_stage.assign(stages + 1, 0);
        for (const auto& entry : of_nodes) ++first_of_stage[entry.node.mark.stage + 1];
        for (int k = 0; k < stages; ++k) first_of_stage[k + 1] += first_of_stage[k];
    }

    std::vector<NodeOfChunk> of_nodes; // by stage, then in the order of their first steps
    std::vector<int> first_of_stage;   // one more at the end

  private:
    void read(const Region& region, int step) {
        uses(region).read(region.offset, region.offset + region.bytes, step, needs_);
    }
    void write(const Region& region, int step) {
        uses(region).write(region.offset, region.offset + region.bytes, step, needs_);
    }
    Uses& uses(const Region& region) {
        return region.buffer < 0 ? temporaries_[-1 - region.buffer] : buffers_[region.buffer];
    }

    int node_for(const Node& node) {
        if (node.mark.stage != stage_) {
            stage_ = node.mark.stage;
            known_.clear();
        }
        const auto [at, inserted] = known_.try_emplace({node.kind, node.library, node.peer, node.order}, 0);
        if (inserted) {
            at->second = static_cast<int>(of_nodes.size());
            of_nodes.push_back({node, 0, {}});
        } else {
            of_nodes[at->second].node.bytes += node.bytes;
        }
        return at->second;
    }

    int stage_ = -1;
    std::vector<Uses> buffers_, temporaries_;
    std::vector<int> node_of_, needs_;
    std::vector<std::pair<int, int>> edges_;
    std::map<std::tuple<Kind, std::int16_t, std::int32_t, std::int64_t>, int> known_; // of this stage
};

} // namespace

PlanGraph::PlanGraph(const Composition& composition, const PlanParameters& parameters)
    : composition_(composition), parameters_(parameters),
      routes_((check_parameters(composition, parameters), parameters)), libraries_(parameters.libraries) {
    if (libraries_.empty()) libraries_ = {""};
    apart_ = parameters.scratch_limit == std::numeric_limits<std::size_t>::max();
    if (parameters.depth > 1 && apart_) {
        // Pieces of the same elements must be the same pieces.
        std::vector<std::tuple<int, std::int64_t, std::int64_t>> pieces; // buffer, begin, end
        for (const auto& step : composition.steps())
            for (const Primitive& primitive : step)
                for (const Piece& piece : {primitive.from, primitive.to})
                    pieces.emplace_back(piece.buffer, piece.offset, piece.offset + primitive.count);
        std::sort(pieces.begin(), pieces.end());
        pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
        for (std::size_t k = 1; k < pieces.size() && apart_; ++k)
            apart_ = std::get<0>(pieces[k]) != std::get<0>(pieces[k - 1]) ||
                     std::get<1>(pieces[k]) >= std::get<2>(pieces[k - 1]);
    }
    if (apart_) find_kinds();
}

// Chunks are of one kind if for every count that occurs they have pieces of one size, and lie alike at the
// ends.
void PlanGraph::find_kinds() {
    std::vector<std::int64_t> counts;
    for (const auto& step : composition_.steps())
        for (const Primitive& primitive : step)
            if (counts.empty() || counts.back() != primitive.count) counts.push_back(primitive.count);
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    std::map<std::vector<std::int64_t>, int> known;
    std::vector<std::int64_t> kind;
    for (int chunk = 0; chunk < parameters_.depth; ++chunk) {
        kind.clear();
        for (const std::int64_t count : counts) {
            const auto [begin, end] = routes_.piece(count, chunk, 0, -1);
            kind.push_back(4 * (end - begin) + 2 * (begin == 0) + (end == count));
        }
        const auto [at, inserted] = known.try_emplace(kind, static_cast<int>(chunks_.size()));
        if (inserted) chunks_.push_back(chunk);
        kind_of_.push_back(at->second);
    }
}

static std::vector<ChunkSink> written(const Composition& composition, const PlanParameters& parameters,
                                      const Routes& routes, const std::vector<int>& chunks, int rank) {
    std::vector<StepOfRank> parts;
    for (const auto& step : composition.steps())
        parts.push_back(step_of_rank(composition, parameters, routes, step, rank));
    const int stages = routes.stages() * static_cast<int>(parts.size());
    std::vector<ChunkSink> sinks;
    for (const int chunk : chunks) {
        ChunkSink& sink = sinks.emplace_back();
        PlanWriter(composition, parameters, routes, rank, sink).write_chunk(parts, chunk);
        sink.finish(stages);
    }
    return sinks;
}

void PlanGraph::add_kinds(TransferGraph& graph, int rank) const {
    const auto sinks = written(composition_, parameters_, routes_, chunks_, rank);
    graph.begin_rank(rank, libraries_);
    for (const ChunkSink& sink : sinks) {
        const int first = graph.nodes();
        for (const auto& entry : sink.of_nodes) graph.add_node(entry.node, entry.needs, first);
    }
}

void PlanGraph::add(TransferGraph& graph, int rank) const {
    if (!apart_) {
        graph.add(rank, plan_rank(composition_, parameters_, rank));
        return;
    }
    const auto sinks = written(composition_, parameters_, routes_, chunks_, rank);
    const int depth = parameters_.depth, stages = routes_.stages();
    const int steps = static_cast<int>(composition_.steps().size());
    // In the global order: step of the composition, stage plus chunk, stage.
    const auto in_order = [&](auto&& visit) {
        for (int step = 0; step < steps; ++step)
            for (int column = 0; column < stages + depth - 1; ++column)
                for (int stage = std::max(0, column - depth + 1); stage <= std::min(column, stages - 1);
                     ++stage)
                    visit(step * stages + stage, column - stage);
    };
    graph.begin_rank(rank, libraries_);
    std::vector<int> first(static_cast<std::size_t>(steps) * stages * depth); // node of (chunk, stage)
    int next = graph.nodes();
    in_order([&](int stage, int chunk) {
        const ChunkSink& sink = sinks[kind_of_[chunk]];
        first[static_cast<std::size_t>(chunk) * steps * stages + stage] = next;
        next += sink.first_of_stage[stage + 1] - sink.first_of_stage[stage];
    });
    // A tag is reused after so many messages with a peer, and its messages must not overtake each other.
    struct TagUse {
        std::int64_t count = 0;
        std::vector<std::pair<std::int64_t, int>> nodes; // (messages before it, node)
        std::size_t oldest = 0;
    };
    std::map<std::pair<int, Kind>, TagUse> uses;
    constexpr std::int64_t tags = max_tag + 1;
    std::int64_t messages = 0;
    for (const int kind : kind_of_)
        for (const auto& entry : sinks[kind].of_nodes) messages += entry.messages;
    const bool tags_return = messages > tags;
    std::vector<int> needs;
    in_order([&](int stage, int chunk) {
        const ChunkSink& sink = sinks[kind_of_[chunk]];
        const int* base = &first[static_cast<std::size_t>(chunk) * steps * stages];
        for (int k = sink.first_of_stage[stage]; k < sink.first_of_stage[stage + 1]; ++k) {
            const auto& entry = sink.of_nodes[k];
            needs.clear();
            for (const int need : entry.needs) {
                const int other = sink.of_nodes[need].node.mark.stage;
                needs.push_back(base[other] + need - sink.first_of_stage[other]);
            }
            Node node = entry.node;
            node.mark.chunk = chunk;
            if (tags_return && node.peer >= 0) {
                TagUse& use = uses[{node.peer, node.kind}];
                const int here = graph.nodes();
                use.nodes.emplace_back(use.count, here);
                use.count += entry.messages;
                // Messages [first, last) with this peer had the tags of this node's before.
                const std::int64_t last = use.count - tags, begin = last - entry.messages;
                for (std::size_t j = use.oldest; j < use.nodes.size() && use.nodes[j].first < last; ++j) {
                    const std::int64_t end = j + 1 < use.nodes.size() ? use.nodes[j + 1].first : use.count;
                    if (end <= begin) {
                        use.oldest = j + 1;
                        continue;
                    }
                    if (use.nodes[j].second != here) needs.push_back(use.nodes[j].second);
                }
                std::sort(needs.begin(), needs.end());
                needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
            }
            graph.add_node(node, needs, 0);
        }
    });
}

} // namespace jali
