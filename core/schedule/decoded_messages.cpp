// Decodes launches of the kernel that passes messages between devices (prelude/messages.hpp).
#include "peers/message_kernels.hpp"
#include "schedule/call_decoder.hpp"

namespace jali {

namespace {

class MessageKernels : public KernelFamily {
  public:
    explicit MessageKernels(CallDecoder& decoder) : d_(decoder) {}

    bool launch(const DriverCall& call) override {
        if (call.name != "pass_messages") return false;
        const auto a = d_.arguments_of<PassArguments>(call);
        const int start = d_.begin(call.name, call.stream);
        std::vector<std::int32_t> passed{start};
        if ((a.steps & step_grant_credit) != 0)
            for (std::int64_t m = 0; m < a.incoming; ++m)
                d_.signal(start, a.in[m].ready, d_.read_count(start, a.in[m].count) + 1);
        for (std::int64_t m = 0; m < a.outgoing; ++m) {
            const OutgoingMessage& message = a.out[m];
            const int event = d_.add(call.name + ", message " + std::to_string(m), {start});
            const std::int64_t number = d_.read_count(start, message.count) + 1; // before it waits
            d_.at(event).waiting = message.blocks;
            if ((message.roles & role_await) != 0) d_.wait(event, message.ready, number);
            if ((message.roles & role_put) != 0) {
                if (message.unit < 1 || message.unit > 16 ||
                    (message.to | message.from) % static_cast<std::uint64_t>(message.unit) != 0)
                    throw ScheduleError("'" + call.name + "' puts message " + std::to_string(m) +
                                        " in units of " + std::to_string(message.unit) +
                                        " bytes, to or from where none begins");
                const auto bytes = static_cast<std::uint64_t>(message.bytes);
                d_.touch(event, d_.stretch(message.to, bytes), d_.stretch(message.from, bytes));
            }
            if ((message.roles & role_announce) != 0) {
                d_.writes(event, {d_.stretch(message.done, sizeof(std::int64_t))}); // counts its blocks
                d_.signal(event, message.arrived, number);
                d_.set_count(event, message.count, number);
            }
            passed.push_back(event);
        }
        const int done = d_.end(call.name + ": end", call.stream, std::move(passed));
        d_.at(done).waiting = 1; // the first one
        d_.wait_ahead(1);
        if ((a.steps & step_take) != 0)
            for (std::int64_t m = 0; m < a.incoming; ++m) {
                const std::int64_t number = d_.count_at(a.in[m].count) + 1;
                d_.wait(done, a.in[m].arrived, number);
                d_.set_count(done, a.in[m].count, number);
            }
        return true;
    }

  private:
    CallDecoder& d_;
};

} // namespace

std::unique_ptr<KernelFamily> family_of_messages(CallDecoder& decoder) {
    return std::make_unique<MessageKernels>(decoder);
}

} // namespace jali
