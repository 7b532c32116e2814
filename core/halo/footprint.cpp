#include "halo/footprint.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>

namespace jali {

SiteFootprint footprint_at(const LaunchDefinition& launch, std::span<const HaloRequest> requests,
                           std::span<const std::int32_t> positions) {
    const LocalLayout& layout = *launch.layout;
    const auto n = static_cast<std::size_t>(layout.nblocks());
    const std::int64_t first_ghost = layout.first_ghost();
    for (std::int32_t block : positions)
        if (block < 0 || static_cast<std::size_t>(block) >= n)
            throw ScheduleError("the kernel runs at site " + std::to_string(block) + " of " +
                                std::to_string(n));
    const auto request_of = [&](const FieldStorage& field, int slab) -> const HaloRequest& {
        for (const HaloRequest& request : requests)
            if (request.field.get() == &field && request.slab == slab) return request;
        throw ScheduleError("the kernel reads ghosts of '" + field.label() + "' that it does not ask for");
    };
    SiteFootprint touched;
    std::vector<char> reached(static_cast<std::size_t>(first_ghost + layout.ghost_blocks()));
    for (const auto& [index, field] : launch.patches) {
        if (field->layout() != launch.layout || field->producer() != nullptr) continue;
        auto& of_field = touched.reads.try_emplace(field.get(), n, 0).first->second;
        for (std::int32_t block : positions)
            if (block >= field->first_owned() && block < field->owned_end()) of_field[block] = 1;
    }
    for (const LaunchRead& r : launch.reads) {
        const auto table = launch.layout->neighbours(r.offset);
        std::vector<std::vector<char>*>
            of_fields; // an item's sites of this rank are computed from its sources
        const auto add = [&](const std::shared_ptr<FieldStorage>& field) {
            of_fields.push_back(&touched.reads.try_emplace(field.get(), n, 0).first->second);
        };
        if (const HaloProducer* producer = r.field->producer())
            for (const auto& [index, source] : producer->sources) add(source);
        else
            add(r.field);
        std::fill(reached.begin(), reached.end(), 0);
        for (std::int32_t block : positions) reached[layout.block_of_entry(table->entries[block])] = 1;
        for (std::vector<char>* of_field : of_fields)
            std::transform(reached.begin(), reached.begin() + static_cast<std::ptrdiff_t>(n),
                           of_field->begin(), of_field->begin(), std::bit_or<char>());
        for (std::int64_t ghost = 0; ghost < layout.ghost_blocks(); ++ghost) {
            if (!reached[first_ghost + ghost]) continue;
            const Slab& slab = layout.slabs()[layout.slab_of_ghost(ghost)];
            touched.ghosts.insert({&request_of(*r.field, slab.number), slab.parity_of(ghost)});
        }
    }
    for (const auto& [field, parities] : launch.writes) {
        if (field->layout() != launch.layout) {
            touched.all_written.push_back(field.get());
            continue;
        }
        auto& there = touched.writes.try_emplace(field.get(), n, 0).first->second;
        for (std::int32_t block : positions)
            there[block] |= layout.c_order() || (parities >> (block >= layout.even_blocks()) & 1);
    }
    for (const IndirectAccess& indirect : launch.indirect) {
        touched.all_read.push_back(indirect.field.get());
        for (const HaloRequest& request : requests)
            if (request.field == indirect.field)
                for (int parity = 0; parity < 2; ++parity)
                    if (request.parities >> parity & 1) touched.ghosts.insert({&request, parity});
    }
    return touched;
}

} // namespace jali
