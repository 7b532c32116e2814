// Ways of doing a standard collective, as rows of a table: what the planner is asked for. Names are those of
// the field.
//
// Which is taken where nobody names one is said by rules.hpp. On devices there are the rows without hosts and
// without chunks of host memory; carriers with collectives of their own (collective_transport.hpp) come
// beside them.
#pragma once

#include "collective/hierarchy.hpp"
#include "collective/standard.hpp"

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
    bool on_devices = true;
    std::int64_t chunk = 0; // bytes of a chunk of the pipeline; 0: all in one

    bool has(Collective collective) const;
    int depth(std::int64_t payload) const; // chunks of the pipeline, for a payload in bytes
};
std::string_view name_of(Algorithm::Shape shape);

std::span<const Algorithm> algorithms();
// The row of that name for a collective, on the host or on devices; null: there is none.
const Algorithm* find_algorithm(std::string_view name, Collective collective, bool on_devices);

} // namespace jali
