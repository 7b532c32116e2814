#include "halo/policy.hpp"

#include <cstdlib>
#include <stdexcept>

namespace jali {

namespace {

constexpr HaloPolicy rows[] = {
    {"overlap", true, "sites that need no arriving halo are computed while halos travel, the others after"},
    {"wait", false, "halos are exchanged first, then all sites are computed at once"},
};

} // namespace

std::span<const HaloPolicy> halo_policies() {
    return rows;
}

const HaloPolicy& halo_policy(const std::string& name) {
    const char* set = std::getenv("JALI_HALO_POLICY");
    const bool from_environment = name.empty() && set != nullptr && *set != '\0';
    const std::string wanted = from_environment ? set : name;
    if (wanted.empty()) return rows[0];
    std::string known;
    for (const auto& row : rows) {
        if (wanted == row.name) return row;
        known += (known.empty() ? "" : ", ") + std::string(row.name);
    }
    throw std::invalid_argument((from_environment ? "JALI_HALO_POLICY=" : "halo policy ") + wanted +
                                " does not exist; there are: " + known);
}

} // namespace jali
