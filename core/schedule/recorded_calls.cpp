#include "schedule/recorded_calls.hpp"

#include "schedule/call_decoder.hpp"
#include "schedule/scheduled_moments.hpp"

#include <map>
#include <string_view>

namespace jali {

std::span<const std::byte> SeenMemory::at(GpuAddress address, std::size_t bytes) {
    std::vector<std::byte>& found = seen_[address];
    if (found.size() < bytes) {
        if (gpu_ == nullptr) throw ScheduleError("a call reads device memory that was not looked at");
        found.resize(bytes);
        gpu_->copy_out(found.data(), address, bytes);
        gpu_->synchronize();
    }
    return std::span(found).first(bytes);
}

void RecordedCalls::look() {
    try {
        decode();
    } catch (const ScheduleError&) { // who decodes it again hears the same, and tells the other ranks
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
        into.look();
        meet();
    }
    into.memory.close();
}

void check_together(RecordedCalls& mine, Communicator& communicator) {
    prove_together(communicator, [&] { return mine.decode(); });
}

RankMoments RecordedCalls::decode() {
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
