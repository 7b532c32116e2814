// Ways of doing a halo exchange, as rows of a table: a new way is a new row.
#pragma once

#include <span>
#include <string>

namespace jali {

struct HaloPolicy {
    const char* name;
    bool overlap; // the bulk is computed while halos travel
    const char* description;
};

std::span<const HaloPolicy> halo_policies();

// The row of that name; empty: the one that JALI_HALO_POLICY names, else the first. Throws
// std::invalid_argument with the list of rows for any other name.
const HaloPolicy& halo_policy(const std::string& name);

} // namespace jali
