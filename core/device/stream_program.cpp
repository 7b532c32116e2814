#include "device/stream_program.hpp"

#include <algorithm>

namespace jali {

int StreamProgram::add(std::string name, int stream, std::span<const int> needs, Work work) {
    const int number = static_cast<int>(steps_.size());
    Step step{std::move(name), stream, std::move(work), {}, nullptr, {}};
    const auto settle = [&](const std::vector<int>& more) {
        step.settled.resize(std::max(step.settled.size(), more.size()), -1);
        for (std::size_t s = 0; s < more.size(); ++s) step.settled[s] = std::max(step.settled[s], more[s]);
    };
    for (int k = number - 1; k >= 0; --k) {
        if (steps_[k].stream != stream) continue;
        settle(steps_[k].settled);
        break;
    }
    std::vector<int> latest(needs.begin(), needs.end());
    std::sort(latest.rbegin(), latest.rend()); // a later one settles earlier ones
    for (int need : latest) {
        const auto of = static_cast<std::size_t>(steps_[need].stream);
        if (steps_[need].stream == stream || (of < step.settled.size() && step.settled[of] >= need)) continue;
        if (!steps_[need].behind) steps_[need].behind = std::make_unique<GpuEvent>(gpu_, false);
        step.awaited.push_back(need);
        settle(steps_[need].settled);
    }
    step.settled.resize(std::max(step.settled.size(), static_cast<std::size_t>(stream) + 1), -1);
    step.settled[static_cast<std::size_t>(stream)] = number;
    steps_.push_back(std::move(step));
    return number;
}

void StreamProgram::run(std::span<void* const> streams) {
    try {
        for (const Step& step : steps_) {
            void* const stream = streams[static_cast<std::size_t>(step.stream)];
            for (int other : step.awaited) steps_[other].behind->let_wait(stream);
            if (step.work) step.work(stream);
            if (step.behind) step.behind->record(stream);
        }
    } catch (...) {
        join(streams);
        throw;
    }
}

void StreamProgram::join(std::span<void* const> streams) noexcept {
    try {
        const bool recorded = gpu_->is_capturing(gpu_->stream());
        GpuEvent so_far(gpu_, false);
        for (void* stream : streams) {
            if (stream == gpu_->stream() || gpu_->is_capturing(stream) != recorded) continue;
            so_far.record(stream);
            so_far.let_wait(gpu_->stream());
        }
    } catch (...) {
        return; // the device is lost, and said so
    }
}

std::string StreamProgram::describe() const {
    std::string text;
    for (const Step& step : steps_) {
        text += "stream " + std::to_string(step.stream) + ": " + step.name;
        for (int other : step.awaited) text += "; after '" + steps_[other].name + "'";
        text += "\n";
    }
    return text;
}

} // namespace jali
