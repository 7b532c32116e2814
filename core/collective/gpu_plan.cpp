#include "collective/gpu_plan.hpp"
#include "device/timeline.hpp"
#include "settings/notice.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace jali {

namespace {

// Sizes that had other names. A row may go one release after it came.
constexpr std::pair<std::string_view, const char*> renamed[] = {{"lanes", "channels"},
                                                                {"bytes_per_lane", "bytes_per_channel"}};

// The name of today of a size; who uses an older one is told so.
std::string name_of_today(const std::string& name) {
    for (const auto& [old, today] : renamed) {
        if (name != old) continue;
        tell_once("device_queues: '" + name + "' is called '" + today +
                  "'; the next release knows it only so");
        return today;
    }
    return name;
}

// The experiment `device_queues`, a list such as "channels=32,slot_bytes=65536"; must be the same on all
// ranks.
void read_parameters(DeviceProgramParameters& p) {
    std::string rest = settings().device_queues;
    std::int64_t channels = p.most_channels;
    const std::pair<const char*, std::int64_t*> known[] = {
        {"channels", &channels},
        {"bytes_per_channel", &p.bytes_per_channel},
        {"slot_bytes", &p.slotted.slot_bytes},
        {"slots", &p.slotted.slots},
        {"flagged_bytes", &p.flagged.slot_bytes},
        {"flagged_slots", &p.flagged.slots},
        {"flagged_below", &p.flagged_below},
        {"flagged_below_combining", &p.flagged_below_combining},
    };
    while (!rest.empty()) {
        const auto comma = std::min(rest.find(','), rest.size());
        const std::string item = rest.substr(0, comma);
        rest.erase(0, comma + 1);
        const auto equals = item.find('=');
        const std::string name = name_of_today(item.substr(0, equals));
        std::int64_t value = 0;
        try {
            if (equals != std::string::npos) value = std::stoll(item.substr(equals + 1));
        } catch (const std::exception&) {
        }
        bool found = false;
        for (const auto& [key, target] : known)
            if (name == key && value > 0) {
                *target = value;
                found = true;
            }
        const auto is_of = [&](const char* what) { return name.find(what) != std::string::npos; };
        if (!found || (is_of("_bytes") && value % 16 != 0) ||
            (is_of("slots") && (value & (value - 1)) != 0)) {
            std::string names;
            for (const auto& row : known) names += (names.empty() ? "" : ", ") + std::string(row.first);
            throw PlanError("device_queues: '" + item + "' is none of " + names +
                            ", each =<number>, bytes of slots in multiples of 16, slots a power of two");
        }
    }
    p.most_channels = static_cast<int>(channels);
}

} // namespace

CollectiveQueues::CollectiveQueues(std::shared_ptr<Gpu> gpu,
                                   const std::shared_ptr<Communicator>& communicator) {
    const int size = communicator->size();
    if (size > most_ranks)
        throw GpuError("collectives through the memory of peers are for up to " + std::to_string(most_ranks) +
                       " ranks, not " + std::to_string(size));
    // with more ranks more messages are under way at once, and flags are looked at for longer
    if (size > 2) parameters_.flagged_below_combining /= 2;
    if (size > 4) parameters_.slotted.slot_bytes = size <= 8 ? 65536 : 32768;
    read_parameters(parameters_);
    const DeviceQueues &slots = parameters_.slotted, &flags = parameters_.flagged;
    const std::int64_t channels = parameters_.most_channels, pairs = channels * size;
    const auto rank_of = [size](std::int64_t pair) { return static_cast<int>(pair % size); };
    const auto sender_in = [rank_of](std::int64_t of_pair) { // of words [channel][rank][so many]
        return [=](std::int64_t word) { return rank_of(word / of_pair); };
    };
    pad_ = std::make_unique<SignalPad>(
        gpu, communicator,
        std::vector<SignalWords>{
            {SignalWords::data, pairs * slots.slots, "message", sender_in(slots.slots)},
            {SignalWords::credit, pairs, "message", rank_of},
            {SignalWords::credit, pairs, "message", rank_of},
            {SignalWords::data, pairs * flags.slots, "message", sender_in(flags.slots),
             static_cast<std::size_t>(2 * flags.slot_bytes)},
        },
        static_cast<std::size_t>(pairs * slots.slots * slots.slot_bytes), 2 * 2 * pairs,
        "waited for its device, where a collective waits for other ranks", "collective queues");
    overflows_ = gpu->allocate(sizeof(std::int64_t), "collective counters");
    gpu->fill(overflows_.address(), 0, overflows_.size());
    const auto& bases = pad_->buffer().all();
    bases_ = gpu->upload(bases.data(), bases.size() * sizeof(GpuAddress), "collective tables");
}

void CollectiveQueues::order(void* stream, bool captured) {
    if (captured) return; // a graph is put in order by who launches it
    if (last_stream_ != nullptr && stream != last_stream_) pad_->order_behind_work(stream);
    last_stream_ = stream;
}

