// Array write: a kernel stores into the arrays of peers, which begins sooner than a copy engine. For arrays
// with fixed addresses; for others the slots of remote write are faster.
#include "device_transports/device_transports.hpp"
#include "device_transports/mapped_collectives.hpp"
#include "device_transports/mapped_messages.hpp"

namespace jali {

namespace {

constexpr MessageTransport by_stores{{remote_write}, make_mapped_messages};

} // namespace

const CollectiveTransport collectives_by_array_write{
    {array_write},
    [](const CollectiveRanks& ranks) {
        return make_mapped_collectives(ranks, collectives_by_array_write, by_stores);
    },
    {.carries = "stores into arrays", .into_arrays = true, .costly = true}};

} // namespace jali
