#include "peers/ccl_operations.hpp"

#include <algorithm>

namespace jali {

// The memory returns to the pool, which reuses it in the order of the device's own stream.
CclOperations::~CclOperations() {
    try {
        const Gpu& gpu = *group_->gpu();
        if (order_ && !gpu.is_capturing(gpu.stream())) order_->before(gpu.stream());
    } catch (const GpuError&) { // the device is lost; other calls report it
    }
}

void CclOperations::exchange(std::span<const CclMessage> messages, void* stream) {
    std::vector<CclCall> calls;
    for (const CclMessage& m : messages)
        if (m.bytes > 0)
            calls.push_back({m.sends ? CclCall::Kind::send : CclCall::Kind::receive, m.sends ? m.at : 0,
                             m.sends ? 0 : m.at, m.bytes, ccl_uint8, 0, m.peer, stream});
    put(std::move(calls), false);
}

void CclOperations::put(std::vector<CclCall> calls, bool between_windows) {
    if (calls.empty()) return;
    void* const stream = calls.front().stream;
    const bool captured = group_->gpu()->is_capturing(stream);
    const auto every = [&](auto&& is) {
        return std::ranges::all_of(calls, [&](const CclCall& call) {
            const auto [read, written] = group_->extent_of(call);
            return (read == 0 || is(call.from)) && (written == 0 || is(call.to));
        });
    };
    if (between_windows && every([&](GpuAddress at) { return group_->in_window(at); }))
        return group_->issue(std::move(calls));
    const auto takes = [&](GpuAddress at) { return group_->takes(at, captured); };
    if (every(takes)) return group_->issue(std::move(calls));

    const Gpu& gpu = *group_->gpu();
    if (!order_) order_ = std::make_unique<StreamOrder>(group_->gpu());
    order_->before(stream, captured);
    std::vector<Copy> results;
    std::size_t copies = 0;
    for (CclCall& call : calls) {
        const auto [read, written] = group_->extent_of(call);
        if (read > 0 && !takes(call.from)) {
            const GpuAddress at = copy_of(call.from, read, copies++, captured);
            gpu.copy(at, call.from, read, stream);
            call.from = at;
        }
        if (written > 0 && !takes(call.to)) {
            results.push_back({call.to, copy_of(call.to, written, copies++, captured), written});
            call.to = results.back().at;
        }
    }
    group_->issue(std::move(calls));
    for (const Copy& result : results) gpu.copy(result.of, result.at, result.bytes, stream);
    order_->after(stream, captured);
}

// Copies recorded in a graph have memory of their own, since graphs and runs on streams may overlap.
GpuAddress CclOperations::copy_of(GpuAddress address, std::size_t bytes, std::size_t number, bool captured) {
    constexpr const char* label = "copies for the library of collectives";
    const auto ready = [&](GpuMemory& memory) {
        if (memory.size() < bytes) memory = group_->allocate(bytes, label);
        return memory.address();
    };
    if (captured) return ready(recorded_[{address, bytes}]);
    in_turn_.resize(std::max(in_turn_.size(), number + 1));
    return ready(in_turn_[number]);
}

} // namespace jali
