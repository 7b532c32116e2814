#include "device/peer_way.hpp"
#include "settings/settings.hpp"

namespace jali {

const char* name_of(PeerWay way) {
    for (const PeerWayRow& row : peer_ways)
        if (row.way == way) return row.name;
    return "none";
}

std::optional<PeerWay> forced_peer_way() {
    for (const PeerWayRow& row : peer_ways)
        if (settings().peer_handles == row.name) return row.way;
    return std::nullopt;
}

} // namespace jali
