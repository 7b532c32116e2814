#include "halo/halo_schedule.hpp"
#include "halo/exchange.hpp"
#include "halo/policy.hpp"

#include <algorithm>

namespace jali {

namespace {

using Message = HaloMessages::Message;
using Of = HaloBuffer::Of;

std::string slab_name(const Slab& slab) {
    std::string text = "slab (";
    for (std::size_t d = 0; d < slab.box.key.size(); ++d) {
        text += d ? ", " : "";
        text += slab.box.key[d] > 0 ? "+" : "";
        text += std::to_string(slab.box.key[d]);
    }
    return text + ")";
}

const char* words_of(Of of) {
    switch (of) {
    case Of::items:
        return "halo items";
    case Of::packed:
        return "messages sent";
    case Of::staged:
        return "messages sent, on the host";
    case Of::received:
        return "messages received";
    case Of::slot:
    case Of::their_slot:
        return "slot";
    default:
        return "";
    }
}

bool moves_by(const HaloTransport& transport, StepRole role) {
    return std::any_of(transport.moves.begin(), transport.moves.end(),
                       [&](const HaloMove& move) { return move.role == role; });
}

// Whether the first step writes its result directly to the destination of the second.
bool as_one(const HaloTransport& transport, StepRole first, StepRole second) {
    return std::any_of(transport.fusions.begin(), transport.fusions.end(),
                       [&](const Fusion& fusion) { return fusion.has(first, second); });
}

class Builder {
  public:
    Builder(const HaloMessages& halo, const HaloPolicy& policy, const HaloShape& shape,
            const std::vector<FieldStorage*>& written, Kernel::Body body)
        : halo_(halo), layout_(*halo.layout), shape_(shape), written_(written),
          rooms_(static_cast<int>(layout_.slabs().size())), steps_(halo.messages.size()) {
        std::vector<const HaloTransport*> transports{policy.transport};
        for (const Message& m : halo_.messages)
            for (const HaloTransport* by : {m.goes_by, m.comes_by})
                if (std::find(transports.begin(), transports.end(), by) == transports.end())
                    transports.push_back(by);
        result_.batches = ordered_batches(
            policy, shape, transports,
            [&](StepRole role, int stage, std::size_t number, const HaloTransport* transport) {
                batch_ = number;
                for (std::size_t m = 0; m < halo_.messages.size(); ++m)
                    if (stage < 0 || halo_.messages[m].stage == stage) add(role, m, transport);
            });
        parts_.resize(result_.batches.size());
        add_kernel(policy.overlap && shape.has_bulk, std::move(body));
        for (std::size_t b = 0; b < result_.batches.size(); ++b) {
            Batch& batch = result_.batches[b];
            batch.parts = std::move(parts_[b]);
            if (batch.has(StepRole::bulk)) batch.parts = {{kernel_, 0}};
            if (batch.has(StepRole::boundary)) batch.parts = {{kernel_, first_boundary_ + batch.stage}};
        }
        fuse(result_.batches, policy, shape);
        for (Buffer& buffer : buffers_)
            result_.schedule.add_buffer(buffer.name, buffer.bytes, buffer.holds_data, buffer.rank);
    }
    HaloSchedule take() { return std::move(result_); }

  private:
    // The steps of a message so far, and the location of its data.
    struct MessageSteps {
        std::vector<Port> packed, put, arrived;
        std::vector<Port> credits;
        Region out, in;
    };

    // ---- memory

