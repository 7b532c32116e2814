// Numbers the links of a machine and finds the path of a message.
#include "simulation/machine.hpp"
#include "settings/counted.hpp"

#include "composition/composition.hpp"

#include <cmath>
#include <utility>

namespace jali {

namespace {

constexpr int out = 0, in = 1, both = 2;
const char* const direction_names[] = {"out", "in", "in and out"};

} // namespace

int Machine::add_block(Block block, int count) {
    block.begin = links_;
    block.end = links_ + count;
    links_ += count;
    blocks_.push_back(block);
    return block.begin;
}

void Machine::finish() {
    if (nodes < 1) throw PlanError("machine '" + name + "': " + counted(nodes, "node") + "; at least 1");
    ranks_per_node_ = 1;
    for (const NodeLevel& level : inside) ranks_per_node_ *= level.parts;
    if (nics.empty() || static_cast<int>(binding.size()) != ranks_per_node_) {
        throw PlanError("machine '" + name + "': " + counted(binding.size(), "rank") + " bound to " +
                        std::to_string(nics.size()) + " NICs; a node has " +
                        counted(ranks_per_node_, "rank") + ", each with its NIC");
    }
    ranks_below_.assign(1, ranks_per_node_);
    for (const NodeLevel& level : inside) ranks_below_.push_back(ranks_below_.back() / level.parts);

    blocks_.clear();
    links_ = 0;
    for (int d : {out, in, both}) {
        nic_[d] = add_block({Block::nic, 0, 0, d, 0, 0, 0}, nodes * static_cast<int>(nics.size()));
        inside_[d].assign(inside.size(), -1);
        of_library_[d].assign(libraries.size(), std::vector<int>(levels(), -1));
    }
    for (int i = 0; i < static_cast<int>(inside.size()); ++i) {
        const NodeLevel& level = inside[i];
        const int parents = ranks() / ranks_below_[i];
        const int count = parents * (level.pairs ? level.parts * level.parts : level.parts);
        for (int d : {out, in, both}) {
            const double capacity = d == both ? level.duplex : level.bandwidth;
            if (std::isinf(capacity) || (level.pairs && d == in)) continue;
            const auto kind = level.pairs ? Block::wire : Block::port;
            inside_[d][i] = add_block({kind, i + 1, 0, d, 0, 0, capacity}, count);
        }
    }
    engines_.assign(libraries.size(), -1);
    for (int b = 0; b < static_cast<int>(libraries.size()); ++b) {
        if (!std::isinf(libraries[b].engine))
            engines_[b] = add_block({Block::engine, 0, b, out, 0, 0, libraries[b].engine}, ranks());
        if (static_cast<int>(libraries[b].at.size()) != levels()) {
            throw PlanError("machine '" + name + "': library '" + libraries[b].name + "' describes " +
                            std::to_string(libraries[b].at.size()) + " levels of " +
                            std::to_string(levels()));
        }
        for (int level = 0; level < levels(); ++level) {
            const LibraryLevel& at = libraries[b].at[level];
            for (int d : {out, in, both}) {
                const double capacity = d == both ? at.duplex : at.bandwidth;
                if (!at.usable || std::isinf(capacity)) continue;
                of_library_[d][b][level] = add_block({Block::rank, level, b, d, 0, 0, capacity}, ranks());
            }
        }
    }
    memory_ = std::isinf(memory) ? -1 : add_block({Block::memory, 0, 0, out, 0, 0, memory}, ranks());
}

int Machine::level_between(int from, int to) const {
    for (int level = 0; level < levels(); ++level)
        if (unit(from, level) != unit(to, level)) return level;
    throw PlanError("rank " + std::to_string(from) + " sends to itself; a copy does that");
}

int Machine::library(const std::string& wanted, int level) const {
    for (int b = 0; b < static_cast<int>(libraries.size()); ++b) {
        const bool usable = libraries[b].at[level].usable;
        if (wanted.empty() ? usable : libraries[b].name == wanted) {
            if (usable) return b;
            throw PlanError("library '" + wanted + "' does not work " +
                            (level == 0 ? "between nodes" : "at level '" + inside[level - 1].name + "'") +
                            " of machine '" + name + "'");
        }
    }
    std::string known;
    for (const Library& library : libraries) known += (known.empty() ? "" : ", ") + library.name;
    throw PlanError("machine '" + name + "' has no library '" + wanted + "'; it has " + known);
}

Path Machine::path(int from, int to, int library) const {
    Path path;
    path.level = level_between(from, to);
    const LibraryLevel& at = libraries[library].at[path.level];
    path.gap = at.gap;
    path.efficiency = at.efficiency;
    const auto use = [&](int first, int index) {
        if (first >= 0) path.links[path.count++] = first + index;
    };
    const auto use_both = [&](const int* first, int sender, int receiver) {
        use(first[out], sender);
        use(first[in], receiver);
        use(first[both], sender);
        use(first[both], receiver);
    };
    const auto& own = of_library_;
    const int of_library[] = {own[out][library][path.level], own[in][library][path.level],
                              own[both][library][path.level]};
    use_both(of_library, from, to);
    use(engines_[library], from);
    use(memory_, from);
    use(memory_, to);
    if (path.level == 0) {
        path.latency = at.latency + network_latency;
        for (const auto& [rank, direction] : {std::pair{from, out}, {to, in}, {from, both}, {to, both}})
            path.links[path.count++] = nic_link(rank, direction);
        return path;
    }
    const int i = path.level - 1, parts = inside[i].parts;
    path.latency = at.latency + inside[i].latency;
    const int a = unit(from, path.level), b = unit(to, path.level);
    if (inside[i].pairs) {
        const int parent = a / parts, x = a % parts, y = b % parts;
        use(inside_[out][i], (parent * parts + x) * parts + y);
        use(inside_[both][i], (parent * parts + std::min(x, y)) * parts + std::max(x, y));
    } else {
        const int first[] = {inside_[out][i], inside_[in][i], inside_[both][i]};
        use_both(first, a, b);
    }
    return path;
}

int Machine::block_of(int link) const {
    int k = 0;
    while (link >= blocks_[k].end) ++k;
    return k;
}

const Nic* Machine::nic_of(int link) const {
    const Block& block = blocks_[block_of(link)];
    return block.kind == Block::nic ? &nics[(link - block.begin) % nics.size()] : nullptr;
}

double Machine::capacity(int link) const {
    const Block& block = blocks_[block_of(link)];
    const Nic* nic = nic_of(link);
    if (nic == nullptr) return block.capacity;
    return block.direction == both ? nic->duplex : nic->bandwidth;
}

bool Machine::ordered(int link) const {
    return blocks_[block_of(link)].direction != both;
}

std::string Machine::link_name(int link) const {
    const Block& block = blocks_[block_of(link)];
    const int index = link - block.begin;
    const std::string direction = direction_names[block.direction];
    if (block.kind == Block::nic) {
        const int count = static_cast<int>(nics.size());
        return "node " + std::to_string(index / count) + " NIC " + std::to_string(index % count) + " " +
               direction;
    }
    if (block.kind == Block::engine)
        return "rank " + std::to_string(index) + " " + libraries[block.library].name + " engine";
    if (block.kind == Block::memory) return "rank " + std::to_string(index) + " memory";
    if (block.kind == Block::rank) {
        return "rank " + std::to_string(index) + " " + libraries[block.library].name + " " + direction +
               " at " + (block.level == 0 ? "node" : inside[block.level - 1].name);
    }
    const NodeLevel& level = inside[block.level - 1];
    if (block.kind == Block::port) return level.name + " " + std::to_string(index) + " " + direction;
    const int parent = index / (level.parts * level.parts) * level.parts;
    const int x = index / level.parts % level.parts, y = index % level.parts;
    return level.name + " " + std::to_string(parent + x) + (block.direction == both ? " <-> " : " -> ") +
           std::to_string(parent + y);
}

} // namespace jali
