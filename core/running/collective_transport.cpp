#include "running/collective_transport.hpp"

#include <algorithm>

namespace jali {

namespace {

constexpr const CollectiveTransport* transports[] = {
    &collectives_by_remote_write,     &collectives_by_library,     &collectives_by_librarys_windows,
    &collectives_by_librarys_streams, &collectives_by_copy_engine, &collectives_by_array_write,
    &collectives_by_gpu_aware_mpi,    &collectives_by_staging};

} // namespace

std::span<const CollectiveTransport* const> collective_transports() {
    return transports;
}

CollectiveConnection::CollectiveConnection(const CollectiveTransport& transport, const Gpu& gpu)
    : transport(transport), name(name_of(transport, &gpu.vendor())) {
}

void CollectiveConnection::exchange(std::span<const StageMessage>, std::span<const GpuAddress>, void*) {
    throw std::logic_error("'" + name + "' carries no messages of plans between launches");
}

std::vector<StageExchange>
CollectiveConnection::prepare(std::span<const std::span<const StageMessage>> stages,
                              std::span<const GpuAddress>) {
    std::vector<StageExchange> exchanges;
    for (const auto& messages : stages)
        exchanges.push_back([this, messages](std::span<const GpuAddress> buffers, void* stream) {
            exchange(messages, buffers, stream);
        });
    return exchanges;
}

std::shared_ptr<DevicePlan> CollectiveConnection::plan(const CollectiveCall&, std::string) {
    throw std::logic_error("'" + name + "' has no collectives itself");
}

void DevicePlan::check_given(std::span<const GpuAddress> buffers) const {
    if (buffers.size() != bytes_.size())
        throw PlanError(what_ + " has " + std::to_string(bytes_.size()) + " buffers, " +
                        std::to_string(buffers.size()) + " were given");
    for (std::size_t k = 0; k < bytes_.size(); ++k)
        if (buffers[k] == 0 && bytes_[k] > 0)
            throw PlanError(what_ + ": buffer " + std::to_string(k) + " has " + std::to_string(bytes_[k]) +
                            " bytes on this rank and no address");
    const auto is_written = [&](std::size_t k) {
        return written_.empty() ? k + 1 == bytes_.size() : static_cast<bool>(written_[k]);
    };
    for (std::size_t a = 0; a < bytes_.size(); ++a)
        for (std::size_t b = a + 1; b < bytes_.size(); ++b) {
            if (bytes_[a] == 0 || bytes_[b] == 0 || !(is_written(a) || is_written(b))) continue;
            if (buffers[a] + bytes_[a] <= buffers[b] || buffers[b] + bytes_[b] <= buffers[a]) continue;
            throw PlanError(what_ + ": the arrays of buffers " + std::to_string(a) + " and " +
                            std::to_string(b) + " overlap, and " + std::to_string(is_written(b) ? b : a) +
                            " is written; give them memory of their own, or do it in place");
        }
}

void DevicePlan::warm_up() {
    std::vector<GpuMemory> memory;
    std::vector<GpuAddress> addresses;
    for (const std::size_t bytes : bytes_) {
        if (bytes > 0) memory.push_back(gpu_->allocate(bytes, "warmed up arrays"));
        addresses.push_back(bytes > 0 ? memory.back().address() : 0);
    }
    run(addresses, gpu_->stream());
}

void DevicePlan::run(std::span<const GpuAddress> buffers, void* stream) {
    check_given(buffers);
    const CurrentGpu current(*gpu_);
    gpu_->refuse_if_aborted();
    if (!recordable_ && gpu_->is_capturing(stream))
        throw GpuError(what_ + " takes the host, so that it cannot be recorded in a graph");
    put(buffers, stream);
    std::size_t most = 0;
    for (const std::size_t bytes : bytes_) most = std::max(most, bytes);
    if (gpu_->notes_progress(most)) gpu_->note_progress(stream, what_);
}

} // namespace jali
