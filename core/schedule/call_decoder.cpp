#include "schedule/call_decoder.hpp"

#include "peers/peer_memory.hpp"
#include "peers/signal_pad.hpp"

#include <algorithm>
#include <tuple>

namespace jali {

using Kind = DriverCall::Kind;

CallDecoder::CallDecoder(RecordedCalls& recorded)
    : recorded_(recorded), memory_(recorded.memory), here_(name_of_memory(0).space) {
    ordered_events_.rank = recorded.rank;
    if (recorded.subject != nullptr) families_.push_back(recorded.subject->family(*this, recorded.calls));
    families_.push_back(family_of_messages(*this));
    for (const RecordedArray& array : recorded.arrays)
        part_of_memory(array.address, array.bytes, "an array of a message");
}

RankEvents CallDecoder::run() {
    for (const DriverCall& call : recorded_.calls) decode(call);
    for (const Passage& p : ordered_events_.passages)
        if (p.closed < 0) throw ScheduleError("'" + at(p.event).name + "' is never waited for");
    return std::move(ordered_events_);
}

// ---- events and their order -----------------------------------------------------------------------------

int CallDecoder::add(std::string name, std::vector<std::int32_t> after) {
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
    OrderedEvent ordered_event;
    ordered_event.name = std::move(name) + " (run " + std::to_string(run_ + 1) + ")";
    ordered_event.after = std::move(after);
    ordered_events_.events.push_back(std::move(ordered_event));
    return static_cast<int>(ordered_events_.events.size()) - 1;
}

int CallDecoder::begin(std::string name, void* stream) {
    std::vector<std::int32_t> after = this->after(stream);
    after.insert(after.end(), host_.begin(), host_.end());
    const int ordered_event = add(std::move(name), std::move(after));
    streams_[stream] = {ordered_event};
    return ordered_event;
}

int CallDecoder::end(std::string name, void* stream, std::vector<std::int32_t> after) {
    const int ordered_event = add(std::move(name), std::move(after));
    streams_[stream] = {ordered_event};
    return ordered_event;
}

int CallDecoder::of_host(std::string name, std::vector<std::int32_t> after) {
    after.insert(after.end(), host_.begin(), host_.end());
    const int ordered_event = add(std::move(name), std::move(after));
    host_ = {ordered_event};
    return ordered_event;
}

// ---- memory ----------------------------------------------------------------------------------------------

Stretch CallDecoder::stretch(std::uint64_t address, std::uint64_t bytes) {
    const auto [space, begin] = name_of_memory(address);
    if (space == here_)
        if (const auto block = memory_.block_at(address); block && listed_.insert(block->address).second)
            ordered_events_.memory.push_back(
                {{space, block->address, block->address + block->bytes}, false, block->label});
    return {space, begin, begin + bytes};
}

void CallDecoder::part_of_memory(std::uint64_t address, std::uint64_t bytes, const std::string& name) {
    if (bytes > 0) ordered_events_.memory.push_back({stretch(address, bytes), true, name});
}

int CallDecoder::footprint(std::vector<Stretch> all) {
    std::erase_if(all, [](const Stretch& s) { return s.begin == s.end; });
    std::sort(all.begin(), all.end(), [](const Stretch& a, const Stretch& b) {
        return std::tie(a.space, a.begin, a.end) < std::tie(b.space, b.begin, b.end);
    });
    all.erase(std::unique(all.begin(), all.end()), all.end());
    ordered_events_.footprints.push_back(std::move(all));
    return static_cast<int>(ordered_events_.footprints.size()) - 1;
}

void CallDecoder::touch(int ordered_event, const Stretch& to, const Stretch& from) {
    reads(ordered_event, {from});
    writes(ordered_event, {to});
    at(ordered_event).moves.push_back({to, from});
}

std::int64_t& CallDecoder::count_at(GpuAddress address) {
    const auto found = counts_.find(address);
    return found != counts_.end()
               ? found->second
               : counts_.emplace(address, entries<std::int64_t>(address, 1)[0]).first->second;
}

std::int64_t CallDecoder::read_count(int ordered_event, GpuAddress address) {
    reads(ordered_event, {stretch(address, sizeof(std::int64_t))});
    return count_at(address);
}

void CallDecoder::set_count(int ordered_event, GpuAddress address, std::int64_t value) {
    writes(ordered_event, {stretch(address, sizeof value)});
    count_at(address) = value;
}

void CallDecoder::wait(int ordered_event, GpuAddress word, std::int64_t value) {
    wait(ordered_event, word, value, entries<std::int64_t>(word, 1)[0], false);
}

void CallDecoder::wait(int ordered_event, GpuAddress word, std::int64_t value, std::int64_t first,
                       bool exactly) {
    const auto [space, address] = name_of_memory(word);
    touch_word(ordered_event, word);
    at(ordered_event).waits.push_back({space, address, value, exactly});
    if (!known_.insert({space, address}).second) return;
    const auto [writer, fresh] = recorded_.writers.emplace(word, -1);
    if (fresh) writer->second = SignalPad::writer_of(word); // pads may be destroyed at a later decoding
    ordered_events_.words.push_back({space, address, first, false, writer->second});
}

void CallDecoder::signal(int ordered_event, GpuAddress word, std::int64_t value) {
    const auto [space, address] = name_of_memory(word);
    touch_word(ordered_event, word);
    at(ordered_event).signals.push_back({space, address, value});
}

// ---- calls -----------------------------------------------------------------------------------------------

void CallDecoder::check_size(const DriverCall& call, std::size_t bytes) {
    if (call.arguments.size() != bytes)
        throw ScheduleError("kernel '" + call.name + "' got " + std::to_string(call.arguments.size()) +
                            " bytes of arguments, not " + std::to_string(bytes));
}

std::vector<std::uint64_t> CallDecoder::numbers_of(const DriverCall& call) {
    std::vector<std::uint64_t> numbers(call.arguments.size() / sizeof(std::uint64_t));
    std::memcpy(numbers.data(), call.arguments.data(), numbers.size() * sizeof numbers[0]);
    return numbers;
}

void CallDecoder::launch(const DriverCall& call) {
    const std::size_t first = ordered_events_.events.size();
    ahead_ = 0;
    for (const auto& family : families_) {
        if (!family->launch(call)) continue;
        for (std::size_t m = first; m < ordered_events_.events.size(); ++m)
            ordered_events_.events[m].launch = static_cast<std::int32_t>(ordered_events_.launches.size());
        ordered_events_.launches.push_back({call.device, call.blocks, call.resident, ahead_});
        return;
    }
    throw ScheduleError("what kernel '" + call.name + "' touches is not known here");
}

void CallDecoder::transfer(const DriverCall& call, bool sends, int channel, int opened) {
    const int ordered_event = add(std::string(name_of(call.kind)) + (sends ? " to rank " : " from rank ") +
                                      std::to_string(call.peer),
                                  {opened});
    const Stretch where = stretch(sends ? call.from : call.to, call.bytes);
    ordered_events_.passages.push_back({sends, call.peer, channel, call.tag, ordered_event, opened, -1,
                                        static_cast<std::int64_t>(call.bytes), where});
    transfers_.push_back(ordered_event);
}
void CallDecoder::close(int channel, int closed) {
    for (Passage& p : ordered_events_.passages)
        if (p.channel == channel && p.closed < 0) p.closed = closed;
    transfers_.clear();
}

void CallDecoder::decode(const DriverCall& call) {
    switch (call.kind) {
    case Kind::launch:
        return launch(call);
    case Kind::copy:
        return touch(begin("copy", call.stream), stretch(call.to, call.bytes),
                     stretch(call.from, call.bytes));
    case Kind::fill:
        writes(begin("fill", call.stream), {stretch(call.to, call.bytes)});
        return;
    case Kind::record: {
        auto& after = events_[call.event] = this->after(call.stream);
        after.insert(after.end(), host_.begin(), host_.end());
        return;
    }
    case Kind::let_wait: {
        const auto& event = events_[call.event]; // an event that was recorded before is complete
        auto& after = this->after(call.stream);
        after.insert(after.end(), event.begin(), event.end());
        return;
    }
    case Kind::host_waits:
        of_host("the host waits", call.event != nullptr ? events_[call.event] : after(call.stream));
        return;
    case Kind::send:
    case Kind::receive:
        return transfer(call, call.kind == Kind::send, 0,
                        of_host(std::string("start of ") + name_of(call.kind), {}));
    case Kind::complete:
        return close(0, of_host("messages complete", transfers_));
    case Kind::ccl_send:
    case Kind::ccl_receive:
        if (group_ < 0) group_ = begin("group of the library", call.stream);
        return transfer(call, call.kind == Kind::ccl_send, 1, group_);
    case Kind::group_end: {
        if (group_ < 0) return;
        std::vector<std::int32_t> after = transfers_;
        after.push_back(group_);
        group_ = -1;
        return close(1, end("end of the library's group", call.stream, std::move(after)));
    }
    case Kind::begin_graph:
        return begin_graph(call);
    case Kind::end_graph:
        return end_graph(call);
    case Kind::mark:
        return mark(call);
    case Kind::refused:
        throw ScheduleError("what " + call.name + " touches is not known here");
    }
}

// A graph begins after the work on its stream, and ends when all its work has ended.
void CallDecoder::begin_graph(const DriverCall& call) {
    if (!root_.empty()) throw ScheduleError("a graph is launched inside of another");
    root_ = {begin("start of a graph", call.stream)};
    streams_outside_ = std::exchange(streams_, {{call.captured, root_}});
    events_outside_ = std::exchange(events_, {});
}

void CallDecoder::end_graph(const DriverCall& call) {
    std::vector<std::int32_t> all;
    for (const auto& [stream, after] : streams_) all.insert(all.end(), after.begin(), after.end());
    root_.clear();
    streams_ = std::exchange(streams_outside_, {});
    events_ = std::exchange(events_outside_, {});
    end("end of a graph", call.stream, std::move(all));
}

void CallDecoder::mark(const DriverCall& call) {
    const bool begins = call.name == "begin";
    if (begins) ++run_;
    const int ordered_event = begin(call.name + " of a run", call.stream);
    std::vector<Stretch> all;
    for (const auto& family : families_) family->mark(begins, ordered_event, all);
    for (const RecordedArray& array : recorded_.arrays) {
        const Stretch where = stretch(array.address, array.bytes);
        const Holding whole{where, mixed(array.label, static_cast<std::uint64_t>(run_))};
        if (array.sends && begins) at(ordered_event).holds.push_back(whole);
        if (!array.sends && !begins) at(ordered_event).expects.push_back(whole);
        all.push_back(where);
    }
    writes(ordered_event, std::move(all));
}

} // namespace jali
