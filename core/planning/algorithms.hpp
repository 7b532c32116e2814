// Algorithms of the standard collectives, as entries of a table: the planner's input. Names are those of the
// field.
//
// rules.hpp chooses if none is named. On devices there are the entries without chunks of host memory, and
// transports with collectives of their own (collective_transport.hpp).
//
// Entries of the shape `hosts` are compositions of collectives inside hosts and between them, each with a
// transport of its own. Other names of algorithms (flat, node_only, and MPICH's Greek letters, whose meaning
// depends on the collective) are in a table of their own.
#pragma once

#include "composition/plan.hpp"
#include "composition/standard_collectives.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jali {

struct Algorithm {
    enum class Shape : std::uint8_t { flat, binary, hosts }; // binary: halves of halves

    std::string_view name;
    std::vector<Collective> collectives;
    Form form;
    Shape hierarchy;
    std::string_view summary;
    bool ring = false;    // over all ranks, or hosts
    bool striped = false; // roots are spread over the ranks of their host
    bool leaders = false; // hosts: one rank of each combines its host's data, and gets the total
    bool on_devices = true;
    std::int64_t chunk = 0; // bytes of a chunk of the pipeline; 0: all in one

    bool has(Collective collective) const;
    int depth(std::int64_t payload) const; // chunks of the pipeline, for a payload in bytes
};
std::string_view name_of(Algorithm::Shape shape);

std::span<const Algorithm> algorithms();
// Ranks of each host, in the order of their first ranks.
using Hosts = std::vector<std::vector<int>>;
bool are_nested(const Hosts& hosts); // several, of which one has several ranks

// The plan of an entry for a call between the ranks of these hosts. `inside` and `between` carry messages
// inside hosts and between them; empty: the usual transports, or `inside` between hosts, too. Entries that
// ignore hosts have one transport, as have all where hosts are not nested.
struct AlgorithmPlan {
    Composition composition;
    PlanParameters parameters;
};
AlgorithmPlan plan_of(const Algorithm& entry, const CollectiveCall& call, const Hosts& hosts,
                      const std::string& inside, const std::string& between, bool on_devices);
Composition composition_of(const Algorithm& entry, const CollectiveCall& call, const Hosts& hosts);

// Another name: of an algorithm of a collective, or (no algorithm) of a library's own collective where the
// library is named as transport, else of the usual algorithm that ignores hosts.
struct AlgorithmAlias {
    std::string_view name;
    Collective collective;
    std::string_view algorithm;
    bool one_host = false; // only where all ranks are on one
};
std::span<const AlgorithmAlias> algorithm_aliases();
const AlgorithmAlias* find_alias(std::string_view name, Collective collective);

// The entry of that name for a collective, on the host or on devices; null: there is none.
const Algorithm* find_algorithm(std::string_view name, Collective collective, bool on_devices);

} // namespace jali
