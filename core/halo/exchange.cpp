#include "halo/exchange.hpp"
#include "schedule/scheduled_events.hpp"

#include <algorithm>
#include <stdexcept>

namespace jali {

void fill_standard_parameters(std::uint64_t* parameters, const LocalLayout& layout,
                              const std::int32_t* blocks) {
    std::fill(parameters, parameters + 8, 0);
    parameters[0] = reinterpret_cast<std::uint64_t>(blocks);
    parameters[4] = reinterpret_cast<std::uint64_t>(layout.coordinates().data());
    parameters[5] = reinterpret_cast<std::uint64_t>(layout.lane_offsets().data());
    parameters[7] = reinterpret_cast<std::uint64_t>(layout.partition().global_extents().data());
}

void fill_device_parameters(std::uint64_t* parameters, LocalLayout& layout) {
    const auto& tables = layout.on_device();
    std::fill(parameters, parameters + 8, 0);
    parameters[4] = tables.coordinates.address();
    parameters[5] = tables.lane_offsets.address();
    parameters[7] = tables.extents.address();
}

HaloExchange::HaloExchange(std::shared_ptr<LocalLayout> layout, const std::vector<HaloRequest>& requests,
                           const std::vector<char>& stale, const HaloPolicy& policy, bool overlap,
                           std::shared_ptr<Communicator> communicator, std::shared_ptr<ThreadPool> pool,
                           const std::vector<FieldStorage*>& written,
                           std::function<void(int part, const Progress*)> body)
    : halo_(std::move(layout), requests, stale, false), communicator_(std::move(communicator)) {
    if (policy.transport->traits.maps_memory) exposed_ = exposed_memory(*communicator_);
    if (exposed_) {
        const auto& first_ghosts = halo_.layout->first_ghosts(*communicator_);
        for (const auto& field : halo_.fields) field->map_ghosts(*communicator_);
        for (HaloMessages::Message& message : halo_.messages)
            for (const HaloMessages::Part& part : message.parts)
                message.their_ghosts.push_back(first_ghosts[message.to][2 * message.slab + part.parity]);
    }
    const auto transport_of = [&](int rank) {
        return exposed_ && exposed_->reaches(rank) ? policy.transport : &halos_by_messages_of_hosts;
    };
    for (HaloMessages::Message& message : halo_.messages) {
        message.goes_by = transport_of(message.to);
        message.comes_by = transport_of(message.from);
    }
    HaloShape shape;
    shape.has_bulk = overlap;
    shape.bulk_waits_for_packing = true;
    HaloSchedule steps =
        halo_schedule(halo_, policy, shape, written,
                      [body = std::move(body)](int part, std::span<std::byte* const>,
                                               const Progress* progress) { body(part, progress); });
    packed_bytes_ = steps.bytes_of(HaloBuffer::Of::packed);
    received_bytes_ = steps.bytes_of(HaloBuffer::Of::received);
    buffers_ = std::move(steps.buffers);
    executor_ = std::make_unique<Executor>(std::make_shared<Schedule>(std::move(steps.schedule)),
                                           "a halo exchange", std::move(pool));
    addresses_.resize(buffers_.size());
}

std::byte* HaloExchange::address_of(const HaloBuffer& buffer) {
    switch (buffer.of) {
    case HaloBuffer::Of::owned:
        return buffer.field->data();
    case HaloBuffer::Of::ghosts:
        return buffer.field->ghosts();
    case HaloBuffer::Of::their_ghosts:
        return reinterpret_cast<std::byte*>(buffer.field->ghosts_of(buffer.rank));
    case HaloBuffer::Of::packed:
        return halo_.layout->send_space(packed_bytes_);
    case HaloBuffer::Of::received:
        return halo_.layout->receive_space(received_bytes_);
    default:
        throw std::logic_error("halo: hosts have no such memory");
    }
}

void HaloExchange::run() {
    if (exposed_)
        for (const auto& field : halo_.fields)
            field->map_ghosts(*communicator_); // where other slabs were added
    for (std::size_t k = 0; k < buffers_.size(); ++k) addresses_[k] = address_of(buffers_[k]);
    halo_.note_versions();
    executor_->run(addresses_,
                   exposed_ && exposed_->host_communicator ? *exposed_->host_communicator : *communicator_);
    halo_.mark_filled();
    halo_.count();
}

RankEvents HaloExchange::events() {
    const int me = communicator_->rank();
    std::vector<Stretch> locations;
    for (std::size_t k = 0; k < buffers_.size(); ++k) {
        const auto& [of, field, rank] = buffers_[k];
        const bool theirs = of == HaloBuffer::Of::their_ghosts; // as they are in the process of that rank
        const auto address = theirs ? field->exposed_by(rank).address
                                    : reinterpret_cast<std::uint64_t>(address_of(buffers_[k]));
        locations.push_back({static_cast<std::uint64_t>(theirs ? rank : me), address,
                             address + schedule().buffers()[k].bytes});
    }
    return events_of(schedule(), me, locations);
}

void HaloExchange::leave_out() {
    halo_.note_versions();
    halo_.mark_filled();
}

} // namespace jali
