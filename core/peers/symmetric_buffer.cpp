#include "peers/symmetric_buffer.hpp"

#include <utility>

namespace jali {

namespace {

// Empty, or the driver's text on the first rank whose running kernels cannot see writes of others.
std::string agree_on_fine_memory(Gpu& gpu, Communicator& communicator) {
    const std::string reported =
        first_reported(communicator, gpu.why_no_fine_memory(), "device memory of ranks");
    return reported.empty() ? ""
                            : "kernels that wait for other devices take fine-grained memory of their own (" +
                                  reported + ")";
}

} // namespace

std::string SymmetricBuffer::why_not(const std::shared_ptr<Gpu>& gpu, Communicator& communicator) {
    const RankDevices devices(gpu, communicator);
    std::vector<std::int64_t> met(devices.kinds, 0); // obstacles of this rank, by kind
    for (int r = 0; r < communicator.size(); ++r)
        if (const auto obstacle = devices.obstacle(r); obstacle != RankDevices::none) met[obstacle] = 1;
    communicator.all_reduce_sum(met);
    if (met[RankDevices::other_host] > 0) return "ranks run on several hosts";
    if (met[RankDevices::no_access] > 0)
        return "the driver lets some device of a process not reach another's memory";
    if (met[RankDevices::same_device] > 0)
        return devices.crowd().empty() ? "ranks of one process share a device" : devices.crowd();
    std::string trouble = agree_on_fine_memory(*gpu, communicator);
    if (trouble.empty()) trouble = agree_on_handle_type(gpu, communicator);
    if (!trouble.empty()) return trouble;
    bool processes = false;
    for (int r = 0; r < communicator.size(); ++r) processes = processes || !devices.same_process(r);
    if (processes && gpu->vendor().fine_grained != 0 && gpu->handle_type() == HandleType::descriptor)
        return "kernels that wait for other devices take fine-grained memory, which has no handle of the "
               "type "
               "virtual";
    return "";
}

SymmetricBuffer::SymmetricBuffer(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator,
                                 Reach reach)
    : gpu_(std::move(gpu)), communicator_(std::move(communicator)), reach_(reach),
      why_not_(static_cast<std::size_t>(communicator_->size())),
      in_this_process_(static_cast<std::size_t>(communicator_->size())) {
    if (reach_ == Reach::some) {
        no_fine_memory_ = agree_on_fine_memory(*gpu_, *communicator_);
        no_handle_type_ = agree_on_handle_type(gpu_, *communicator_);
    } else if (const std::string trouble = why_not(gpu_, *communicator_); !trouble.empty()) {
        throw GpuError("devices cannot exchange messages through their memory: " + trouble);
    }
}

void SymmetricBuffer::allocate(std::size_t bytes, std::size_t zeroed, std::string_view label) {
    if (mapping_) {
        const CurrentGpu current(*gpu_);
        gpu_->synchronize();
        gpu_->api().check(gpu_->api().context_synchronize(), "waiting for the device");
        communicator_->barrier(); // no rank writes into old memory any more
        mapping_.reset();
        communicator_->barrier(); // nor has one mapped
        memory_.release();
    }
    std::string trouble; // reported to all ranks, so that none waits for the memory of another
    try {
        memory_ =
            no_fine_memory_.empty() ? gpu_->allocate_fine(bytes, label) : gpu_->allocate(bytes, label, true);
    } catch (const OutOfMemory& error) {
        trouble = error.what();
    }
    if (const std::string reported = first_reported(*communicator_, trouble, "device memory of ranks");
        !reported.empty()) {
        memory_.release();
        throw OutOfMemory(trouble.empty() ? reported : trouble);
    }
    if (zeroed > 0) gpu_->fill(memory_.address(), 0, zeroed);
    gpu_->synchronize();
    if (reach_ == Reach::some) return map_whom_it_can();
    mapping_ = std::make_unique<PeerMapping>(gpu_, *communicator_, memory_.address(), memory_.size());
}

void SymmetricBuffer::map_whom_it_can() {
    const RankDevices devices(gpu_, *communicator_);
    const int ranks = communicator_->size(), me = communicator_->rank();
    std::vector<char> wanted(static_cast<std::size_t>(ranks), 0);
    for (int r = 0; r < ranks; ++r) {
        in_this_process_[r] = devices.same_process(r);
        const std::string rank = "rank " + std::to_string(r);
        switch (devices.obstacle(r)) {
        case RankDevices::none:
            wanted[r] = r != me && no_fine_memory_.empty();
            if (r != me) why_not_[r] = no_fine_memory_;
            continue;
        case RankDevices::other_host:
            why_not_[r] = rank + " is on another host";
            continue;
        case RankDevices::same_device:
            why_not_[r] = devices.crowd().empty() ? rank + " is in the same process and has the same device"
                                                  : devices.crowd();
            continue;
        case RankDevices::no_access:
            why_not_[r] = "the memory of " + rank +
                          " cannot be mapped: the driver lets the two devices not access each other";
            continue;
        case RankDevices::kinds:
            break;
        }
    }
    mapping_ = std::make_unique<PeerMapping>(gpu_, *communicator_, memory_.address(), memory_.size(), wanted,
                                             PeerMapping::Missing::is_reported);
    std::vector<std::byte> reached(static_cast<std::size_t>(ranks), std::byte{1});
    for (int r = 0; r < ranks; ++r) {
        if (wanted[r] && !mapping_->why_not(r).empty())
            why_not_[r] =
                "the memory of rank " + std::to_string(r) + " cannot be mapped: " +
                (in_this_process_[r] || no_handle_type_.empty() ? mapping_->why_not(r) : no_handle_type_);
        if (!why_not_[r].empty()) reached[r] = std::byte{0};
    }
    const char* what = "device memory of ranks";
    const auto all = communicator_->all_gather(reached, what);
    all_reached_ = true;
    for (int r = 0; r < ranks; ++r) {
        check_bytes(all[r], reached.size(), r, what);
        for (std::byte b : all[r]) all_reached_ = all_reached_ && b == std::byte{1};
        if (all[r][static_cast<std::size_t>(me)] == std::byte{0} && why_not_[r].empty())
            why_not_[r] = "rank " + std::to_string(r) + " cannot map the memory of this rank";
    }
}

} // namespace jali
