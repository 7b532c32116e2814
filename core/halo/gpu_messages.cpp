// What the messages of a GpuExchange are made of, where their parts go, and the tables that say so to
// kernels.
#include "halo/gpu_exchange.hpp"
#include "halo/halo_kernels.hpp"

#include <algorithm>
#include <cstring>

namespace jali {

namespace {

constexpr std::size_t bytes_per_thread = 64; // of a message, until the most blocks are reached

std::size_t aligned(std::size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

// Deals an item of a message out to blocks; how many there are.
std::int64_t deal_out(std::vector<HaloJob>& jobs, std::size_t item, std::size_t message, std::size_t bytes,
                      std::size_t all_bytes, const HaloBlocks& blocks) {
    if (bytes == 0) return 0;
    const std::size_t at_once = bytes_per_thread * blocks.threads;
    const std::size_t wanted = (bytes + at_once - 1) / at_once;
    const std::size_t share = (blocks.most * bytes + all_bytes - 1) / all_bytes;
    const auto turns = static_cast<std::int32_t>(std::min(wanted, share));
    for (std::int32_t turn = 0; turn < turns; ++turn)
        jobs.push_back({static_cast<std::int32_t>(item), static_cast<std::int32_t>(message), turn, turns});
    return turns;
}

} // namespace

void GpuExchange::make_messages(const std::vector<HaloRequest>& requests, const std::vector<char>& stale) {
    const PlacedLayout& layout = *layout_;
    std::vector<int> directions; // of the boundary stages, in order
    for (const Slab& slab : layout.slabs()) {
        Message message;
        message.slab = slab.number;
        message.from = slab.box.from;
        message.to = slab.box.to;
        for (std::size_t k = 0; k < requests.size(); ++k) {
            const auto& request = requests[k];
            if (request.slab != slab.number) continue;
            for (int parity = 0; parity < 2; ++parity) {
                if (!stale[2 * k + parity]) continue;
                FieldStorage* field = request.field.get();
                filled_.push_back({field, slab.number, parity, 0});
                if (slab.count[parity] == 0 && slab.send_count[parity] == 0) continue;
                kept_.push_back(request.field);
                Part part{};
                part.field = field;
                part.parity = parity;
                part.send_count = slab.send_count[parity];
                part.receive_count = slab.count[parity];
                part.send_sites = parity ? slab.send_count[0] : 0;
                part.ghost = layout.first_ghost() + slab.first[parity];
                part.send_offset = message.send_bytes;
                part.receive_offset = message.receive_bytes;
                message.send_bytes += layout.whole_groups(part.send_count) * field->block_bytes();
                message.receive_bytes += layout.whole_groups(part.receive_count) * field->block_bytes();
                message.parts.push_back(part);
            }
        }
        if (message.parts.empty()) continue;
        message.send_offset = send_bytes_;
        message.receive_offset = receive_bytes_;
        send_bytes_ += aligned(message.send_bytes);
        receive_bytes_ += aligned(message.receive_bytes);
        message.direction = slab.highest_direction();
        directions.push_back(message.direction);
        messages_.push_back(std::move(message));
    }
    std::sort(directions.begin(), directions.end());
    directions.erase(std::unique(directions.begin(), directions.end()), directions.end());
    // a rank without a part in it goes through an exchange as well, so that all count alike
    if (!policy_.per_direction || directions.empty()) directions.assign(1, layout.ndim() - 1);
    for (int direction : directions) stages_.emplace_back().direction = direction;
    std::stable_sort(messages_.begin(), messages_.end(),
                     [](const Message& a, const Message& b) { return a.direction < b.direction; });
    for (const Message& message : messages_) {
        for (std::size_t s = 0; s < stages_.size(); ++s) {
            if (message.direction > stages_[s].direction) continue;
            ++stages_[s].messages;
            break;
        }
    }
    // Producers write what they compute as fields of their own, from which it is packed.
    std::size_t produced = 0;
    for (Message& message : messages_) {
        for (Part& part : message.parts) {
            if (part.field->producer() == nullptr) continue;
            part.produced = static_cast<std::int64_t>(produced);
            produced += aligned(layout.whole_groups(part.send_count) * part.field->block_bytes());
        }
    }
    if (produced > 0) produced_ = gpu_->allocate(produced, "halo items");
}

void GpuExchange::take_channel(HaloChannel channel) {
    pad_ = layout_->pad(communicator_);
    channel_ = channel;
    if (layout_->slabs().size() > HaloPad::most_messages) // as many on every rank, so that all stop here
        throw LayoutError("halo: more than " + std::to_string(HaloPad::most_messages) +
                          " different ghost slabs of one lattice; use halo policy host-staged-overlap");
}

void GpuExchange::agree_on_places(HaloChannel channel) {
    take_channel(channel);
    std::vector<std::int64_t> mine(layout_->slabs().size(), -1);
    for (const Message& message : messages_)
        mine[message.slab] = static_cast<std::int64_t>(message.receive_offset);
    const auto all = communicator_->all_gather(std::as_bytes(std::span(mine)), "places of halo messages");
    for (std::size_t r = 0; r < all.size(); ++r)
        check_bytes(all[r], mine.size() * sizeof mine[0], static_cast<int>(r), "places of halo messages");
    for (Message& message : messages_)
        std::memcpy(&message.their_offset, all[message.to].data() + message.slab * sizeof(std::int64_t),
                    sizeof(std::int64_t));
    pad_->reserve(channel, receive_bytes_);
}

void GpuExchange::agree_on_ghosts() {
    take_channel(HaloChannel::ghosts);
    const auto& first = layout_->first_ghosts(*communicator_);
    for (Message& message : messages_)
        for (Part& part : message.parts) part.their_ghost = first[message.to][2 * message.slab + part.parity];
    for (FieldStorage* field : mapped_) field->map_ghosts(*communicator_);
}

GpuAddress GpuExchange::place_of(const Message& message, const Part& part) const {
    if (policy_.carrier == HaloCarrier::remote_write)
        return part.field->ghosts_of(message.to) + part.their_ghost * part.field->block_bytes();
    const GpuAddress begin = policy_.carrier == HaloCarrier::buffered_write
                                 ? pad_->slot(channel_, message.to) + message.their_offset
                                 : send_.address() + message.send_offset;
    return begin + part.send_offset;
}

// A launch that packs and waits would make the bulk wait with it, where this must not begin before all is
// packed; and stages are waited for one by one.
bool GpuExchange::ends_with_packing() const {
    return policy_.carrier == HaloCarrier::remote_write && stages_.size() == 1 &&
           !(writes_packed_ && policy_.overlap);
}

void GpuExchange::make_tables() {
    std::vector<std::uint64_t> addresses;
    for (const Message& message : messages_) {
        for (const Part& part : message.parts) {
            addresses.push_back(part.field->address());
            addresses.push_back(part.field->address_of_ghost(part.ghost));
            addresses.push_back(place_of(message, part));
        }
    }
    if (pad_) {
        addresses.push_back(pad_->slot_bytes(channel_));
        for (int r = 0; r < communicator_->size(); ++r) addresses.push_back(pad_->slot(channel_, r));
    }
    if (addresses == addresses_) return;
    addresses_ = std::move(addresses);
    const bool in_slots = uses_slots(policy_.carrier), by_library = pad_ == nullptr;
    pack_blocks_ = policy_.overlap && packs_into_receiver(policy_.carrier) ? beside_bulk : halo_blocks;
    const int me = communicator_->rank();
    std::vector<PackPart> parts;
    std::vector<PackMessage> sends;
    std::vector<HaloJob> send_jobs, receive_jobs;
    std::vector<ReceiveSection> sections;
    std::vector<GpuAddress> opened, awaited;
    std::size_t next = 0;
    for (Stage& stage : stages_) {
        stage.pieces.clear();
        stage.first_job = static_cast<std::int64_t>(receive_jobs.size());
        stage.first_word = static_cast<std::int64_t>(awaited.size());
        for (std::size_t k = 0; k < stage.messages; ++k, ++next) {
            const Message& message = messages_[next];
            const Slab& slab = layout_->slabs()[message.slab];
            PackMessage send{};
            if (!by_library) {
                send.arrived = pad_->arrived(channel_, message.to, message.slab);
                send.credit = pad_->credit(channel_, me, message.to);
                send.ahead = HaloPad::ahead(channel_);
                const GpuAddress opens = pad_->credit(channel_, message.from, me);
                if (std::find(opened.begin(), opened.end(), opens) == opened.end()) opened.push_back(opens);
                if (message.receive_bytes > 0) awaited.push_back(pad_->arrived(channel_, me, message.slab));
            }
            FieldStorage* last = nullptr;
            for (const Part& part : message.parts) {
                const auto bytes_of = [&](std::int64_t count) {
                    return layout_->whole_groups(count) * part.field->block_bytes();
                };
                const GpuAddress ghosts = part.field->address_of_ghost(part.ghost);
                // the odd ghosts of a field follow its even ones, here and there
                if (by_library && part.field != last)
                    stage.pieces.push_back(
                        {place_of(message, part), ghosts, 0, 0, message.from, message.to, message.slab});
                if (by_library) stage.pieces.back().send_bytes += bytes_of(part.send_count);
                if (by_library) stage.pieces.back().receive_bytes += bytes_of(part.receive_count);
                last = part.field;
                const GpuAddress sites = layout_->on_device(slab) + part.send_sites * sizeof(std::int32_t);
                const bool item = part.field->producer() != nullptr;
                const GpuAddress source = item ? produced_.address() + part.produced : part.field->address();
                const auto group_bytes =
                    static_cast<std::int64_t>(layout_->group()) * part.field->site_bytes();
                std::int64_t first = 0; // of a section, in every group
                for (const MemorySection& section : part.field->memory().sections) {
                    const auto bytes = layout_->whole_groups(part.send_count) * section.bytes();
                    send.jobs += deal_out(send_jobs, parts.size(), next, static_cast<std::size_t>(bytes),
                                          send_bytes_, pack_blocks_);
                    parts.push_back({source + first, item ? 0 : sites, part.send_count,
                                     section.units / section.packet_units, section.packet_bytes(),
                                     group_bytes, part.field->borrowed() ? part.field->site_bytes() : 0,
                                     place_of(message, part) + first});
                    first += static_cast<std::int64_t>(layout_->group()) * section.bytes();
                }
                if (!in_slots) continue;
                deal_out(receive_jobs, sections.size(), next, bytes_of(part.receive_count), receive_bytes_,
                         halo_blocks);
                sections.push_back({pad_->slot(channel_, me) + message.receive_offset + part.receive_offset,
                                    ghosts, static_cast<std::int64_t>(bytes_of(part.receive_count)),
                                    pad_->arrived(channel_, me, message.slab)});
            }
            sends.push_back(send);
        }
        stage.jobs = static_cast<std::int64_t>(receive_jobs.size()) - stage.first_job;
        stage.words = static_cast<std::int64_t>(awaited.size()) - stage.first_word;
    }
    auto upload = [&](const auto& rows) {
        return gpu_->upload(rows.data(), rows.size() * sizeof rows[0], "halo tables");
    };
    parts_ = upload(parts);
    sends_ = upload(sends);
    send_jobs_ = upload(send_jobs);
    send_job_count_ = static_cast<std::int64_t>(send_jobs.size());
    if (in_slots) {
        sections_ = upload(sections);
        receive_jobs_ = upload(receive_jobs);
        std::vector<GpuAddress> senders; // everybody may send in another exchange
        for (int r = 0; r < communicator_->size(); ++r) senders.push_back(pad_->credit(channel_, r, me));
        sender_count_ = static_cast<std::int64_t>(senders.size());
        senders_ = upload(senders);
    } else if (!by_library) {
        opened_ = upload(opened);
        opened_count_ = static_cast<std::int64_t>(opened.size());
        awaited_ = upload(awaited);
        awaited_count_ = static_cast<std::int64_t>(awaited.size());
    }
}

} // namespace jali
