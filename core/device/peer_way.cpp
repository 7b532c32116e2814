#include "device/peer_way.hpp"

#include <cstdlib>
#include <string>

namespace jali {

const char* name_of(PeerWay way) {
    for (const PeerWayRow& row : peer_ways)
        if (row.way == way) return row.name;
    return "none";
}

std::optional<PeerWay> forced_peer_way() {
    const char* set = std::getenv("JALI_PEER_HANDLES");
    const std::string text = set == nullptr || *set == '\0' ? "auto" : set;
    if (text == "auto") return std::nullopt;
    std::string names = "auto";
    for (const PeerWayRow& row : peer_ways) {
        if (text == row.name) return row.way;
        names += std::string(", ") + row.name;
    }
    throw PeerWayError("JALI_PEER_HANDLES=" + text +
                       " is no way to map memory of another process's device; choose from " + names);
}

} // namespace jali
