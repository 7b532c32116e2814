#include "collective/collective_transport.hpp"

#include <algorithm>

namespace jali {

namespace {

constexpr const CollectiveTransport* rows[] = {&collectives_by_remote_write, &collectives_by_library,
                                               &collectives_by_staging};

} // namespace

std::span<const CollectiveTransport* const> collective_transports() {
    return rows;
}

CollectiveCarrier::CollectiveCarrier(const CollectiveTransport& row, const Gpu& gpu)
    : row(row), name(name_of(row, &gpu.vendor())) {
}

void CollectiveCarrier::exchange(std::span<const StageMessage>, std::span<const GpuAddress>, void*) {
    throw std::logic_error("'" + name + "' carries no messages of plans between launches");
}

std::shared_ptr<DevicePlan> CollectiveCarrier::plan(const DeviceCall&, std::string) {
    throw std::logic_error("'" + name + "' has no collectives itself");
}

std::vector<std::size_t> DeviceCall::bytes_of_buffers(int ranks, int rank) const {
    CollectiveCall moved = *this;
    moved.operation = Operation::sum; // which all types have
    const Composition composition = make_composition(ranks, moved, Form::single);
    std::vector<std::size_t> bytes;
    for (const CompositionBuffer& buffer : composition.buffers())
        if (buffer.name != "work")
            bytes.push_back(static_cast<std::size_t>(buffer.count(rank)) * size_of(type));
    return bytes;
}

void DevicePlan::check_given(std::span<const GpuAddress> buffers) const {
    if (buffers.size() != bytes_.size())
        throw PlanError(what_ + " has " + std::to_string(bytes_.size()) + " buffers, " +
                        std::to_string(buffers.size()) + " were given");
}

void DevicePlan::run(std::span<const GpuAddress> buffers, void* stream) {
    check_given(buffers);
    gpu_->make_current();
    if (!recordable_ && gpu_->is_capturing(stream))
        throw GpuError(what_ + " takes the host, so that it cannot be recorded in a graph");
    put(buffers, stream);
}

} // namespace jali