    int buffer(Of of, FieldStorage* field = nullptr, int rank = -1) {
        const HaloBuffer wanted{of, field, rank};
        const auto found = std::find(result_.buffers.begin(), result_.buffers.end(), wanted);
        if (found != result_.buffers.end()) return static_cast<int>(found - result_.buffers.begin());
        std::string name = words_of(of);
        if (field != nullptr) name = (of == Of::owned ? "" : "ghosts of ") + field->label();
        // of whole groups the last may have room for more, which travels as well
        const bool filled =
            (of != Of::packed && of != Of::staged && of != Of::received) || layout_.group() > 1;
        const bool theirs = of == Of::their_ghosts || of == Of::their_slot;
        std::size_t bytes = 0; // of other ranks: the used part
        if (of == Of::owned) bytes = static_cast<std::size_t>(field->owned_end()) * field->block_bytes();
        result_.buffers.push_back(wanted);
        buffers_.push_back({std::move(name), bytes, filled, theirs ? rank : -1});
        return static_cast<int>(buffers_.size()) - 1;
    }
    Region region(Of of, std::size_t offset, std::size_t bytes, FieldStorage* field = nullptr,
                  int rank = -1) {
        const int b = buffer(of, field, rank);
        buffers_[b].bytes = std::max(buffers_[b].bytes, offset + bytes);
        return {b, offset, bytes};
    }
    // The blocks of a field that are in memory.
    Region owned(FieldStorage* field) {
        const auto offset = static_cast<std::size_t>(field->first_owned()) * field->block_bytes();
        return {buffer(Of::owned, field), offset, field->owned_bytes()};
    }
    // Room for a message behind those that are there.
    Region room(Of of, std::size_t bytes) {
        const std::size_t end = buffers_[buffer(of)].bytes;
        return region(of, (end + 255) / 256 * 256, bytes);
    }
    static Region part_of(const Region& whole, std::size_t offset, std::size_t bytes) {
        return {whole.buffer, whole.offset + offset, bytes};
    }

    // Data that are contiguous both where they were packed and in the receiver's ghosts: a field's parts.
    struct Piece {
        std::size_t send_offset, receive_offset, send_bytes = 0, receive_bytes = 0;
        const HaloMessages::Part* first;
    };
    static std::vector<Piece> pieces_of(const Message& message) {
        std::vector<Piece> pieces;
        for (const HaloMessages::Part& part : message.parts) {
            // the odd ghosts of a field follow its even ones, here and there
            if (pieces.empty() || pieces.back().first->field != part.field)
                pieces.push_back({part.send_offset, part.receive_offset, 0, 0, &part});
            pieces.back().send_bytes += part.send_bytes;
            pieces.back().receive_bytes += part.receive_bytes;
        }
        return pieces;
    }
    Region ghosts_of(const Piece& piece) {
        FieldStorage* field = piece.first->field;
        const auto block = static_cast<std::size_t>(piece.first->ghost - layout_.first_ghost());
        return region(Of::ghosts, block * field->block_bytes(), piece.receive_bytes, field);
    }

    // ---- moves

    Port add(std::string name, StepRole role, auto action, std::vector<Port> needs) {
        Mark mark;
        mark.role = role;
        const Port port{result_.schedule.add(std::move(name), std::move(action), std::move(needs), mark), 0};
        if (parts_.size() <= batch_) parts_.resize(batch_ + 1);
        parts_[batch_].push_back(port);
        return port;
    }

