#include "device/stream_program.hpp"

#include <algorithm>

namespace jali {

int StreamProgram::last_of(int stream) const {
    int last = static_cast<int>(steps_.size()) - 1;
    while (last >= 0 && steps_[last].stream != stream) --last;
    return last;
}

int StreamProgram::settled_by(const Step& step, int stream) {
    const auto s = static_cast<std::size_t>(stream);
    return s < step.settled.size() ? step.settled[s] : -1;
}

std::vector<int> StreamProgram::open_ends() const {
    std::vector<int> open;
    const int last = last_of(0);
    for (int other = 1; other < static_cast<int>(ends_.size()); ++other)
        if (last < 0 || settled_by(steps_[last], other) < last_of(other)) open.push_back(other);
    return open;
}

int StreamProgram::add(std::string name, int stream, std::span<const int> needs, Work work) {
    const int number = static_cast<int>(steps_.size());
    Step step{std::move(name), stream, std::move(work), false, {}, nullptr, {}};
    const auto settle = [&](const std::vector<int>& more) {
        step.settled.resize(std::max(step.settled.size(), more.size()), -1);
        for (std::size_t s = 0; s < more.size(); ++s) step.settled[s] = std::max(step.settled[s], more[s]);
    };
    const int before = last_of(stream);
    if (before >= 0) settle(steps_[before].settled);
    std::vector<int> latest(needs.begin(), needs.end());
    std::sort(latest.rbegin(), latest.rend()); // a later one settles earlier ones
    for (int need : latest) {
        const int other = steps_[need].stream;
        if (other == stream || settled_by(step, other) >= need) continue;
        if (!steps_[need].behind) steps_[need].behind = std::make_unique<GpuEvent>(gpu_, false);
        step.awaited.push_back(need);
        settle(steps_[need].settled);
    }
    step.first = stream != 0 && before < 0 && step.awaited.empty();
    if (step.first && !start_) start_ = std::make_unique<GpuEvent>(gpu_, false);
    step.settled.resize(std::max(step.settled.size(), static_cast<std::size_t>(stream) + 1), -1);
    step.settled[static_cast<std::size_t>(stream)] = number;
    steps_.push_back(std::move(step));
    ends_.resize(std::max(ends_.size(), static_cast<std::size_t>(stream) + 1));
    return number;
}

void StreamProgram::run(std::span<void* const> streams) {
    try {
        if (start_) start_->record(streams[0]);
        for (const Step& step : steps_) {
            void* const stream = streams[static_cast<std::size_t>(step.stream)];
            if (step.first) start_->let_wait(stream);
            for (int other : step.awaited) steps_[other].behind->let_wait(stream);
            if (step.work) step.work(stream);
            if (step.behind) step.behind->record(stream);
        }
        for (int other : open_ends()) {
            auto& end = ends_[static_cast<std::size_t>(other)];
            if (!end) end = std::make_unique<GpuEvent>(gpu_, false);
            end->record(streams[static_cast<std::size_t>(other)]);
            end->let_wait(streams[0]);
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
        return; // the device is lost and has reported it
    }
}

std::string StreamProgram::describe() const {
    std::string text;
    for (const Step& step : steps_) {
        if (step.name.empty()) continue;
        text += "stream " + std::to_string(step.stream) + ": " + step.name;
        if (step.first) text += "; after what was on stream 0";
        for (int other : step.awaited) text += "; after '" + steps_[other].name + "'";
        text += "\n";
    }
    for (int other : open_ends()) text += "stream 0: go on after '" + steps_[last_of(other)].name + "'\n";
    return text;
}

} // namespace jali
