#include "schedule/executor.hpp"

#include <cstring>

namespace jali {

namespace {

void copy_rows(const CopyRows& copy, std::span<std::byte* const> buffers) {
    const std::byte* from = buffers[copy.from.buffer] + copy.from.offset;
    std::byte* to = buffers[copy.to.buffer] + copy.to.offset;
    if (!copy.rows) {
        std::memcpy(to, from, copy.to.bytes);
        return;
    }
    const std::size_t count = copy.row_bytes ? copy.to.bytes / copy.row_bytes : 0;
    const std::int32_t* rows = copy.rows->data() + copy.first_row;
    for (std::size_t k = 0; k < count; ++k) {
        std::memcpy(to + k * copy.row_bytes, from + rows[k] * copy.row_bytes, copy.row_bytes);
    }
}

} // namespace

Executor::Executor(std::shared_ptr<const Schedule> schedule)
    : schedule_(std::move(schedule)), order_(schedule_->order()), requests_(schedule_->steps().size()) {
}

void Executor::run(std::span<std::byte* const> buffers, Communicator& communicator) {
    try {
        run_steps(buffers, communicator);
    } catch (const RankFailure&) {
        for (auto& request : requests_) request.reset();
        throw;
    } catch (const std::exception& error) {
        communicator.fail(error.what());
        for (auto& request : requests_) request.reset();
        throw;
    }
}

void Executor::run_steps(std::span<std::byte* const> buffers, Communicator& communicator) {
    const Progress progress = [&] {
        for (auto& request : requests_) {
            if (request && communicator.test(*request)) request.reset();
        }
    };
    for (const Port& port : order_) {
        const Step& step = schedule_->steps()[port.step];
        if (const auto* a = std::get_if<Receive>(&step.action)) {
            requests_[port.step] = communicator.receive(buffers[a->into.buffer] + a->into.offset,
                                                        a->into.bytes, a->from, a->tag);
        } else if (const auto* a = std::get_if<Send>(&step.action)) {
            requests_[port.step] =
                communicator.send(buffers[a->from.buffer] + a->from.offset, a->from.bytes, a->to, a->tag);
        } else if (const auto* a = std::get_if<Wait>(&step.action)) {
            communicator.wait(std::span(&requests_[a->step], 1), step.name);
            requests_[a->step].reset();
        } else if (const auto* a = std::get_if<Copy>(&step.action)) {
            for (const auto& rows : a->rows) copy_rows(rows, buffers);
        } else if (const auto* a = std::get_if<Kernel>(&step.action)) {
            a->body(port.part, buffers, &progress);
        }
    }
}

} // namespace jali
