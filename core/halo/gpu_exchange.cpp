#include "halo/gpu_exchange.hpp"
#include "device/timeline.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

namespace jali {

namespace {

// What the kernels of the kit take; see prelude/kit.hpp.
struct PackPart {
    GpuAddress field, sites;
    std::int64_t count, packets, packet_bytes, offset;
};
struct PackMessage {
    GpuAddress to;
    std::int64_t slot_bytes, first_part, parts, first_block, blocks;
    GpuAddress arrived, consumed;
};
struct PackArguments {
    GpuAddress parts, messages;
    std::int64_t count;
    GpuAddress epoch, retired, abandoned;
};
struct SignalArguments {
    GpuAddress messages;
    std::int64_t count;
    GpuAddress epoch;
};
struct AwaitArguments {
    GpuAddress messages;
    std::int64_t count;
    GpuAddress epoch, abandoned;
};
struct ReceiveSection {
    GpuAddress to;
    std::int64_t offset, bytes;
};
struct ReceiveMessage {
    GpuAddress from;
    std::int64_t slot_bytes, first_section, sections, first_block, blocks;
    GpuAddress arrived;
};
struct ReceiveArguments {
    GpuAddress sections, messages;
    std::int64_t count;
    GpuAddress epoch, retired, senders;
    std::int64_t senders_count, last;
    GpuAddress abandoned;
};

constexpr unsigned halo_threads = 256;
constexpr std::size_t bytes_per_block = 16 << 10; // of a message, until the most blocks are reached
constexpr std::int64_t most_blocks = 128;         // of one launch: waiting kernels must leave room for others

std::size_t aligned(std::size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

std::int64_t blocks_for(std::size_t bytes, std::size_t all_bytes) {
    const auto wanted = static_cast<std::int64_t>((bytes + bytes_per_block - 1) / bytes_per_block);
    const auto share = static_cast<std::int64_t>(most_blocks * bytes / std::max<std::size_t>(all_bytes, 1));
    return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, share));
}

} // namespace

GpuExchange::GpuExchange(std::shared_ptr<Layout> layout, const std::vector<HaloRequest>& requests,
                         const std::vector<char>& stale, const HaloPolicy& policy,
                         std::shared_ptr<Communicator> communicator,
                         const std::vector<std::pair<std::shared_ptr<FieldStorage>, int>>& written)
    : layout_(std::move(layout)), gpu_(layout_->gpu()), policy_(policy),
      communicator_(std::move(communicator)) {
    const std::string trouble = why_no_carrier(policy_.carrier, *layout_, communicator_);
    if (!trouble.empty()) throw GpuError("halo policy " + policy_.name + " is not possible here: " + trouble);
    make_messages(requests, stale);
    for (const Message& message : messages_)
        for (const Part& part : message.parts)
            for (const auto& [field, parities] : written)
                writes_packed_ |= field.get() == part.field && (parities >> part.parity & 1);
    before_ = std::make_unique<GpuEvent>(gpu_, false);
    packed_ = std::make_unique<GpuEvent>(gpu_, false);
    staged_ = std::make_unique<GpuEvent>(gpu_, false);
    arrived_ = std::make_unique<GpuEvent>(gpu_, false);
    if (policy_.carrier != HaloCarrier::store) send_ = gpu_->allocate(send_bytes_, "halo messages sent");
    if (policy_.carrier == HaloCarrier::messages) {
        send_here_ = gpu_->allocate_pinned(send_bytes_, "halo messages sent");
        receive_here_ = gpu_->allocate_pinned(receive_bytes_, "halo messages received");
    } else if (policy_.carrier == HaloCarrier::ccl) {
        ccl_ = CclCommunicator::shared(*communicator_, gpu_);
        for (std::size_t s = 0; s < stages_.size(); ++s)
            stage_arrived_.push_back(std::make_unique<GpuEvent>(gpu_, false));
    } else if (uses_mailbox(policy_.carrier)) {
        agree_on_places();
    }
    retired_ =
        gpu_->allocate((messages_.size() + stages_.size() + 1) * sizeof(std::int64_t), "halo counters");
    gpu_->fill(retired_.address(), 0, retired_.size());
}

