#include "schedule/recorded_calls.hpp"

#include "schedule/call_decoder.hpp"
#include "schedule/scheduled_events.hpp"

#include <iterator>
#include <map>
#include <string_view>

namespace jali {

std::span<const std::byte> SeenMemory::at(GpuAddress address, std::size_t bytes) {
    std::vector<std::byte>& found = seen_[address];
    const auto block = block_at(address);
    if (!block && gpu_ == nullptr) throw ScheduleError("a call reads device memory that was not looked at");
    if (!block || address + bytes > block->address + block->bytes)
        throw ScheduleError("a kernel reads " + std::to_string(bytes) + " bytes of a table where " +
                            (block ? "'" + block->label + "' has " +
                                         std::to_string(block->address + block->bytes - address) + " left"
                                   : "there is no memory"));
    if (found.size() < bytes) {
        if (gpu_ == nullptr) throw ScheduleError("a call reads device memory that was not looked at");
        found.resize(bytes);
        gpu_->copy_out(found.data(), address, bytes);
        gpu_->synchronize();
    }
    return std::span(found).first(bytes);
}

std::optional<MemoryBlock> SeenMemory::block_at(std::uint64_t address) {
    if (const auto after = blocks_.upper_bound(address); after != blocks_.begin())
        if (const MemoryBlock& block = std::prev(after)->second; address - block.address < block.bytes)
            return block;
    if (gpu_ == nullptr) return std::nullopt;
    auto block = jali::block_at(address);
    if (block) blocks_[block->address] = *block;
    return block;
}

void RecordedCalls::read_memory() {
    try {
        decode();
    } catch (const ScheduleError&) { // decoding it again throws the same, and then reports it to the other
                                     // ranks
    }
}

void record_runs(RecordedCalls& into, const std::shared_ptr<Gpu>& gpu, Communicator& communicator,
                 const std::function<void()>& once, int runs) {
    const auto meet = [&] { communicator.barrier("looking at what is given to drivers"); };
    record_runs(into, gpu, communicator.rank(), meet, once, runs);
}

void record_runs(RecordedCalls& into, const std::shared_ptr<Gpu>& gpu, int rank,
                 const std::function<void()>& meet, const std::function<void()>& once, int runs) {
    if (gpu->is_capturing(gpu->stream()))
        throw GpuError("calls cannot be looked at while a graph is recorded");
    into.rank = rank;
    into.memory = SeenMemory(gpu.get());
    const auto mark = [&](const char* name) {
        DriverRecord::note({.kind = DriverCall::Kind::mark, .name = name, .stream = gpu->stream()});
    };
    for (const int number : {1, runs}) {
        DriverRecord record;
        for (int run = 0; run < number; ++run) {
            mark("begin");
            once();
            mark("end");
        }
        record.stop();
        gpu->synchronize();
        meet();
        into.calls = std::move(record.calls);
        into.read_memory();
        meet();
    }
    into.memory.close();
}

void check_together(RecordedCalls& mine, Communicator& communicator) {
    prove_together(communicator, [&] { return mine.decode(); });
}

RankEvents RecordedCalls::decode() {
    return CallDecoder(*this).run();
}

std::string RecordedCalls::describe() const {
    std::map<const void*, int> streams, events;
    const auto number = [](std::map<const void*, int>& numbers, const void* of) {
        return std::to_string(numbers.emplace(of, static_cast<int>(numbers.size())).first->second);
    };
    std::string text;
    for (const DriverCall& call : calls) {
        text += name_of(call.kind);
        const std::string name =
            call.kind == DriverCall::Kind::launch && subject != nullptr ? subject->describe(call) : call.name;
        if (!name.empty()) text += " " + name;
        if (call.bytes > 0) text += " " + std::to_string(call.bytes) + " bytes";
        if (call.peer >= 0) text += " with rank " + std::to_string(call.peer);
        if (call.event != nullptr) text += " event " + number(events, call.event);
        if (call.stream != nullptr) text += " on stream " + number(streams, call.stream);
        text += "\n";
    }
    return text;
}

} // namespace jali
