#include "collective/collective_transport.hpp"

#include <algorithm>

namespace jali {

namespace {

constexpr const CollectiveTransport* rows[] = {&collectives_by_remote_write, &collectives_by_library,
                                               &collectives_by_copy_engine, &collectives_by_gpu_aware_mpi,
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

std::vector<StageExchange> CollectiveCarrier::prepare(std::span<const std::span<const StageMessage>> stages,
                                                      std::span<const GpuAddress>) {
    std::vector<StageExchange> exchanges;
    for (const auto& messages : stages)
        exchanges.push_back([this, messages](std::span<const GpuAddress> buffers, void* stream) {
            exchange(messages, buffers, stream);
        });
    return exchanges;
}

std::shared_ptr<DevicePlan> CollectiveCarrier::plan(const DeviceCall&, std::string) {
    throw std::logic_error("'" + name + "' has no collectives itself");
}

// Of the buffers that standard.hpp says; in place there is the larger of the two.
std::vector<std::size_t> DeviceCall::bytes_of_buffers(int ranks, int rank) const {
    const auto count = [&](int which) { return counts[counts.size() == 1 ? 0 : which]; };
    std::int64_t part = count(rank), whole = 0;
    if (collective == Collective::all_to_all) { // what goes and what comes
        part = 0;
        for (int other = 0; other < ranks; ++other) {
            whole += count(rank * ranks + other);
            part += count(other * ranks + rank);
        }
    } else if (collective == Collective::all_reduce || collective == Collective::broadcast ||
               collective == Collective::reduce) {
        part = whole = count(0);
    } else {
        for (int other = 0; other < ranks; ++other) whole += count(other);
    }
    const bool from_root = collective == Collective::broadcast || collective == Collective::scatter;
    const bool to_root = collective == Collective::reduce || collective == Collective::gather;
    const bool gathers = collective == Collective::all_gather || collective == Collective::gather;
    std::int64_t sent = gathers ? part : whole, received = gathers ? whole : part;
    if (rank != root && from_root) sent = 0;
    if (rank != root && to_root) received = 0;
    const auto bytes = [&](std::int64_t n) { return static_cast<std::size_t>(n) * size_of(type); };
    if (in_place) return {bytes(std::max(sent, received))};
    return {bytes(sent), bytes(received)};
}

void DevicePlan::check_given(std::span<const GpuAddress> buffers) const {
    if (buffers.size() != bytes_.size())
        throw PlanError(what_ + " has " + std::to_string(bytes_.size()) + " buffers, " +
                        std::to_string(buffers.size()) + " were given");
}

void DevicePlan::run(std::span<const GpuAddress> buffers, void* stream) {
    check_given(buffers);
    gpu_->make_current();
    gpu_->refuse_if_aborted();
    if (!recordable_ && gpu_->is_capturing(stream))
        throw GpuError(what_ + " takes the host, so that it cannot be recorded in a graph");
    put(buffers, stream);
}

} // namespace jali