GpuPlan::GpuPlan(std::shared_ptr<Gpu> gpu, std::shared_ptr<CollectiveQueues> queues,
                 std::shared_ptr<CclCommunicator> ccl, std::vector<DeviceStage> stages,
                 const Schedule& schedule, GpuFunction kernel, std::string what)
    : gpu_(std::move(gpu)), queues_(std::move(queues)), ccl_(std::move(ccl)), kernel_(std::move(kernel)),
      what_(std::move(what)) {
    const auto& buffers = schedule.buffers();
    if (buffers.empty() || buffers.size() > most_buffers)
        throw PlanError(what_ + " has " + std::to_string(buffers.size()) + " buffers; a device takes 1 to " +
                        std::to_string(most_buffers));
    // Messages are read where they arrive, so what was planned as scratch may not be used at all.
    const auto used = [&](int buffer) {
        const auto is = [&](const DeviceOperand& o) { return o.where == buffer; };
        return std::any_of(stages.begin(), stages.end(), [&](const DeviceStage& stage) {
            const DeviceProgram& p = stage.program;
            return std::any_of(p.sources.begin(), p.sources.end(), is) ||
                   std::any_of(p.instructions.begin(), p.instructions.end(),
                               [&](const DeviceInstruction& i) { return is(i.to); }) ||
                   std::any_of(stage.messages.begin(), stage.messages.end(),
                               [&](const DeviceMessage& m) { return m.region.buffer == buffer; });
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
    user_buffers_ = static_cast<int>(own);
    has_work_ = own + 1 < buffers.size();
    for (std::size_t k = 0; k < own; ++k) bytes_.push_back(buffers[k].bytes);
    for (DeviceStage& plan : stages) {
        if (!plan.messages.empty() && !ccl_)
            throw PlanError(what_ + " sends messages through the vendor's library, which is not there");
        Stage& stage = stages_.emplace_back();
        stage.plan = std::move(plan);
        prepare(stage, addresses);
    }
}

void GpuPlan::prepare(Stage& stage, std::span<const GpuAddress> own) {
    const DeviceProgram& program = stage.plan.program;
    CollectiveArguments& a = stage.arguments;
    std::copy(own.begin(), own.end(), a.buffers);
    std::vector<std::byte> table;
    const auto add = [&](const auto& rows) {
        const auto bytes = std::as_bytes(std::span(rows));
        table.insert(table.end(), bytes.begin(), bytes.end());
    };
    add(program.instructions);
    add(program.sources);
    add(program.actions);
    add(program.waits);
    bool messages = false;
    for (int r = 0; r < program.ranks; ++r)
        messages = messages || program.sent[r] > 0 || program.received[r] > 0;
    if (messages && !queues_)
        throw PlanError(what_ + " sends messages through the memory of peers, which cannot be reached");
    for (int r = 0; messages && r < program.ranks; ++r) add(std::array{program.sent[r], program.received[r]});
    if (table.empty()) return;
    stage.table = gpu_->upload(table.data(), table.size(), "collective tables");
    if (table.size() <= sizeof a.small_table) std::memcpy(a.small_table, table.data(), table.size());

    const auto count = [](const auto& rows) { return static_cast<std::int64_t>(rows.size()); };
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

// For profiles: the larger of what goes in and what comes out.
Work GpuPlan::work() const {
    std::size_t most = 0;
    for (std::size_t bytes : bytes_) most = std::max(most, bytes);
    const auto n = static_cast<std::int64_t>(most);
    return {0, n, n, 0};
}

void GpuPlan::check_given(std::span<const GpuAddress> buffers) const {
    if (static_cast<int>(buffers.size()) != user_buffers_)
        throw PlanError(what_ + " has " + std::to_string(user_buffers_) + " buffers, " +
                        std::to_string(buffers.size()) + " were given");
}

void GpuPlan::run(std::span<const GpuAddress> buffers, void* stream) {
    check_given(buffers);
    gpu_->make_current();
    gpu_->refuse_if_aborted();
    const bool captured = queues_ && gpu_->is_capturing(stream);
    if (queues_) queues_->order(stream, captured);
    std::optional<DeviceSpan> span;
    if (watched()) span.emplace(*gpu_, stream, Phase::collective, what_, work());
    for (Stage& stage : stages_) {
        std::copy(buffers.begin(), buffers.end(), stage.arguments.buffers);
        if (!stage.plan.messages.empty()) {
            const auto at = [&](const Region& r) { return stage.arguments.buffers[r.buffer] + r.offset; };
            std::vector<CclMessage> messages;
            for (const DeviceMessage& m : stage.plan.messages)
                messages.push_back({at(m.region), m.region.bytes, m.peer, m.sends});
            ccl_->exchange(messages, stream);
        }
        if (stage.arguments.instructions == 0) continue;
        gpu_->launch(kernel_, static_cast<unsigned>(stage.plan.program.channels), stage.threads,
                     stage.arguments, stream);
    }
    span.reset();
    if (queues_) queues_->pad_->note_work(stream, captured);
}

std::string GpuPlan::describe() const {
    std::string text;
    for (const Stage& stage : stages_) {
        for (const DeviceMessage& m : stage.plan.messages)
            text += "  " + gpu_->vendor().ccl.setting + ": " + (m.sends ? "send " : "receive ") +
                    std::to_string(m.region.bytes) + " bytes " + (m.sends ? "to rank " : "from rank ") +
                    std::to_string(m.peer) + "\n";
        if (!stage.plan.program.instructions.empty()) text += stage.plan.program.describe();
    }
    return text;
}

std::int64_t GpuPlan::take_overflows(CollectiveQueues& queues) {
    std::int64_t count = 0;
    Gpu& gpu = *queues.gpu();
    gpu.copy_out(&count, queues.overflows_.address(), sizeof count);
    gpu.synchronize();
    if (count > 0) gpu.fill(queues.overflows_.address(), 0, sizeof count);
    return count;
}

} // namespace jali
