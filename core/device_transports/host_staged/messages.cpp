// Host-staged: through pinned memory of the host at both ends, as a message of the communicator's.
//
// The host waits for the stream and for receives. Sends are awaited by the next start of the same end, so
// that ranks may start ends one after the other, and by the destructor.
#include "device_transports/device_transports.hpp"
#include "device_transports/numbered_end.hpp"
#include "settings/counted.hpp"

#include <deque>
#include <exception>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace jali {

namespace {

// Pinned memory, and the message that is sent from it.
struct Sending {
    PinnedMemory memory;
    std::unique_ptr<Request> request;
};

class StagedEnd : public NumberedEnd {
  public:
    StagedEnd(const MessageRanks& ranks, const MessageArray& array)
        : NumberedEnd(array, array.sends ? 0 : ranks.channel()), gpu_(ranks.gpu) {}
    void meet(std::span<const std::byte> other, const MessageTransport& by) override {
        NumberedEnd::meet(other, by);
        here = std::make_shared<Sending>();
        here->memory = gpu_->allocate_pinned(array.bytes, "message by way of the host");
        on_device.emplace(gpu_, false);
    }
    std::string start_of() const {
        return std::string("the start of a message ") + (array.sends ? "to" : "from") + " rank " +
               std::to_string(array.peer) + ", tag " + std::to_string(array.tag);
    }

    std::shared_ptr<Sending> here;
    std::optional<GpuEvent> on_device; // the copy of received data to the device

  private:
    std::shared_ptr<Gpu> gpu_;
};

class Staged : public MessageConnection {
  public:
    explicit Staged(const MessageRanks& ranks) : ranks_(ranks), on_host_(ranks.gpu, false) {}
    // Waits for pending sends, whose memory is freed afterwards; a rank that fails need not complete them.
    ~Staged() override {
        constexpr double for_ever = std::numeric_limits<double>::infinity();
        if (std::uncaught_exceptions() > 0 || ranks_.data->has_left(ranks_.data->rank(), for_ever)) return;
        try {
            for (const auto& sending : flying_)
                ranks_.data->wait(std::span(&sending->request, 1),
                                  "messages by way of the host that have been started, before they end");
        } catch (const std::exception&) { // the receiver gets the error
        }
    }
    std::unique_ptr<MessageEnd> make(const MessageArray& array) override {
        return std::make_unique<StagedEnd>(ranks_, array);
    }

    void begin(StreamProgram& program, Ends ends) override {
        const auto sending = chosen(ends, true);
        if (!sending.empty())
            program.add("the host copies and sends " + counted(sending.size(), "message"), own, {},
                        [this, sending](void* stream) { send(sending, stream); });
    }

    void end(StreamProgram& program, Ends ends) override {
        const auto receiving = chosen(ends, false);
        if (!receiving.empty())
            program.add("the host receives and copies " + counted(receiving.size(), "message"), own, {},
                        [this, receiving](void* stream) { receive(receiving, stream); });
    }

  private:
    void send(std::span<StagedEnd* const> sending, void* stream) {
        for (StagedEnd* end : sending) {
            if (end->here->request)
                ranks_.data->wait(std::span(&end->here->request, 1), end->start_of() + " before");
            ranks_.gpu->copy_out(end->here->memory.data(), end->array.address, end->array.bytes, stream);
        }
        on_host_.record(stream);
        on_host_.wait();
        while (!flying_.empty() && is_complete(*flying_.front())) flying_.pop_front();
        for (StagedEnd* end : sending) {
            end->here->request =
                ranks_.data->send(end->here->memory.data(), end->array.bytes, end->array.peer, end->number());
            flying_.push_back(end->here);
        }
    }

    void receive(std::span<StagedEnd* const> receiving, void* stream) {
        std::vector<std::unique_ptr<Request>> requests;
        for (StagedEnd* end : receiving) {
            end->on_device->wait(); // the previous copy
            requests.push_back(ranks_.data->receive(end->here->memory.data(), end->array.bytes,
                                                    end->array.peer, end->number()));
        }
        for (std::size_t k = 0; k < receiving.size(); ++k) {
            StagedEnd& end = *receiving[k];
            ranks_.data->wait(std::span(&requests[k], 1), end.start_of());
            ranks_.gpu->copy_in(end.array.address, end.here->memory.data(), end.array.bytes, stream);
            end.on_device->record(stream);
        }
    }

    static std::vector<StagedEnd*> chosen(Ends ends, bool sends) {
        std::vector<StagedEnd*> those;
        for (MessageEnd* end : ends)
            if (end->array.sends == sends && end->array.bytes > 0)
                those.push_back(static_cast<StagedEnd*>(end));
        return those;
    }
    bool is_complete(Sending& sending) {
        if (sending.request && ranks_.data->test(*sending.request)) sending.request.reset();
        return !sending.request;
    }

    MessageRanks ranks_;
    GpuEvent on_host_;
    std::deque<std::shared_ptr<Sending>> flying_; // also of destroyed ends
};

std::shared_ptr<MessageConnection> make(const MessageRanks& ranks) {
    return std::make_shared<Staged>(ranks);
}

} // namespace

const MessageTransport messages_by_staging{{host_staged}, make, {.noted = false}};

} // namespace jali
