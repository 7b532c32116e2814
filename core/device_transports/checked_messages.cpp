// Starts of messages between devices, proved to be in order by the ranks that they connect.
#include "device_transports/connected_ranks.hpp"
#include "device_transports/device_messages.hpp"
#include "schedule/first_run.hpp"
#include "schedule/recorded_calls.hpp"
#include "schedule/scheduled_events.hpp"

#include <algorithm>
#include <utility>

namespace jali {

// Messages that cannot be started are skipped: put() reports them.
void DeviceMessages::prove_once(std::span<DeviceMessage* const> messages, std::optional<void*> theirs) {
    if (!first_runs_are_proved()) return;
    Gpu& gpu = *ranks_.gpu;
    std::set<std::uint64_t> together;
    for (const DeviceMessage* m : messages) {
        if (m->all_.get() != this) return;
        together.insert(m->number_);
    }
    if (together.size() < messages.size() || gpu.is_capturing(gpu.stream()) ||
        (theirs && gpu.is_capturing(*theirs)))
        return;
    if (!proved_.insert(std::move(together)).second) return;
    const ConnectedRanks ranks = connect(messages);
    for (const auto& [rank, ends] : ranks.ends())
        if (!std::ranges::all_of(ends, &StartedEnd::noted)) return;
    if (theirs) gpu.wait_for(*theirs);
    check(messages, ranks);
    ++first_runs.proved;
    if (theirs) gpu.let_wait(*theirs);
}

ConnectedRanks DeviceMessages::connect(std::span<DeviceMessage* const> messages) {
    std::vector<StartedEnd> mine;
    for (DeviceMessage* m : messages) {
        if (m == nullptr) throw MessageError("a message is null");
        m->meet();
        const MessageArray& array = m->array();
        mine.push_back({array.tag, array.peer, array.sends, m->transport().rules.noted});
    }
    return {*ranks_.control, mine};
}

void DeviceMessages::check(std::span<DeviceMessage* const> messages) {
    check(messages, connect(messages));
}

void DeviceMessages::check(std::span<DeviceMessage* const> messages, const ConnectedRanks& ranks) {
    RecordedCalls mine = record(messages, ranks);
    prove_reported(ranks.gather(reported_events([&] { return mine.decode(); })));
}

RecordedCalls DeviceMessages::record(std::span<DeviceMessage* const> messages) {
    return record(messages, connect(messages));
}

RecordedCalls DeviceMessages::record(std::span<DeviceMessage* const> messages, const ConnectedRanks& ranks) {
    for (const auto& [rank, ends] : ranks.ends())
        for (const StartedEnd& end : ends)
            if (!end.noted)
                throw MessageError(end.of(rank) + " goes through the host, where nothing is recorded");
    RecordedCalls calls;
    for (const DeviceMessage* m : messages) {
        const MessageArray& array = m->array();
        const auto sender = static_cast<std::uint64_t>(array.sends ? rank() : array.peer);
        const std::uint64_t label = mixed(mixed(sender, 0), m->sent_from());
        calls.arrays.push_back({array.address, array.bytes, label, array.sends});
    }
    record_runs(calls, ranks_.gpu, rank(), [&ranks] { ranks.meet(); }, [&] { put(messages, std::nullopt); });
    return calls;
}

} // namespace jali
