// To oneself: a copy on the stream, when both ends have been started.
#include "transport/message_transport.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace jali {

namespace {

// What the two ends have in common: the one that was started first waits for the other.
struct Pair {
    bool waits = false, sends = false;
    GpuAddress address = 0;
    void* stream = nullptr;
};

// By the number that the sender tells.
struct Pairs {
    std::mutex mutex; // a message may be dropped by any thread
    std::int64_t made = 0;
    std::map<std::int64_t, std::shared_ptr<Pair>> all;
};

class LocalEnd : public MessageEnd {
  public:
    LocalEnd(const MessageArray& array, std::shared_ptr<Pairs> pairs)
        : MessageEnd(array), pairs_(std::move(pairs)) {
        if (!array.sends) return;
        std::lock_guard lock(pairs_->mutex);
        number_ = ++pairs_->made;
        pair_ = pairs_->all[number_] = std::make_shared<Pair>();
    }
    ~LocalEnd() override {
        std::lock_guard lock(pairs_->mutex);
        pairs_->all.erase(number_);
    }
    std::vector<std::byte> told() const override {
        const auto bytes = std::as_bytes(std::span(&number_, 1));
        return {bytes.begin(), bytes.end()};
    }
    void meet(std::span<const std::byte> other, const MessageTransport&) override {
        if (array.sends) return;
        std::int64_t number = 0;
        std::memcpy(&number, other.data(), sizeof number);
        std::lock_guard lock(pairs_->mutex);
        const auto found = pairs_->all.find(number);
        if (found == pairs_->all.end())
            throw GpuError("the sending end of a message to oneself is gone; keep both");
        pair_ = found->second;
    }

    void start(Gpu& gpu, void* stream) {
        Pair& pair = *pair_;
        if (!pair.waits) {
            pair = {true, array.sends, array.address, stream};
            return;
        }
        if (pair.sends == array.sends)
            throw MessageError("a message to oneself with tag " + std::to_string(array.tag) +
                               " is started again before its other end was");
        if (pair.stream != stream)
            throw MessageError("the two ends of a message to oneself are started on different streams");
        pair.waits = false;
        if (array.bytes > 0)
            gpu.copy(pair.sends ? array.address : pair.address, pair.sends ? pair.address : array.address,
                     array.bytes, stream);
    }

  private:
    std::shared_ptr<Pairs> pairs_;
    std::int64_t number_ = 0; // of a sender
    std::shared_ptr<Pair> pair_;
};

class Local : public MessageCarrier {
  public:
    explicit Local(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
    std::unique_ptr<MessageEnd> make(const MessageArray& array) override {
        return std::make_unique<LocalEnd>(array, pairs_);
    }
    void begin(Ends ends, void* stream) override {
        for (MessageEnd* end : ends) static_cast<LocalEnd*>(end)->start(*gpu_, stream);
    }

  private:
    std::shared_ptr<Gpu> gpu_;
    std::shared_ptr<Pairs> pairs_ = std::make_shared<Pairs>();
};

std::shared_ptr<MessageCarrier> make(const MessageRanks& ranks) {
    return std::make_shared<Local>(ranks.gpu);
}

} // namespace

const MessageTransport messages_to_oneself{
    {"local", "a copy", {.recordable = true, .one_sided = true}, nullptr}, make, {.to_oneself = true}};

} // namespace jali
