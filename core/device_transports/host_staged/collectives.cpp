// Host-staged: the host's own plan, on copies in pinned memory.
//
// The host waits for earlier work on the stream, for the collective and for the copy of its result to the
// device.
#include "device_transports/device_transports.hpp"
#include "running/collective_transport.hpp"

#include <utility>

namespace jali {

namespace {

class StagedPlan final : public DevicePlan {
  public:
    StagedPlan(const CollectiveRanks& ranks, const CollectiveCall& call, std::string what)
        : DevicePlan(ranks.gpu, std::move(what), host_staged.traits.recordable), call_(call),
          on_host_(ranks.on_host), there_(ranks.gpu, false) {
        bytes_ = bytes_of_buffers(call, ranks.control->size(), ranks.control->rank());
        call_.algorithm.clear(); // the host chooses its own
    }

  private:
    // The inputs are all buffers but the last, or the only one; the output is the last.
    void put(std::span<const GpuAddress> buffers, void* stream) override {
        const std::size_t last = buffers.size() - 1;
        std::vector<PinnedMemory> memory;
        std::vector<std::byte*> copies;
        for (std::size_t k = 0; k <= last; ++k) {
            memory.push_back(gpu_->allocate_pinned(bytes_[k], "collective by way of the host"));
            copies.push_back(bytes_[k] > 0 ? memory[k].data() : nullptr);
            if (bytes_[k] > 0 && (k < last || last == 0))
                gpu_->copy_out(memory[k].data(), buffers[k], bytes_[k], stream);
        }
        await(stream);
        on_host_(call_, copies);
        if (bytes_[last] == 0) return;
        gpu_->copy_in(buffers[last], memory[last].data(), bytes_[last], stream);
        await(stream);
    }

    void await(void* stream) {
        there_.record(stream);
        there_.wait();
    }

    CollectiveCall call_;
    RunsOnHost on_host_;
    GpuEvent there_; // the last copy
};

class Staged final : public CollectiveConnection {
  public:
    explicit Staged(const CollectiveRanks& ranks)
        : CollectiveConnection(collectives_by_staging, *ranks.gpu), ranks_(ranks) {}
    std::shared_ptr<DevicePlan> plan(const CollectiveCall& call, std::string what) override {
        return std::make_shared<StagedPlan>(ranks_, call, std::move(what));
    }

  private:
    CollectiveRanks ranks_;
};

} // namespace

const CollectiveTransport collectives_by_staging{
    {host_staged},
    [](const CollectiveRanks& ranks) -> std::shared_ptr<CollectiveConnection> {
        return std::make_shared<Staged>(ranks);
    },
    {.itself = true, .user_operations = true}};

} // namespace jali
