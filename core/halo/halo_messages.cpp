#include "halo/halo_messages.hpp"

#include <algorithm>

namespace jali {

namespace {

std::size_t aligned(std::size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

} // namespace

HaloMessages::HaloMessages(std::shared_ptr<LocalLayout> of, const std::vector<HaloRequest>& requests,
                           const std::vector<char>& stale, bool by_direction)
    : layout(std::move(of)) {
    std::vector<std::vector<std::size_t>> requests_of_slab(layout->slabs().size()); // requests
    for (std::size_t k = 0; k < requests.size(); ++k) {
        if (!stale[2 * k] && !stale[2 * k + 1]) continue;
        requests_of_slab[requests[k].slab].push_back(k);
        if (std::find(fields.begin(), fields.end(), requests[k].field) == fields.end())
            fields.push_back(requests[k].field);
    }
    for (const Slab& slab : layout->slabs()) {
        // those of the largest units first: so every part is aligned for vectors
        auto& order = requests_of_slab[slab.number];
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return requests[a].field->memory().alignment() > requests[b].field->memory().alignment();
        });
        Message message;
        message.slab = slab.number;
        message.from = slab.box.from;
        message.to = slab.box.to;
        for (std::size_t k : order) {
            FieldStorage* field = requests[k].field.get();
            for (int parity = 0; parity < 2; ++parity) {
                if (!stale[2 * k + parity]) continue;
                filled.push_back({field, slab.number, parity, 0});
                const auto bytes_of = [&](std::int64_t blocks) {
                    return static_cast<std::size_t>(layout->whole_groups(blocks)) * field->block_bytes();
                };
                Part part{};
                part.field = field;
                part.parity = parity;
                part.send_count = slab.send_count[parity];
                part.receive_count = slab.count[parity];
                if (part.send_count == 0 && part.receive_count == 0) continue;
                part.send_sites = parity ? slab.send_count[0] : 0;
                part.ghost = layout->first_ghost() + slab.first[parity];
                part.send_offset = message.send_bytes;
                part.receive_offset = message.receive_bytes;
                part.send_bytes = bytes_of(part.send_count);
                part.receive_bytes = bytes_of(part.receive_count);
                message.send_bytes += part.send_bytes;
                message.receive_bytes += part.receive_bytes;
                message.parts.push_back(part);
            }
        }
        if (message.parts.empty()) continue;
        message.receive_offset = receive_bytes;
        send_bytes += aligned(message.send_bytes);
        receive_bytes += aligned(message.receive_bytes);
        message.direction = slab.highest_direction();
        directions.push_back(message.direction);
        messages.push_back(std::move(message));
    }
    std::sort(directions.begin(), directions.end());
    directions.erase(std::unique(directions.begin(), directions.end()), directions.end());
    // a rank without a message also makes an exchange, so that the counts of all ranks agree
    if (!by_direction || directions.empty()) directions.assign(1, layout->ndim() - 1);
    std::stable_sort(messages.begin(), messages.end(),
                     [](const Message& a, const Message& b) { return a.direction < b.direction; });
    for (Message& message : messages) {
        while (message.direction > directions[message.stage]) ++message.stage;
        // Producers write their results as fields of their own, from which they are packed.
        for (Part& part : message.parts) {
            if (part.field->producer() == nullptr) continue;
            part.produced = produced_bytes;
            produced_bytes += aligned(part.send_bytes);
        }
        if (message.send_bytes == 0) continue;
        ++total_.messages;
        FieldStorage* last = nullptr;
        for (const Part& part : message.parts) {
            const auto bytes = part.send_count * static_cast<std::int64_t>(part.field->block_bytes());
            total_.bytes += bytes;
            auto found = std::find_if(counts_.begin(), counts_.end(),
                                      [&](const auto& c) { return c.first == part.field; });
            if (found == counts_.end()) found = counts_.insert(counts_.end(), {part.field, {}});
            found->second.bytes += bytes;
            found->second.messages += part.field != last;
            last = part.field;
        }
    }
    total_.exchanged = static_cast<std::int64_t>(filled.size());
}

void HaloMessages::note_versions() {
    for (Filled& f : filled) f.version = f.field->version(f.parity);
}

void HaloMessages::mark_filled() {
    for (const Filled& f : filled) f.field->set_held(f.slab, f.parity, f.version);
}

void HaloMessages::count() {
    for (const Filled& f : filled) ++f.field->counters.exchanged;
    for (auto& [field, counters] : counts_) {
        field->counters.messages += counters.messages;
        field->counters.bytes += counters.bytes;
    }
    layout->counters.add(total_);
    count_in_process(total_);
}

} // namespace jali
