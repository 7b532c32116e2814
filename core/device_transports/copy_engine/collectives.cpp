// Copy engine: the fastest for long messages.
#include "device_transports/device_transports.hpp"
#include "device_transports/mapped_collectives.hpp"
#include "device_transports/mapped_messages.hpp"

namespace jali {

namespace {

constexpr MessageTransport by_copies{{copy_engine}, make_mapped_messages};

} // namespace

const CollectiveTransport collectives_by_copy_engine{
    {copy_engine},
    [](const CollectiveRanks& ranks) {
        return make_mapped_collectives(ranks, collectives_by_copy_engine, by_copies);
    },
    {.carries = "copy engines", .into_arrays = true, .costly = true}};

} // namespace jali