    void add(StepRole role, std::size_t m, const HaloTransport* transport) {
        const Message& message = halo_.messages[m];
        const bool goes = message.send_bytes > 0 && message.goes_by == transport;
        const bool comes = message.receive_bytes > 0 && message.comes_by == transport;
        const Slab& slab = layout_.slabs()[message.slab];
        const std::string name = slab_name(slab);
        MessageSteps& steps = steps_[m];
        switch (role) {
        case StepRole::produce:
            return produce(message, slab, steps);
        case StepRole::grant_credit:
            if (comes) add("open " + name, role, Signal{message.from, rooms_ + message.slab}, steps.arrived);
            return;
        case StepRole::pack: // where it is put, then
            if (goes && !as_one(*message.goes_by, StepRole::pack, StepRole::put)) {
                steps.out = room(Of::packed, message.send_bytes);
                pack(m, slab, steps, [&](std::size_t p, std::size_t bytes) {
                    return part_of(steps.out, message.parts[p].send_offset, bytes);
                });
            }
            return;
        case StepRole::await_credit:
            if (goes)
                steps.credits = {add("room for " + name, role, Wait{message.to, rooms_ + message.slab}, {})};
            return;
        case StepRole::put:
            if (goes) put(m, slab, steps);
            return;
        case StepRole::signal:
            if (goes)
                add("say that " + name + " is there", role, Signal{message.to, message.slab}, steps.put);
            return;
        case StepRole::wait:
            if (comes) steps.arrived = {add("await " + name, role, Wait{message.from, message.slab}, {})};
            return;
        case StepRole::unpack:
        case StepRole::copy_to_device:
            if (comes) unpack(message, name, role, steps);
            return;
        case StepRole::copy_to_host:
            if (goes) {
                const Region to = room(Of::staged, message.send_bytes);
                steps.packed = {add("copy to host: " + name, role,
                                    Copy{{{steps.out, to, message.send_bytes, nullptr, 0}}}, steps.packed)};
                steps.out = to;
            }
            return;
        case StepRole::exchange:
        case StepRole::message:
            if (comes) receive(message, name, role, steps);
            if (goes) send(message, name, role, steps);
            return;
        case StepRole::bulk:
        case StepRole::boundary:
            return;
        }
    }

    void produce(const Message& message, const Slab& slab, MessageSteps& steps) {
        for (const HaloMessages::Part& part : message.parts) {
            if (part.field->producer() == nullptr || part.send_count == 0) continue;
            const Region to = part_of(region(Of::items, part.produced, part.send_bytes), 0, bytes_sent(part));
            steps.packed.push_back(
                add(pack_name("produce", part, slab), StepRole::produce, producing(part, slab, to), {}));
        }
    }

    // Of its sites alone: memory holds whole groups of them, the last of which may have room for more.
    static std::size_t bytes_sent(const HaloMessages::Part& part) {
        return static_cast<std::size_t>(part.send_count) * part.field->block_bytes();
    }
    static std::string pack_name(const char* verb, const HaloMessages::Part& part, const Slab& slab) {
        return std::string(verb) + " " + part.field->label() + " for " + slab_name(slab) +
               (part.parity ? " odd" : " even");
    }

    // Each part to the region that `region_of` returns for it.
    template <class RegionOf>
    void pack(std::size_t m, const Slab& slab, MessageSteps& steps, RegionOf region_of) {
        const Message& message = halo_.messages[m];
        std::vector<Port> needs = steps.credits, done;
        needs.insert(needs.end(), steps.packed.begin(), steps.packed.end()); // its producers
        for (std::size_t p = 0; p < message.parts.size(); ++p) {
            const HaloMessages::Part& part = message.parts[p];
            if (part.send_count == 0) continue;
            const Region to = region_of(p, bytes_sent(part));
            const std::string name = pack_name("pack", part, slab);
            const bool item = part.field->producer() != nullptr;
            Region from{};
            if (item && shape_.produces)
                from = {buffer(Of::items), part.produced, to.bytes};
            else if (!item) // block by block, as they are numbered
                from = {buffer(Of::owned, part.field), 0,
                        static_cast<std::size_t>(part.field->owned_end()) * part.field->block_bytes()};
            if (item && !shape_.produces) {
                done.push_back(add(name, StepRole::pack, producing(part, slab, to), needs));
            } else {
                CopySpec spec{from, to, part.field->block_bytes(), nullptr, 0};
                if (!item) {
                    spec.rows = slab.send_blocks;
                    spec.first_row = static_cast<std::size_t>(part.send_sites);
                }
                done.push_back(add(name, StepRole::pack, Copy{{spec}}, needs));
            }
            if (changes(part.field)) packed_.push_back(done.back());
            result_.packs.push_back({static_cast<int>(m), &part, from, to});
        }
        steps.packed = steps.put = std::move(done);
    }

