#include "running/running_plan.hpp"
#include "planning/rules.hpp"
#include "schedule/first_run.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace jali {

bool is_for_devices(const PlanParameters& parameters) {
    const auto& transports = algorithm_names().transports;
    return std::ranges::any_of(parameters.libraries,
                               [&](const std::string& name) { return transports.contains(name); });
}

RunningPlan::RunningPlan(std::shared_ptr<Collectives> there, std::shared_ptr<const Composition> composition,
                         PlanParameters parameters, std::string what)
    : collectives_(std::move(there)), composition_(std::move(composition)),
      parameters_(std::move(parameters)), what_(std::move(what)) {
    if (!collectives_ || !composition_)
        throw PlanError("a plan of " + what_ + " whose " + (collectives_ ? "composition" : "collectives") +
                        " are null");
    refuse_other_ranks(*composition_, collectives_->ranks()->size());
    if (is_for_devices(parameters_)) return;
    on_host_ = PersistentPlan::make(std::make_shared<const Schedule>(
                                        plan_rank(*composition_, parameters_, collectives_->ranks()->rank())),
                                    collectives_->space(), what_);
}

PersistentPlan& RunningPlan::host() const {
    if (on_host_) return *on_host_;
    std::string named;
    for (const std::string& name : parameters_.libraries) named += (named.empty() ? "" : ", ") + name;
    throw PlanError("a plan with libraries " + named + " is for arrays in device memory; give such arrays");
}

PersistentPlan& RunningPlan::on_host() {
    last_ = nullptr;
    return host();
}

RunningPlan::OnDevice& RunningPlan::there(const std::shared_ptr<Gpu>& gpu) {
    const auto known = on_devices_.find(gpu.get());
    if (known != on_devices_.end()) return known->second;
    PlanParameters parameters = parameters_; // slices of the device's queues take the place of chunks
    parameters.depth = 1;
    parameters.scratch_limit = std::numeric_limits<std::size_t>::max();
    parameters.pack_below = 0;
    std::shared_ptr<GpuPlan> plan = collectives_->on(gpu)->plan(*composition_, std::move(parameters), what_);
    return on_devices_.try_emplace(gpu.get(), std::move(plan), gpu).first->second;
}

void RunningPlan::start(const std::shared_ptr<Gpu>& gpu, std::span<const GpuAddress> buffers, void* stream) {
    if (on_host_ && on_host_->running())
        throw std::logic_error(what_ + " is under way on the host; wait for it before the next start");
    OnDevice& here = there(gpu);
    const bool captured = gpu->is_capturing(stream);
    if (!captured && !gpu->is_capturing(gpu->stream())) prove_once(*here.plan, buffers, stream);
    here.plan->run(buffers, stream);
    if (captured) return; // the graph's launcher waits for it
    here.ended.record(stream);
    last_ = &here.ended;
}

void RunningPlan::warm_up(const std::shared_ptr<Gpu>& gpu, std::span<const GpuAddress> buffers) {
    GpuPlan& plan = *on(gpu);
    prove_once(plan, buffers, gpu->stream());
    plan.warm_up();
}

void RunningPlan::check(const std::shared_ptr<Gpu>& gpu, std::span<const GpuAddress> buffers) {
    check(*on(gpu), buffers);
}

void RunningPlan::check(GpuPlan& plan, std::span<const GpuAddress> buffers) {
    plan.check(buffers, *composition_, parameters_.reproducible, *collectives_->ranks());
}

void RunningPlan::prove_once(GpuPlan& plan, std::span<const GpuAddress> buffers, void* stream) {
    if (!first_runs_are_proved() || plan.proved()) return;
    Gpu& gpu = *plan.gpu();
    const bool elsewhere = stream != gpu.stream(); // checked runs are on the device's own
    if (elsewhere) gpu.wait_for(stream);
    check(plan, buffers);
    if (elsewhere) gpu.let_wait(stream);
}

bool RunningPlan::test() {
    if (last_ == nullptr) return host().test();
    const bool ended = last_->reached();
    if (ended) last_->gpu()->refuse_if_aborted();
    return ended;
}

void RunningPlan::wait() {
    if (last_ != nullptr)
        last_->gpu()->refuse_if_aborted();
    else
        host().wait();
}

bool RunningPlan::running() {
    return last_ != nullptr ? !test() : host().running();
}

} // namespace jali
