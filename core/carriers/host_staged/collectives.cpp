// Host-staged: the host's own plan, on copies in pinned memory.
//
// That plan is made and run in Python (DeviceCall::on_host). The host waits for what is on the stream, for
// the collective and for its result to be on the device.
#include "carriers/carriers.hpp"
#include "collective/collective_transport.hpp"

#include <utility>

namespace jali {

namespace {

class StagedPlan final : public DevicePlan {
  public:
    StagedPlan(const CollectiveRanks& ranks, const DeviceCall& call, std::string what)
        : DevicePlan(ranks.gpu, std::move(what), host_staged.traits.recordable), on_host_(call.on_host),
          there_(ranks.gpu, false) {
        bytes_ = call.bytes_of_buffers(ranks.control->size(), ranks.control->rank());
    }

  private:
    // What goes in are all buffers but the last, or the only one; what comes out is the last.
    void put(std::span<const GpuAddress> buffers, void* stream) override {
        const std::size_t last = buffers.size() - 1;
        std::vector<PinnedMemory> memory;
        std::vector<std::span<std::byte>> copies;
        for (std::size_t k = 0; k <= last; ++k) {
            memory.push_back(gpu_->allocate_pinned(bytes_[k], "collective by way of the host"));
            copies.emplace_back(memory[k].data(), bytes_[k]);
            if (bytes_[k] > 0 && (k < last || last == 0))
                gpu_->copy_out(memory[k].data(), buffers[k], bytes_[k], stream);
        }
        await(stream);
        on_host_(copies);
        if (bytes_[last] == 0) return;
        gpu_->copy_in(buffers[last], memory[last].data(), bytes_[last], stream);
        await(stream);
    }

    void await(void* stream) {
        there_.record(stream);
        there_.wait();
    }

    std::function<void(std::span<const std::span<std::byte>>)> on_host_;
    GpuEvent there_; // what was copied last
};

class Staged final : public CollectiveCarrier {
  public:
    explicit Staged(const CollectiveRanks& ranks)
        : CollectiveCarrier(collectives_by_staging, *ranks.gpu), ranks_(ranks) {}
    std::shared_ptr<DevicePlan> plan(const DeviceCall& call, std::string what) override {
        return std::make_shared<StagedPlan>(ranks_, call, std::move(what));
    }

  private:
    CollectiveRanks ranks_;
};

} // namespace

const CollectiveTransport collectives_by_staging{
    {host_staged},
    [](const CollectiveRanks& ranks) -> std::shared_ptr<CollectiveCarrier> {
        return std::make_shared<Staged>(ranks);
    },
    {.itself = true, .user_operations = true}};

} // namespace jali