    // Whether the kernel writes packed data.
    bool changes(const FieldStorage* field) const {
        const auto is_written = [&](const FieldStorage* f) {
            return std::find(written_.begin(), written_.end(), f) != written_.end();
        };
        if (field->producer() == nullptr) return is_written(field);
        const auto& sources = field->producer()->sources;
        return std::any_of(sources.begin(), sources.end(),
                           [&](const auto& source) { return is_written(source.second.get()); });
    }

    Kernel producing(const HaloMessages::Part& part, const Slab& slab, const Region& to) {
        const HaloProducer* producer = part.field->producer();
        Kernel kernel;
        kernel.writes = {{to}};
        kernel.reads.emplace_back();
        for (const auto& [index, source] : producer->sources) kernel.reads[0].push_back(owned(source.get()));
        if (layout_.gpu()) return kernel;
        kernel.body = [layout = &layout_, producer, label = &part.field->label(), blocks = slab.send_blocks,
                       first = part.send_sites, count = part.send_count,
                       to](int, std::span<std::byte* const> buffers, const Progress*) {
            std::vector<std::uint64_t> parameters = producer->parameters;
            fill_standard_parameters(parameters.data(), *layout, blocks->data() + first);
            for (const auto& [index, source] : producer->sources)
                parameters[index] = reinterpret_cast<std::uint64_t>(source->data());
            parameters[producer->output_parameter] =
                reinterpret_cast<std::uint64_t>(buffers[to.buffer] + to.offset);
            const auto bytes = static_cast<std::int64_t>(to.bytes);
            const HostSpan span(Phase::produce, *label, {count, bytes, bytes, 0});
            producer->kernel(parameters.data(), 0, count);
        };
        return kernel;
    }

    // A message is written to the receiver's slot as a whole; to its ghosts part by part.
    void put(std::size_t m, const Slab& slab, MessageSteps& steps) {
        const Message& message = halo_.messages[m];
        const bool buffered = message.goes_by->traits.buffered;
        const auto region_of = [&](std::size_t p, std::size_t bytes) {
            const HaloMessages::Part& part = message.parts[p];
            if (buffered)
                return region(Of::their_slot, message.their_slot + part.send_offset, bytes, nullptr,
                              message.to);
            const auto block = static_cast<std::size_t>(message.their_ghosts[p]);
            return region(Of::their_ghosts, block * part.field->block_bytes(), bytes, part.field, message.to);
        };
        if (as_one(*message.goes_by, StepRole::pack, StepRole::put)) return pack(m, slab, steps, region_of);
        Copy copy;
        for (std::size_t p = 0; p < (buffered ? 1 : message.parts.size()); ++p) {
            const std::size_t bytes = buffered ? message.send_bytes : message.parts[p].send_bytes;
            const Region from = part_of(steps.out, message.parts[p].send_offset, bytes);
            copy.specs.push_back({from, region_of(p, bytes), bytes, nullptr, 0});
        }
        std::vector<Port> needs = steps.packed;
        needs.insert(needs.end(), steps.credits.begin(), steps.credits.end());
        steps.put = {add("put " + slab_name(slab), StepRole::put, std::move(copy), std::move(needs))};
    }

    // Whether messages arrive in a buffer here and are unpacked; else they arrive in the ghosts directly.
    static bool comes_here(const HaloTransport& by) {
        return moves_by(by, StepRole::unpack) || moves_by(by, StepRole::copy_to_device);
    }
    static bool lands(const Message& message) {
        return as_one(*message.comes_by, StepRole::message, StepRole::unpack) &&
               pieces_of(message).size() == 1;
    }

