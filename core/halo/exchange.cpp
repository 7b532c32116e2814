#include "halo/exchange.hpp"
#include "schedule/scheduled_moments.hpp"

#include <algorithm>

namespace jali {

namespace {

constexpr int send_buffer = 0, receive_buffer = 1, first_field_buffer = 2;

Mark marked(Phase phase) {
    Mark mark;
    mark.phase = phase;
    return mark;
}

std::string slab_name(const Slab& slab) {
    std::string text = "slab (";
    for (std::size_t d = 0; d < slab.box.key.size(); ++d) {
        text += d ? ", " : "";
        text += slab.box.key[d] > 0 ? "+" : "";
        text += std::to_string(slab.box.key[d]);
    }
    return text + ")";
}

} // namespace

void fill_standard_parameters(std::uint64_t* parameters, const PlacedLayout& layout,
                              const std::int32_t* blocks) {
    std::fill(parameters, parameters + 8, 0);
    parameters[0] = reinterpret_cast<std::uint64_t>(blocks);
    parameters[4] = reinterpret_cast<std::uint64_t>(layout.coordinates().data());
    parameters[5] = reinterpret_cast<std::uint64_t>(layout.lane_offsets().data());
    parameters[7] = reinterpret_cast<std::uint64_t>(layout.partition().global_extents().data());
}

void fill_device_parameters(std::uint64_t* parameters, PlacedLayout& layout) {
    const auto& tables = layout.on_device();
    std::fill(parameters, parameters + 8, 0);
    parameters[4] = tables.coordinates.address();
    parameters[5] = tables.lane_offsets.address();
    parameters[7] = tables.extents.address();
}

int HaloExchange::buffer_of(Schedule& schedule, FieldStorage* field, Of of, int rank) {
    const FieldBuffer wanted{field, of, rank};
    const auto found = std::find(fields_.begin(), fields_.end(), wanted);
    if (found != fields_.end()) return first_field_buffer + static_cast<int>(found - fields_.begin());
    fields_.push_back(wanted);
    if (of == Of::their_ghosts)
        return schedule.add_buffer("ghosts of " + field->label(), field->exposed_by(rank).bytes, true, rank);
    const auto blocks = of == Of::ghosts ? layout_->ghost_blocks() : layout_->nblocks();
    return schedule.add_buffer((of == Of::ghosts ? "ghosts of " : "") + field->label(),
                               static_cast<std::size_t>(blocks) * field->block_bytes(), true);
}

bool HaloExchange::is_put(int rank, std::size_t bytes) const {
    return exposed_ && bytes > 0 && exposed_->reaches(rank);
}

int HaloExchange::add_pack(Schedule& schedule, const Slab& slab, FieldStorage* field, int parity, Region to,
                           std::vector<Port> needs) {
    const std::size_t first = parity ? slab.send_count[0] : 0;
    const std::string name =
        "pack " + field->label() + " for " + slab_name(slab) + (parity ? " odd" : " even");
    const HaloProducer* producer = field->producer();
    if (producer == nullptr) {
        const int buffer = buffer_of(schedule, field);
        const Region owned{buffer, 0, static_cast<std::size_t>(layout_->nblocks()) * field->block_bytes()};
        return schedule.add(name, Copy{{{owned, to, field->block_bytes(), slab.send_blocks, first}}},
                            std::move(needs), marked(Phase::pack));
    }
    Kernel kernel;
    kernel.writes = {{to}};
    kernel.reads.emplace_back();
    for (const auto& [index, source] : producer->sources) {
        kernel.reads[0].push_back({buffer_of(schedule, source.get()), 0,
                                   static_cast<std::size_t>(layout_->nblocks()) * source->block_bytes()});
    }
    const auto blocks = slab.send_blocks;
    const auto count = slab.send_count[parity];
    kernel.body = [layout = layout_.get(), producer, label = &field->label(), blocks, first, count,
                   to](int, std::span<std::byte* const> buffers, const Progress*) {
        std::vector<std::uint64_t> parameters = producer->parameters;
        fill_standard_parameters(parameters.data(), *layout, blocks->data() + first);
        for (const auto& [index, source] : producer->sources) {
            parameters[index] = reinterpret_cast<std::uint64_t>(source->data());
        }
        parameters[producer->output_parameter] =
            reinterpret_cast<std::uint64_t>(buffers[to.buffer] + to.offset);
        const HostSpan span(
            Phase::produce, *label,
            {count, static_cast<std::int64_t>(to.bytes), static_cast<std::int64_t>(to.bytes), 0});
        producer->kernel(parameters.data(), 0, count);
    };
    return schedule.add_kernel(name, std::move(kernel), {Part{"", std::move(needs)}});
}

HaloExchange::HaloExchange(std::shared_ptr<PlacedLayout> layout, const std::vector<HaloRequest>& requests,
                           const std::vector<char>& stale, bool exposed, bool overlap,
                           std::shared_ptr<Communicator> communicator, std::shared_ptr<ThreadPool> pool,
                           std::vector<FieldStorage*> written,
                           std::function<void(int part, const Progress*)> body)
    : layout_(std::move(layout)), communicator_(std::move(communicator)) {
    // What each message carries, in the order of the requests, those of the largest units first: so every
    // part of a message is aligned for vectors.
    std::vector<std::vector<std::size_t>> carried(layout_->slabs().size());
    for (std::size_t k = 0; k < requests.size(); ++k) {
        if (stale[2 * k] || stale[2 * k + 1]) {
            carried[requests[k].slab].push_back(k);
            if (std::find(kept_.begin(), kept_.end(), requests[k].field) == kept_.end())
                kept_.push_back(requests[k].field);
        }
    }
    if (exposed) exposed_ = exposed_memory(*communicator_);
    const std::vector<std::vector<std::int64_t>>* first_ghosts = nullptr;
    if (exposed_) {
        first_ghosts = &layout_->first_ghosts(*communicator_);
        for (const auto& field : kept_) field->map_ghosts(*communicator_);
    }
    for (auto& parts : carried) {
        std::stable_sort(parts.begin(), parts.end(), [&](std::size_t a, std::size_t b) {
            return requests[a].field->memory().alignment() > requests[b].field->memory().alignment();
        });
    }
    auto schedule = std::make_shared<Schedule>();
    struct Message {
        std::size_t send_offset = 0, send_bytes = 0, receive_offset = 0, receive_bytes = 0;
        bool direct = false;
        bool put = false, comes_put = false;
    };
    std::vector<Message> messages(carried.size());
    for (const Slab& slab : layout_->slabs()) {
        Message& m = messages[slab.number];
        m.direct = carried[slab.number].size() == 1;
        for (std::size_t k : carried[slab.number]) {
            for (int parity = 0; parity < 2; ++parity) {
                if (!stale[2 * k + parity]) continue;
                FieldStorage* field = requests[k].field.get();
                m.send_bytes += layout_->whole_groups(slab.send_count[parity]) * field->block_bytes();
                m.receive_bytes += layout_->whole_groups(slab.count[parity]) * field->block_bytes();
                filled_.push_back({field, slab.number, parity, 0});
            }
        }
        auto reserve = [](std::size_t& total, std::size_t bytes) {
            const std::size_t offset = total;
            total += (bytes + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
            return offset;
        };
        m.put = is_put(slab.box.to, m.send_bytes);
        m.comes_put = is_put(slab.box.from, m.receive_bytes);
        if (!m.put) m.send_offset = reserve(send_bytes_, m.send_bytes);
        if (!m.direct && !m.comes_put) m.receive_offset = reserve(receive_bytes_, m.receive_bytes);
    }
    schedule->add_buffer("messages sent", send_bytes_);
    schedule->add_buffer("messages received", receive_bytes_);

    // What the kernel writes it writes when that has been packed.
    const auto changes = [&](const FieldStorage* field) {
        const auto is_written = [&](const FieldStorage* f) {
            return std::find(written.begin(), written.end(), f) != written.end();
        };
        if (field->producer() == nullptr) return is_written(field);
        const auto& sources = field->producer()->sources;
        return std::any_of(sources.begin(), sources.end(),
                           [&](const auto& source) { return is_written(source.second.get()); });
    };
    const int rooms = static_cast<int>(layout_->slabs().size()); // tags of signals that ghosts may be written
    std::vector<Port> packed, arrived;
    for (const Slab& slab : layout_->slabs()) {
        const auto& parts = carried[slab.number];
        const Message& m = messages[slab.number];
        if (m.comes_put) {
            schedule->add("open ghosts " + slab_name(slab), Signal{slab.box.from, rooms + slab.number}, {},
                          marked(Phase::transport));
            arrived.push_back({schedule->add("await " + slab_name(slab), Wait{slab.box.from, slab.number}, {},
                                             marked(Phase::transport)),
                               0});
        } else if (m.receive_bytes > 0) {
            Region into{receive_buffer, m.receive_offset, m.receive_bytes};
            if (m.direct) {
                FieldStorage* field = requests[parts[0]].field.get();
                const auto first = slab.first[stale[2 * parts[0]] ? 0 : 1];
                into = {buffer_of(*schedule, field, Of::ghosts),
                        static_cast<std::size_t>(first) * field->block_bytes(), m.receive_bytes};
            }
            int last = schedule->add("receive " + slab_name(slab), Receive{into, slab.box.from, slab.number},
                                     {}, marked(Phase::transport));
            if (!m.direct) {
                Copy unpack;
                std::size_t offset = m.receive_offset;
                for (std::size_t k : parts) {
                    FieldStorage* field = requests[k].field.get();
                    const std::int64_t block = slab.first[stale[2 * k] ? 0 : 1];
                    std::int64_t count =
                        (stale[2 * k] ? slab.count[0] : 0) + (stale[2 * k + 1] ? slab.count[1] : 0);
                    const std::size_t bytes = count * field->block_bytes();
                    unpack.rows.push_back(
                        {{receive_buffer, offset, bytes},
                         {buffer_of(*schedule, field, Of::ghosts), block * field->block_bytes(), bytes},
                         field->block_bytes(),
                         nullptr,
                         0});
                    offset += bytes;
                }
                last = schedule->add("unpack " + slab_name(slab), std::move(unpack), {{last, 0}},
                                     marked(Phase::unpack));
            }
            arrived.push_back({last, 0});
        }
        if (m.send_bytes > 0) {
            std::vector<Port> ready, needs;
            if (m.put)
                needs.push_back(
                    {schedule->add("room for " + slab_name(slab), Wait{slab.box.to, rooms + slab.number}, {},
                                   marked(Phase::transport)),
                     0});
            std::size_t offset = m.send_offset;
            for (std::size_t k : parts) {
                FieldStorage* field = requests[k].field.get();
                for (int parity = 0; parity < 2; ++parity) {
                    const std::size_t bytes = slab.send_count[parity] * field->block_bytes();
                    if (!stale[2 * k + parity] || bytes == 0) continue;
                    Region to{send_buffer, offset, bytes};
                    if (m.put) {
                        const std::int64_t ghost = (*first_ghosts)[slab.box.to][2 * slab.number + parity];
                        to = {buffer_of(*schedule, field, Of::their_ghosts, slab.box.to),
                              static_cast<std::size_t>(ghost) * field->block_bytes(), bytes};
                    }
                    ready.push_back({add_pack(*schedule, slab, field, parity, to, needs), 0});
                    if (changes(field)) packed.push_back(ready.back());
                    offset += bytes;
                    auto found = std::find_if(counts_.begin(), counts_.end(),
                                              [&](auto& c) { return c.first == field; });
                    if (found == counts_.end()) found = counts_.insert(counts_.end(), {field, {}});
                    found->second.bytes += static_cast<std::int64_t>(bytes);
                }
                for (auto& [counted, counters] : counts_) counters.messages += counted == field;
            }
            if (m.put)
                schedule->add("say that " + slab_name(slab) + " is there", Signal{slab.box.to, slab.number},
                              ready, marked(Phase::transport));
            else
                schedule->add("send " + slab_name(slab),
                              Send{{send_buffer, m.send_offset, m.send_bytes}, slab.box.to, slab.number},
                              ready, marked(Phase::transport));
            ++total_.messages;
            total_.bytes += static_cast<std::int64_t>(m.send_bytes);
        }
    }
    total_.exchanged = static_cast<std::int64_t>(filled_.size());

    // Only its last part reads arrivals.
    Kernel kernel;
    kernel.body = [body = std::move(body)](int part, std::span<std::byte* const>, const Progress* progress) {
        body(part, progress);
    };
    std::vector<Part> parts;
    if (overlap) parts.push_back({"bulk", packed});
    parts.push_back({overlap ? "boundary" : "", packed});
    parts.back().needs.insert(parts.back().needs.end(), arrived.begin(), arrived.end());
    kernel.reads.resize(parts.size());
    kernel.writes.resize(parts.size());
    for (const Filled& f : filled_) {
        const Slab& slab = layout_->slabs()[f.slab];
        const auto block = slab.first[f.parity];
        kernel.reads.back().push_back({buffer_of(*schedule, f.field, Of::ghosts),
                                       block * f.field->block_bytes(),
                                       slab.count[f.parity] * f.field->block_bytes()});
    }
    for (FieldStorage* field : written) {
        for (auto& writes : kernel.writes) {
            writes.push_back({buffer_of(*schedule, field), 0, layout_->nblocks() * field->block_bytes()});
        }
    }
    schedule->add_kernel("kernel", std::move(kernel), std::move(parts));
    executor_ = std::make_unique<Executor>(std::move(schedule), "a halo exchange", std::move(pool));
    addresses_.resize(first_field_buffer + fields_.size());
}

void HaloExchange::run() {
    if (exposed_)
        for (const auto& field : kept_) field->map_ghosts(*communicator_); // where other slabs were added
    addresses_[send_buffer] = layout_->send_space(send_bytes_);
    addresses_[receive_buffer] = layout_->receive_space(receive_bytes_);
    for (std::size_t k = 0; k < fields_.size(); ++k) {
        const auto& [field, of, rank] = fields_[k];
        addresses_[first_field_buffer + k] = of == Of::their_ghosts
                                                 ? reinterpret_cast<std::byte*>(field->ghosts_of(rank))
                                             : of == Of::ghosts ? field->ghosts()
                                                                : field->data();
    }
    for (Filled& f : filled_) f.version = f.field->version(f.parity);
    executor_->run(addresses_, exposed_ && exposed_->carrier ? *exposed_->carrier : *communicator_);
    for (const Filled& f : filled_) {
        f.field->set_held(f.slab, f.parity, f.version);
        ++f.field->counters.exchanged;
    }
    for (auto& [field, counters] : counts_) {
        field->counters.messages += counters.messages;
        field->counters.bytes += counters.bytes;
    }
    layout_->counters.add(total_);
    count_in_process(total_);
}

RankMoments HaloExchange::moments() {
    const int me = communicator_->rank();
    std::vector<Stretch> places;
    const auto add = [&](int rank, const std::byte* begin) {
        const auto address = reinterpret_cast<std::uint64_t>(begin);
        places.push_back(
            {static_cast<std::uint64_t>(rank), address, address + schedule().buffers()[places.size()].bytes});
    };
    add(me, layout_->send_space(send_bytes_));
    add(me, layout_->receive_space(receive_bytes_));
    for (const auto& [field, of, rank] : fields_) {
        if (of == Of::their_ghosts)
            add(rank, reinterpret_cast<const std::byte*>(field->exposed_by(rank).address));
        else
            add(me, of == Of::ghosts ? field->ghosts() : field->data());
    }
    return moments_of(schedule(), me, places);
}

void HaloExchange::leave_out() {
    for (const Filled& f : filled_) f.field->set_held(f.slab, f.parity, f.field->version(f.parity));
}

} // namespace jali