GpuExchange::~GpuExchange() {
    // the streams may still use what goes now: memory returns to a pool that only jali's own stream takes
    // from
    try {
        gpu_->make_current();
        gpu_->api().stream_wait(gpu_->stream(), arrived_->handle(), 0);
        gpu_->api().stream_wait(gpu_->stream(), packed_->handle(), 0);
    } catch (...) {
        return; // the device is lost, and said so
    }
}

void GpuExchange::make_messages(const std::vector<HaloRequest>& requests, const std::vector<char>& stale) {
    const Layout& layout = *layout_;
    std::vector<int> directions; // of the boundary stages, in order
    for (const Slab& slab : layout.slabs()) {
        Message message;
        message.slab = slab.number;
        message.from = slab.from;
        message.to = slab.to;
        for (int scalar : {8, 4}) {
            for (std::size_t k = 0; k < requests.size(); ++k) {
                const auto& request = requests[k];
                if (request.slab != slab.number || request.field->scalar_bytes() != scalar) continue;
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
                    const int reals = field->reals();
                    const int size = scalar == 8 ? (reals % 2 == 0 ? 2 : 1)
                                                 : (reals % 4 == 0   ? 4
                                                    : reals % 2 == 0 ? 2
                                                                     : 1);
                    part.packet_bytes = static_cast<std::size_t>(size) * scalar;
                    part.packets = reals / size;
                    message.send_bytes += layout.whole_groups(part.send_count) * field->block_bytes();
                    message.receive_bytes += layout.whole_groups(part.receive_count) * field->block_bytes();
                    message.parts.push_back(part);
                }
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
    if (!policy_.per_direction && !directions.empty()) directions.assign(1, layout.ndim() - 1);
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

void GpuExchange::agree_on_places() {
    mailbox_ = layout_->mailbox(communicator_);
    std::vector<std::int64_t> mine(layout_->slabs().size(), -1);
    if (mine.size() > PeerMailbox::most_messages) // as many on every rank, so that all stop here
        throw LayoutError("halo: more than " + std::to_string(PeerMailbox::most_messages) +
                          " different ghost slabs of one lattice; use halo policy staged-overlap");
    for (const Message& message : messages_)
        mine[message.slab] = static_cast<std::int64_t>(message.receive_offset);
    const auto all = communicator_->all_gather(std::as_bytes(std::span(mine)));
    for (Message& message : messages_)
        std::memcpy(&message.their_offset, all[message.to].data() + message.slab * sizeof(std::int64_t),
                    sizeof(std::int64_t));
    mailbox_->reserve(receive_bytes_);
}

void GpuExchange::make_tables() {
    std::vector<std::uint64_t> addresses;
    for (const Message& message : messages_)
        for (const Part& part : message.parts) addresses.push_back(part.field->address());
    if (mailbox_) {
        addresses.push_back(mailbox_->slot_bytes());
        for (int r = 0; r < communicator_->size(); ++r) addresses.push_back(mailbox_->slot(r));
    }
    if (addresses == addresses_) return;
    addresses_ = std::move(addresses);
    const bool mailed = mailbox_ != nullptr;
    const bool remote = policy_.carrier == HaloCarrier::store;
    const auto slot_bytes = mailed ? static_cast<std::int64_t>(mailbox_->slot_bytes()) : 0;
    const int me = communicator_->rank();
    std::vector<PackPart> parts;
    std::vector<PackMessage> sends;
    std::vector<ReceiveSection> sections;
    std::vector<ReceiveMessage> receives;
    send_blocks_ = 0;
    for (Stage& stage : stages_) {
        stage.blocks = 0;
        stage.pieces.clear();
    }
    std::size_t stage = 0, in_stage = 0;
    for (const Message& message : messages_) {
        while (in_stage == stages_[stage].messages) {
            ++stage;
            in_stage = 0;
        }
        if (in_stage++ == 0) stages_[stage].first = receives.size();
        const Slab& slab = layout_->slabs()[message.slab];
        PackMessage send{};
        send.to = remote ? mailbox_->slot(message.to) + message.their_offset
                         : send_.address() + message.send_offset;
        send.slot_bytes = remote ? slot_bytes : 0;
        send.first_part = static_cast<std::int64_t>(parts.size());
        send.parts = static_cast<std::int64_t>(message.parts.size());
        send.first_block = send_blocks_;
        send.blocks = blocks_for(message.send_bytes, send_bytes_);
        send_blocks_ += send.blocks;
        if (mailed) {
            send.arrived = mailbox_->arrived(message.to, message.slab);
            send.consumed = mailbox_->consumed(me, message.to);
        }
        ReceiveMessage receive{};
        receive.from = mailed ? mailbox_->slot(me) + message.receive_offset : 0;
        receive.slot_bytes = slot_bytes;
        receive.first_section = static_cast<std::int64_t>(sections.size());
        receive.sections = static_cast<std::int64_t>(message.parts.size());
        receive.first_block = stages_[stage].blocks;
        receive.blocks = blocks_for(message.receive_bytes, receive_bytes_);
        stages_[stage].blocks += receive.blocks;
        if (mailed) receive.arrived = mailbox_->arrived(me, message.slab);
        FieldStorage* last = nullptr;
        std::vector<Piece>& pieces = stages_[stage].pieces;
        for (const Part& part : message.parts) {
            const auto bytes_of = [&](std::int64_t count) {
                return layout_->whole_groups(count) * part.field->block_bytes();
            };
            // the odd ghosts of a field follow its even ones, here and there
            if (!mailed && part.field != last)
                pieces.push_back({send.to + part.send_offset,
                                  part.field->address() + part.ghost * part.field->block_bytes(), 0, 0,
                                  message.from, message.to, message.slab});
            if (!mailed) pieces.back().send_bytes += bytes_of(part.send_count);
            if (!mailed) pieces.back().receive_bytes += bytes_of(part.receive_count);
            last = part.field;
            const GpuAddress sites = slab.device_send_blocks() + part.send_sites * sizeof(std::int32_t);
            const bool item = part.field->producer() != nullptr;
            parts.push_back({item ? produced_.address() + part.produced : part.field->address(),
                             item ? 0 : sites, part.send_count, part.packets,
                             static_cast<std::int64_t>(part.packet_bytes),
                             static_cast<std::int64_t>(part.send_offset)});
            sections.push_back({part.field->address() + part.ghost * part.field->block_bytes(),
                                static_cast<std::int64_t>(part.receive_offset),
                                static_cast<std::int64_t>(layout_->whole_groups(part.receive_count) *
                                                          part.field->block_bytes())});
        }
        sends.push_back(send);
        receives.push_back(receive);
    }
    auto upload = [&](const auto& rows) {
        return gpu_->upload(rows.data(), rows.size() * sizeof rows[0], "halo tables");
    };
    parts_ = upload(parts);
    sends_ = upload(sends);
    if (mailed) {
        sections_ = upload(sections);
        receives_ = upload(receives);
        std::vector<GpuAddress> senders; // everybody may send in another exchange
        for (int r = 0; r < communicator_->size(); ++r)
            if (r != me || communicator_->size() == 1) senders.push_back(mailbox_->consumed(r, me));
        senders.push_back(mailbox_->consumed(me, me));
        sender_count_ = static_cast<std::int64_t>(senders.size());
        senders_ = upload(senders);
    }
}

void GpuExchange::produce_items(void* stream) {
    for (const Message& message : messages_) {
        for (const Part& part : message.parts) {
            const HaloProducer* producer = part.field->producer();
            if (producer == nullptr || part.send_count == 0) continue;
            std::vector<std::uint64_t> arguments(2 + producer->words.size());
            arguments[1] = static_cast<std::uint64_t>(part.send_count);
            std::uint64_t* words = arguments.data() + 2;
            std::copy(producer->words.begin(), producer->words.end(), words);
            fill_device_words(words, *layout_);
            words[0] =
                layout_->slabs()[message.slab].device_send_blocks() + part.send_sites * sizeof(std::int32_t);
            for (const auto& [word, source] : producer->sources) words[word] = source->address();
            words[producer->output_word] = produced_.address() + part.produced;
            void* parameters[] = {arguments.data()};
            const std::int64_t blocks = (part.send_count + producer->threads - 1) / producer->threads;
            const DeviceSpan span(*gpu_, stream, Phase::produce, part.field->label());
            gpu_->launch(producer->gpu_kernel, static_cast<unsigned>(blocks),
                         static_cast<unsigned>(producer->threads), parameters, stream);
        }
    }
}

void GpuExchange::pack(void* stream) {
    PackArguments arguments{parts_.address(),
                            sends_.address(),
                            static_cast<std::int64_t>(messages_.size()),
                            0,
                            retired_.address(),
                            0};
    const char* kernel = "pack_halos";
    if (policy_.carrier == HaloCarrier::store) {
        arguments.epoch = mailbox_->epoch();
        arguments.abandoned = mailbox_->abandoned();
    } else {
        kernel = "gather_halos";
    }
    void* parameters[] = {&arguments};
    const bool remote = policy_.carrier == HaloCarrier::store;
    const DeviceSpan span(*gpu_, stream, remote ? Phase::transport : Phase::pack,
                          remote ? "pack and store" : "pack", watched() ? sent() : Work{});
    gpu_->launch(gpu_->kit(kernel), static_cast<unsigned>(send_blocks_), halo_threads, parameters, stream);
}

void GpuExchange::run(const std::function<void()>& bulk, const std::function<void(int)>& boundary) {
    const GpuApi& api = gpu_->api();
    void* const main = gpu_->stream();
    void* const side = layout_->halo_stream();
    const HaloSwitches on = halo_switches();
    for (Filled& f : filled_) f.version = f.field->version(f.parity);
    gpu_->make_current();
    // What the host decides at each exchange would be decided once for all repetitions.
    if (!can_be_recorded(policy_.carrier) && gpu_->is_capturing(gpu_->stream()))
        throw GpuError("halo policy " + policy_.name +
                       " cannot be recorded in a graph; use one of the store or ccl policies");
    make_tables();
    if (policy_.carrier == HaloCarrier::messages) arrived_->wait(); // pinned memory is free again
    before_->record(main);
    api.check(api.stream_wait(side, before_->handle(), 0), "ordering a halo exchange");
    if (on.pack) produce_items(side);
    // a kernel that stores into a mailbox is the transport as well
    if (policy_.carrier == HaloCarrier::store ? on.transport : on.pack) pack(side);
    packed_->record(side);
    if (writes_packed_) api.check(api.stream_wait(main, packed_->handle(), 0), "ordering a halo exchange");
    if (!on.transport) {
        if (policy_.overlap && on.bulk) bulk();
        arrived_->record(side);
        api.check(api.stream_wait(main, arrived_->handle(), 0), "ordering a halo exchange");
        for (int s = 0; on.boundary && s < stages(); ++s) boundary(s);
    } else if (policy_.carrier == HaloCarrier::ccl) {
        carry_by_ccl(side);
        if (policy_.overlap && on.bulk) bulk();
        for (std::size_t s = 0; s < stages_.size(); ++s) {
            api.check(api.stream_wait(main, stage_arrived_[s]->handle(), 0), "ordering a halo exchange");
            if (on.boundary) boundary(static_cast<int>(s));
        }
        arrived_->record(side);
    } else if (policy_.carrier == HaloCarrier::direct) {
        if (policy_.overlap && on.bulk) bulk();
        carry_directly();
        for (int s = 0; on.boundary && s < stages(); ++s) boundary(s);
    } else if (policy_.carrier == HaloCarrier::messages) {
        {
            const DeviceSpan span(*gpu_, side, Phase::transport, "copy to the host",
                                  watched() ? sent() : Work{});
            for (const Message& message : messages_)
                if (message.send_bytes > 0)
                    api.check(api.copy_out(send_here_.data() + message.send_offset,
                                           send_.address() + message.send_offset, message.send_bytes, side),
                              "copying halos to the host");
        }
        staged_->record(side);
        if (policy_.overlap && on.bulk) bulk();
        carry_staged(side);
        arrived_->record(side);
        api.check(api.stream_wait(main, arrived_->handle(), 0), "ordering a halo exchange");
        for (int s = 0; on.boundary && s < stages(); ++s) boundary(s);
    } else {
        if (policy_.carrier == HaloCarrier::copy) copy_to_mailboxes(side);
        if (policy_.overlap && on.bulk) bulk();
        for (std::size_t s = 0; s < stages_.size(); ++s) {
            const Stage& stage = stages_[s];
            ReceiveArguments arguments{sections_.address(),
                                       receives_.address() + stage.first * sizeof(ReceiveMessage),
                                       static_cast<std::int64_t>(stage.messages),
                                       mailbox_->epoch(),
                                       retired_.address() + (messages_.size() + s) * sizeof(std::int64_t),
                                       senders_.address(),
                                       sender_count_,
                                       s + 1 == stages_.size(),
                                       mailbox_->abandoned()};
            void* parameters[] = {&arguments};
            std::optional<DeviceSpan> span(std::in_place, *gpu_, side, Phase::unpack, "await and place",
                                           watched() ? received(s) : Work{});
            gpu_->launch(gpu_->kit("receive_halos"), static_cast<unsigned>(stage.blocks), halo_threads,
                         parameters, side);
            span.reset();
            arrived_->record(side);
            api.check(api.stream_wait(main, arrived_->handle(), 0), "ordering a halo exchange");
            if (on.boundary) boundary(static_cast<int>(s));
        }
        mailbox_->note_exchange(side);
    }
    count();
}

void GpuExchange::copy_to_mailboxes(void* stream) {
    const GpuApi& api = gpu_->api();
    const DeviceSpan span(*gpu_, stream, Phase::transport, "copy", watched() ? sent() : Work{});
    AwaitArguments await{sends_.address(), static_cast<std::int64_t>(messages_.size()), mailbox_->epoch(),
                         mailbox_->abandoned()};
    void* awaited[] = {&await};
    gpu_->launch(gpu_->kit("await_slots"), 1, halo_threads, awaited, stream);
    const std::uint64_t slot = mailbox_->enqueued % 2 * mailbox_->slot_bytes();
    for (const Message& message : messages_)
        if (message.send_bytes > 0)
            api.check(api.copy(mailbox_->slot(message.to) + slot + message.their_offset,
                               send_.address() + message.send_offset, message.send_bytes, stream),
                      "copying halos to another device");
    SignalArguments signal{sends_.address(), static_cast<std::int64_t>(messages_.size()), mailbox_->epoch()};
    void* signalled[] = {&signal};
    gpu_->launch(gpu_->kit("signal_halos"), 1, halo_threads, signalled, stream);
}

Work GpuExchange::carried(const Stage& stage) const {
    std::size_t bytes = 0;
    for (const Piece& piece : stage.pieces) bytes += piece.send_bytes;
    const auto n = static_cast<std::int64_t>(bytes);
    return {0, n, n, 0};
}

Work GpuExchange::sent() const {
    std::size_t bytes = 0;
    for (const Message& message : messages_) bytes += message.send_bytes;
    const auto n = static_cast<std::int64_t>(bytes);
    return {0, n, n, 0};
}

// What the messages of this stage hold; where they do not arrive by stages, of all.
Work GpuExchange::received(std::size_t stage) const {
    const bool all = policy_.carrier == HaloCarrier::messages;
    std::size_t bytes = 0;
    for (const Message& message : messages_)
        if (all || message.direction <= stages_[stage].direction)
            if (all || stage == 0 || message.direction > stages_[stage - 1].direction)
                bytes += message.receive_bytes;
    const auto n = static_cast<std::int64_t>(bytes);
    return {0, n, n, 0};
}

void GpuExchange::count() {
    HaloCounters total;
    for (const Filled& f : filled_) {
        f.field->set_held(f.slab, f.parity, f.version);
        ++f.field->counters.exchanged;
        ++total.exchanged;
    }
    for (const Message& message : messages_) {
        if (message.send_bytes == 0) continue;
        ++total.messages;
        std::vector<FieldStorage*> seen;
        for (const Part& part : message.parts) {
            const auto bytes = part.send_count * static_cast<std::int64_t>(part.field->block_bytes());
            part.field->counters.bytes += bytes;
            total.bytes += bytes;
            if (std::find(seen.begin(), seen.end(), part.field) == seen.end()) {
                seen.push_back(part.field);
                ++part.field->counters.messages;
            }
        }
    }
    layout_->counters.add(total);
    count_in_process(total);
}

} // namespace jali
