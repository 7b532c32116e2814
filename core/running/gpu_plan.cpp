#include "running/gpu_plan.hpp"
#include "device/timeline.hpp"
#include "running/persistent.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

namespace jali {

GpuPlan::GpuPlan(std::shared_ptr<Gpu> gpu, std::shared_ptr<CollectiveQueues> queues,
                 std::vector<std::shared_ptr<CollectiveConnection>> connections,
                 std::vector<DeviceStage> stages, const Schedule& schedule, GpuFunction kernel,
                 std::string what, std::span<const GpuAddress> fixed)
    : DevicePlan(
          std::move(gpu), std::move(what),
          std::ranges::all_of(connections, [](const auto& c) { return c->transport.traits.recordable; })),
      queues_(std::move(queues)), order_(queues_ ? queues_->order_ : std::make_shared<StreamOrder>(gpu_)),
      connections_(std::move(connections)), kernel_(std::move(kernel)), fixed_(fixed.begin(), fixed.end()),
      program_(gpu_) {
    order_->before(gpu_->stream()); // tables are uploaded there
    const auto& buffers = schedule.buffers();
    if (buffers.empty() || buffers.size() > most_buffers)
        throw PlanError(what_ + " has " + std::to_string(buffers.size()) + " buffers; a device takes 1 to " +
                        std::to_string(most_buffers));
    // Messages are read where they arrive, so planned scratch may be unused.
    const auto used = [&](int buffer) {
        const auto is = [&](const DeviceOperand& o) { return o.where == buffer; };
        return std::any_of(stages.begin(), stages.end(), [&](const DeviceStage& stage) {
            const DeviceProgram& p = stage.program;
            return std::any_of(p.sources.begin(), p.sources.end(), is) ||
                   std::any_of(p.instructions.begin(), p.instructions.end(),
                               [&](const DeviceInstruction& i) { return is(i.to); }) ||
                   std::ranges::any_of(stage.messages, [&](const TransportMessages& of) {
                       return std::ranges::any_of(
                           of.messages, [&](const StageMessage& m) { return m.region.buffer == buffer; });
                   });
        });
    };
    std::vector<GpuAddress> addresses(buffers.size(), 0);
    const auto provide = [&](GpuMemory& memory, std::size_t which) {
        if (buffers[which].bytes > 0 && used(static_cast<int>(which)))
            memory = gpu_->allocate(buffers[which].bytes, "plans");
        addresses[which] = memory.address();
    };
    std::size_t own = buffers.size() - 1;
    provide(scratch_, own);
    if (own > 0 && buffers[own - 1].name == "work") provide(work_, --own);
    has_work_ = own + 1 < buffers.size();
    for (std::size_t k = 0; k < own; ++k) bytes_.push_back(buffers[k].bytes);
    written_ = written_buffers(schedule);
    if (is_fixed()) {
        check_given(fixed_);
        std::ranges::copy(fixed_, addresses.begin());
    }
    stages_.resize(stages.size());
    for (std::size_t s = 0; s < stages.size(); ++s) {
        stages_[s].plan = std::move(stages[s]);
        prepare(stages_[s], addresses);
    }
    prepare_messages(addresses);
    std::vector<int> before;
    for (Stage& stage : stages_) add_to_program(stage, before);
}

// Its memory returns to the pool, which reuses it in the order of the device's own stream.
GpuPlan::~GpuPlan() {
    try {
        if (!gpu_->is_capturing(gpu_->stream())) order_->before(gpu_->stream());
    } catch (const GpuError&) { // the device is lost; other calls report it
    }
}

void GpuPlan::prepare_messages(std::span<const GpuAddress> own) {
    for (std::size_t c = 0; c < connections_.size(); ++c) {
        std::vector<std::span<const StageMessage>> messages;
        std::vector<Stage*> of;
        for (Stage& stage : stages_)
            for (const TransportMessages& of_transport : stage.plan.messages)
                if (of_transport.transport == static_cast<int>(c)) {
                    messages.push_back(of_transport.messages);
                    of.push_back(&stage);
                }
        auto exchanges = connections_[c]->prepare(messages, own);
        for (std::size_t k = 0; k < of.size(); ++k) of[k]->exchanges.push_back(std::move(exchanges[k]));
    }
}

// Exchanges, then the launch, which mostly reads received messages; else it runs beside them. `before`: the
// last steps of the stage before, and then of this one.
void GpuPlan::add_to_program(Stage& stage, std::vector<int>& before) {
    std::vector<int> steps;
    for (std::size_t k = 0; k < stage.exchanges.size(); ++k)
        steps.assign(1, program_.add(connections_[stage.plan.messages[k].transport]->name, 0, before,
                                     [&stage, k](void* stream) {
                                         stage.exchanges[k](stage.arguments.buffers, stream);
                                     }));
    if (stage.arguments.instructions > 0) {
        const bool apart = !steps.empty() && stage.plan.apart();
        if (apart && !beside_) beside_.emplace(gpu_);
        const int step = program_.add("program", apart ? 1 : 0, before, [this, &stage](void* stream) {
            gpu_->launch(kernel_, static_cast<unsigned>(stage.plan.program.channels), stage.threads,
                         stage.arguments, stream);
        });
        if (!apart) steps.clear();
        steps.push_back(step);
    }
    if (!steps.empty()) before = std::move(steps);
}

void GpuPlan::prepare(Stage& stage, std::span<const GpuAddress> own) {
    const DeviceProgram& program = stage.plan.program;
    CollectiveArguments& a = stage.arguments;
    std::copy(own.begin(), own.end(), a.buffers);
    std::vector<std::byte> table;
    const auto add = [&](const auto& entries) {
        const auto bytes = std::as_bytes(std::span(entries));
        table.insert(table.end(), bytes.begin(), bytes.end());
    };
    add(program.instructions);
    add(program.sources);
    add(program.actions);
    add(program.waits);
    bool messages = false;
    for (int r = 0; r < program.ranks; ++r)
        messages = messages || program.sent[r] > 0 || program.received[r] > 0;
    for (int r = 0; messages && r < program.ranks; ++r) add(std::array{program.sent[r], program.received[r]});
    if (table.empty()) return;
    stage.table = gpu_->upload(table.data(), table.size(), "collective tables");
    if (table.size() <= sizeof a.small_table) std::memcpy(a.small_table, table.data(), table.size());

    const auto count = [](const auto& entries) { return static_cast<std::int64_t>(entries.size()); };
    a.table = stage.table.address();
    a.table_words = count(table) / static_cast<std::int64_t>(sizeof(std::int64_t));
    a.instructions = count(program.instructions);
    a.sources = count(program.sources);
    a.actions = count(program.actions);
    a.waits = count(program.waits);
    a.first_last_action = program.first_last_action;
    a.iterations = program.iterations;
    a.channels = program.channels;
    a.leads = program.leads;
    a.slots = 1;
    // no more threads than have something to do, in one instruction or side by side in some, and whole warps
    const std::int64_t warp = gpu_->warp_size();
    std::int64_t most = 0, together = 0, left = 0;
    for (const DeviceInstruction& i : program.instructions) {
        if (left == 0) {
            left = std::max<std::int64_t>(1, i.together);
            together = 0;
        }
        --left;
        together += (i.chunk / 16 + warp - 1) / warp * warp;
        most = std::max(most, together);
    }
    stage.threads = static_cast<unsigned>(std::clamp<std::int64_t>(most, 64, most_threads));
    if (queues_) a.overflows = queues_->overflows_.address();
    if (!messages) return;
    const bool flagged = program.wire == Wire::flagged;
    const DeviceProgramParameters& parameters = queues_->parameters();
    const DeviceQueues& wire = flagged ? parameters.flagged : parameters.slotted;
    a.ranks = program.ranks;
    a.rank = program.rank;
    a.memories = queues_->bases_.address();
    a.own_memory = queues_->pad_->buffer().mine();
    a.arrived = queues_->pad_->offset(CollectiveQueues::arrived_slotted);
    a.freed =
        queues_->pad_->offset(flagged ? CollectiveQueues::freed_flagged : CollectiveQueues::freed_slotted);
    a.queues = queues_->queues(program.wire);
    a.slots = wire.slots;
    a.slot_bytes = flagged ? 2 * wire.slot_bytes : wire.slot_bytes;
    a.numbers = queues_->pad_->epoch(flagged ? 0 : parameters.most_channels * program.ranks * 2);
    a.watch = queues_->pad_->watch();
}

// For profiles: the larger of input and output.
Work GpuPlan::work() const {
    std::size_t most = 0;
    for (std::size_t bytes : bytes_) most = std::max(most, bytes);
    const auto n = static_cast<std::int64_t>(most);
    return {0, n, n, 0};
}

void GpuPlan::warm_up() {
    if (!is_fixed()) DevicePlan::warm_up();
}

void GpuPlan::put(std::span<const GpuAddress> buffers, void* stream) {
    if (is_fixed() && !std::ranges::equal(buffers, fixed_))
        throw PlanError(what_ + " is for arrays that stay where they were when it was made");
    if (!is_recorded_) first_run_.begins();
    const bool captured = gpu_->is_capturing(stream);
    order_->before(stream, captured);
    std::optional<DeviceSpan> span;
    if (watched()) span.emplace(*gpu_, stream, Phase::collective, what_, work());
    for (Stage& stage : stages_) std::copy(buffers.begin(), buffers.end(), stage.arguments.buffers);
    program_.run(std::array{stream, beside_ ? beside_->handle() : nullptr});
    span.reset();
    order_->after(stream, captured);
    if (queues_) queues_->pad_->note_work(stream, captured);
}

std::string GpuPlan::describe() const {
    std::string text;
    for (const Stage& stage : stages_) {
        for (const TransportMessages& of : stage.plan.messages)
            for (const StageMessage& m : of.messages)
                text += "  " + connections_[of.transport]->name + ": " + (m.sends ? "send " : "receive ") +
                        std::to_string(m.region.bytes) + " bytes " + (m.sends ? "to rank " : "from rank ") +
                        std::to_string(m.peer) + "\n";
        if (!stage.plan.program.instructions.empty()) text += stage.plan.program.describe();
    }
    return text;
}

} // namespace jali
