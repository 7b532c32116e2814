#include "halo/halo_batches.hpp"
#include "halo/policy.hpp"
#include "settings/settings.hpp"

namespace jali {

namespace {

class Order {
  public:
    Order(const HaloPolicy& policy, const HaloShape& shape, std::span<const HaloTransport* const> transports,
          const HaloBatchBegun& begun)
        : shape_(shape), transports_(transports), begun_(begun), beside_(policy.overlap && shape.has_bulk) {
        if (shape.produces) add(StepRole::produce, -1, false);
        moves(HaloTime::first, -1);
        for (int s = 0; s < shape.stages; ++s) moves(HaloTime::first_by_stage, s);
        if (beside_) {
            side_ = add(StepRole::bulk, -1, true);
            if (shape.bulk_waits_for_packing && packed_ >= 0) batches_[side_].needs = {packed_};
        }
        moves(HaloTime::behind_bulk, -1);
        for (int s = 0; s < shape.stages; ++s) stage(s);
    }
    std::vector<Batch> take() { return std::move(batches_); }

  private:
    // On the device's own stream a batch follows the previous one there.
    int add(StepRole role, int stage, bool beside, const HaloTransport* transport = nullptr,
            bool of_all = false) {
        const int number = static_cast<int>(batches_.size());
        batches_.push_back({{role}, stage, beside, {}, {}});
        int& last = beside ? side_ : main_;
        if (last >= 0) batches_[number].needs.push_back(last);
        last = number;
        if (role == StepRole::pack) packed_ = number;
        begun_(role, of_all ? -1 : stage, static_cast<std::size_t>(number), transport);
        return number;
    }
    void moves(HaloTime time, int stage) {
        for (const HaloTransport* transport : transports_) {
            for (const HaloMove& move : transport->moves) {
                if (move.time != time) continue;
                add(move.role, stage, false, transport, time == HaloTime::with_last_stage);
                if (stage >= 0) arrived_.resize(static_cast<std::size_t>(shape_.stages), -1);
                if (stage >= 0) arrived_[stage] = main_;
            }
        }
    }
    // Boundaries of all stages but the last are on the stream beside, after the bulk, where they delay no
    // exchange.
    void stage(int s) {
        const bool last = s + 1 == shape_.stages;
        moves(HaloTime::by_stage, s);
        if (last) moves(HaloTime::with_last_stage, s);
        const int arrived = s < static_cast<int>(arrived_.size()) && arrived_[s] >= 0 ? arrived_[s] : main_;
        const bool beside = beside_ && !last;
        const int side_before = side_;
        const int boundary = add(StepRole::boundary, s, beside);
        auto& needs = batches_[boundary].needs;
        if (beside) needs.push_back(arrived);
        if (beside_ && last && !shape_.boundary_fills) needs.push_back(side_before);
    }

    const HaloShape& shape_;
    std::span<const HaloTransport* const> transports_;
    const HaloBatchBegun& begun_;
    bool beside_;
    std::vector<Batch> batches_;
    int main_ = -1, side_ = -1, packed_ = -1;
    std::vector<int> arrived_; // [stage]: the batch with which its halos are there
};

bool is_off(const Batch& batch, const HaloSwitches& on) {
    const bool packs = batch.has_any(set_of({StepRole::produce, StepRole::pack}));
    const bool computes = batch.has_any(set_of({StepRole::bulk, StepRole::boundary}));
    // a kernel that stores into the receiver's memory is the transport as well
    const bool carries = !computes && (!packs || batch.has(StepRole::put));
    return (carries && !on.transport) || (packs && !carries && !on.pack) ||
           (batch.has(StepRole::bulk) && !on.bulk) || (batch.has(StepRole::boundary) && !on.boundary);
}

} // namespace

std::vector<Batch> ordered_batches(const HaloPolicy& policy, const HaloShape& shape,
                                   std::span<const HaloTransport* const> transports,
                                   const HaloBatchBegun& begun) {
    return Order(policy, shape, transports, begun).take();
}

void fuse(std::vector<Batch>& batches, const HaloPolicy& policy, const HaloShape& shape) {
    for (const auto& rules : {policy.transport->fusions, policy.fusions})
        for (const Fusion& rule : rules) {
            if (rule.if_only_stage && shape.stages > 1) continue;
            if (rule.in_kernel() && !(shape.on.all() && shape.kernel_has_roles)) continue;
            for (int s = 0; s < shape.stages; ++s) fuse(batches, rule, s);
        }
    for (Batch& batch : batches)
        if (is_off(batch, shape.on)) batch.roles.clear();
}

std::vector<Batch> halo_batches(const HaloPolicy& policy, const HaloShape& shape) {
    auto batches = ordered_batches(policy, shape, std::span(&policy.transport, 1),
                                   [](StepRole, int, std::size_t, const HaloTransport*) {});
    fuse(batches, policy, shape);
    return batches;
}

HaloSwitches halo_switches() {
    const std::string& off = settings().halo_off;
    if (off.empty()) return {};
    const auto is_on = [&](const char* part) { return off.find(part) == std::string::npos; };
    return {is_on("pack"), is_on("transport"), is_on("bulk"), is_on("boundary")};
}

} // namespace jali
