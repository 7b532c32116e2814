#include "proof/recorded_plan.hpp"

#include "composition/evaluation.hpp"
#include "proof/channel_states.hpp"
#include "running/gpu_plan.hpp"
#include "schedule/call_decoder.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

namespace jali {

using symbolic::Content;

void RecordedPlan::expect(const Composition& composition, bool reproducible, int rank) {
    symbolic::Symbols symbols;
    const Evaluation evaluation =
        evaluate(composition, symbols, reproducible, [&](int reader, const Region& hole) {
            throw ScheduleError("the composition reads byte " + std::to_string(hole.offset) + " of '" +
                                composition.buffers()[hole.buffer].name + "' on rank " +
                                std::to_string(reader) + ", which nothing has written");
        });
    how.reproducible = reproducible;
    ExportedValues exported(composition, symbols, reproducible, operations, values);
    const std::size_t size = size_of(composition.type()), all = composition.buffers().size();
    for (int b = 0; b < user_buffers; ++b) {
        // bytes that the composition does not write are preserved, also in buffers without input
        const std::uint64_t bytes = static_cast<std::uint64_t>(composition.buffers()[b].count(rank)) * size;
        std::vector<symbolic::Range<Content>> ranges;
        std::uint64_t at = 0;
        for (const auto& range : evaluation.after[static_cast<std::size_t>(rank) * (all + 1) + b].all()) {
            if (range.begin > at) ranges.push_back({at, range.begin, symbols.original(rank, b)});
            ranges.push_back(range);
            at = range.end;
        }
        if (at < bytes) ranges.push_back({at, bytes, symbols.original(rank, b)});
        for (const auto& [begin, end, what] : ranges)
            results.push_back(
                {b, begin, end, exported.number(what.symbol), static_cast<std::int64_t>(begin) + what.shift});
    }
}

// Enough that every queue of messages wraps around: read slots are then overwritten.
int GpuPlan::runs_to_record(Communicator& communicator) const {
    std::int64_t most = 3;
    for (const Stage& stage : stages_) {
        const DeviceProgram& p = stage.plan.program;
        for (const auto& numbers : {p.sent, p.received})
            for (const std::int64_t number : numbers)
                if (number > 0) most = std::max(most, stage.arguments.slots / (number * p.iterations) + 2);
    }
    const auto all = gather_values(communicator, most, "looking at what is given to drivers");
    return static_cast<int>(*std::max_element(all.begin(), all.end()));
}

// The first, the last and one between of all channels that begin alike on all ranks; all of them where the
// library carries messages too, which are of all slices at once.
void GpuPlan::choose_channels(RecordedPlan& subject, Communicator& communicator) const {
    const char* what = "looking at what is given to drivers";
    std::int64_t channels = 0;
    const CollectiveArguments* a = nullptr; // of a stage with messages
    for (const Stage& stage : stages_) {
        channels = std::max<std::int64_t>(channels, stage.plan.program.channels);
        if (stage.arguments.ranks > 0) a = &stage.arguments;
    }
    gpu_->synchronize();
    communicator.barrier(what);                                            // the words of all ranks are final
                                                                           // now
    std::vector<std::int32_t> mine(static_cast<std::size_t>(channels), 0); // the first channel alike
    if (!connections_.empty()) {
        std::iota(mine.begin(), mine.end(), 0);
    } else if (a != nullptr) {
        const auto words = [&](GpuAddress address, std::int64_t count) {
            std::vector<std::int64_t> found(static_cast<std::size_t>(count));
            if (count > 0) gpu_->copy_out(found.data(), address, found.size() * sizeof found[0]);
            gpu_->synchronize();
            return found;
        };
        const std::int64_t pairs = channels * a->ranks;
        const auto numbers = words(a->numbers, 2 * pairs);
        const auto freed = words(a->own_memory + static_cast<std::uint64_t>(a->freed), pairs);
        const bool slotted = subject.wire == Wire::slotted;
        const auto arrived =
            words(a->own_memory + static_cast<std::uint64_t>(slotted ? a->arrived : a->freed),
                  slotted ? pairs * a->slots : 0);
        std::map<ChannelState, std::int32_t> first;
        const auto states = channel_states(*a, channels, numbers, freed, arrived);
        for (std::size_t c = 0; c < states.size(); ++c)
            mine[c] = first.emplace(states[c], static_cast<std::int32_t>(c)).first->second;
    }
    std::vector<std::vector<std::int32_t>> of_channel(mine.size()); // the report of each rank
    for (const auto& reported : communicator.all_gather(std::as_bytes(std::span(mine)), what)) {
        if (reported.size() != mine.size() * sizeof mine[0])
            throw PlanError(what_ + " has " + std::to_string(channels) + " channels here, others elsewhere");
        for (std::size_t c = 0; c < mine.size(); ++c)
            std::memcpy(&of_channel[c].emplace_back(), reported.data() + c * sizeof mine[0], sizeof mine[0]);
    }
    std::map<std::vector<std::int32_t>, std::vector<int>> alike;
    for (std::size_t c = 0; c < mine.size(); ++c) alike[of_channel[c]].push_back(static_cast<int>(c));
    std::set<int> chosen;
    for (const auto& [state, all] : alike) chosen.insert({all.front(), all[all.size() / 2], all.back()});
    subject.checked.assign(chosen.begin(), chosen.end());
    for (std::size_t c = 0; c < mine.size(); ++c) subject.stands_for.push_back(alike[of_channel[c]].front());
}

RecordedCalls GpuPlan::record(std::span<const GpuAddress> buffers, const Composition& composition,
                              bool reproducible, Communicator& communicator) {
    check_given(buffers);
    order_->before(gpu_->stream());
    const auto subject = std::make_shared<RecordedPlan>();
    std::istringstream variant(kernel_.variant);
    std::string wire, element, operation;
    variant >> wire >> element >> operation;
    if (operation.empty())
        throw PlanError(what_ + ": nobody said what its kernel was compiled for, '" + kernel_.variant + "'");
    subject->kernel = kernel_.handle;
    subject->wire = wire == "flagged" ? Wire::flagged : Wire::slotted;
    subject->combines = operation != "none";
    if (subject->combines) subject->how = {data_type_of(element), operation_of(operation), reproducible};
    subject->warp = gpu_->warp_size();
    if (queues_) subject->queue_bytes = queues_->pad_->buffer().bytes();
    choose_channels(*subject, communicator);
    subject->user_buffers = user_buffers();
    for (std::size_t b = 0; b < buffers.size(); ++b) subject->buffers.push_back({buffers[b], bytes_[b]});
    std::vector<RecordedPlan::Buffer> changed = subject->buffers;
    for (const GpuMemory* own : {&work_, &scratch_})
        if (own == &scratch_ || has_work_) subject->buffers.push_back({own->address(), own->size()});
    subject->expect(composition, reproducible, communicator.rank());

    const CurrentGpu current(*gpu_);
    if (queues_) changed.push_back({queues_->overflows_.address(), queues_->overflows_.size()});
    std::erase_if(changed, [](const RecordedPlan::Buffer& b) { return b.bytes == 0; });
    std::vector<GpuMemory> before;
    for (const RecordedPlan::Buffer& b : changed) {
        before.push_back(gpu_->allocate(b.bytes, "buffers as they were before a check"));
        gpu_->copy(before.back().address(), b.address, b.bytes);
    }
    is_recorded_ = true;
    const auto restore = [&] {
        is_recorded_ = false;
        for (std::size_t k = 0; k < changed.size(); ++k)
            gpu_->copy(changed[k].address, before[k].address(), changed[k].bytes);
    };
    RecordedCalls recorded;
    recorded.subject = subject;
    try {
        record_runs(
            recorded, gpu_, communicator, [&] { run(buffers, gpu_->stream()); },
            runs_to_record(communicator));
    } catch (...) {
        restore();
        throw;
    }
    restore();
    return recorded;
}

void GpuPlan::check(std::span<const GpuAddress> buffers, const Composition& composition, bool reproducible,
                    Communicator& communicator) {
    first_run_.prove_by([&] {
        RecordedCalls recorded = record(buffers, composition, reproducible, communicator);
        check_together(recorded, communicator);
    });
}

} // namespace jali