    void receive(const Message& message, const std::string& name, StepRole role, MessageSteps& steps) {
        std::vector<Region> into;
        if (comes_here(*message.comes_by) && !lands(message)) {
            into = {steps.in = room(Of::received, message.receive_bytes)};
        } else {
            for (const Piece& piece : pieces_of(message))
                if (piece.receive_bytes > 0) into.push_back(ghosts_of(piece));
        }
        for (const Region& region : into)
            steps.arrived.push_back(
                add("receive " + name, role, Receive{region, message.from, message.slab}, {}));
    }
    void send(const Message& message, const std::string& name, StepRole role, const MessageSteps& steps) {
        std::vector<Region> from;
        if (comes_here(*message.goes_by)) {
            from = {steps.out};
        } else {
            for (const Piece& piece : pieces_of(message))
                if (piece.send_bytes > 0)
                    from.push_back(part_of(steps.out, piece.send_offset, piece.send_bytes));
        }
        for (const Region& region : from)
            add("send " + name, role, Send{region, message.to, message.slab}, steps.packed);
    }

    void unpack(const Message& message, const std::string& name, StepRole role, MessageSteps& steps) {
        if (lands(message)) return;
        if (message.comes_by->traits.buffered)
            steps.in = region(Of::slot, message.receive_offset, message.receive_bytes);
        Copy copy;
        for (const Piece& piece : pieces_of(message))
            if (piece.receive_bytes > 0)
                copy.specs.push_back({part_of(steps.in, piece.receive_offset, piece.receive_bytes),
                                      ghosts_of(piece), piece.first->field->block_bytes(), nullptr, 0});
        steps.arrived = {add((role == StepRole::unpack ? "unpack " : "copy to device: ") + name, role,
                             std::move(copy), steps.arrived)};
    }

    // ---- the kernel around which halos are exchanged: only boundaries read what arrives.

    void add_kernel(bool bulk, Kernel::Body body) {
        Kernel kernel;
        kernel.body = std::move(body);
        std::vector<Part> parts;
        first_boundary_ = bulk;
        if (bulk) parts.push_back({"bulk", shape_.bulk_waits_for_packing ? packed_ : std::vector<Port>()});
        for (int s = 0; s < halo_.stages(); ++s) {
            Part& part = parts.emplace_back(Part{bulk ? "boundary" : "", packed_});
            if (halo_.stages() > 1) part.name += " of stage " + std::to_string(s);
            for (std::size_t m = 0; m < steps_.size(); ++m)
                if (halo_.messages[m].stage <= s)
                    part.needs.insert(part.needs.end(), steps_[m].arrived.begin(), steps_[m].arrived.end());
        }
        kernel.reads.resize(parts.size());
        kernel.writes.resize(parts.size());
        for (const Message& message : halo_.messages)
            for (const Piece& piece : pieces_of(message))
                for (int s = message.stage; piece.receive_bytes > 0 && s < halo_.stages(); ++s)
                    kernel.reads[first_boundary_ + s].push_back(ghosts_of(piece));
        for (FieldStorage* field : written_)
            for (auto& writes : kernel.writes) writes.push_back(owned(field));
        kernel_ = result_.schedule.add_kernel("kernel", std::move(kernel), std::move(parts));
    }

    const HaloMessages& halo_;
    LocalLayout& layout_;
    const HaloShape& shape_;
    const std::vector<FieldStorage*>& written_;
    int rooms_; // tags of signals that memory may be written
    std::vector<MessageSteps> steps_;
    std::vector<Buffer> buffers_;
    std::vector<Port> packed_;             // packing of fields that the kernel writes
    std::vector<std::vector<Port>> parts_; // [batch]
    std::size_t batch_ = 0;
    int kernel_ = 0, first_boundary_ = 0;
    HaloSchedule result_;
};

} // namespace

std::size_t HaloSchedule::bytes_of(HaloBuffer::Of of) const {
    std::size_t bytes = 0;
    for (std::size_t b = 0; b < buffers.size(); ++b)
        if (buffers[b].of == of) bytes = std::max(bytes, schedule.buffers()[b].bytes);
    return bytes;
}

HaloSchedule halo_schedule(const HaloMessages& messages, const HaloPolicy& policy, const HaloShape& shape,
                           const std::vector<FieldStorage*>& written, Kernel::Body body) {
    return Builder(messages, policy, shape, written, std::move(body)).take();
}

} // namespace jali
