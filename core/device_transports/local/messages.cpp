// To oneself: a copy on the stream, when both ends have been started.
#include "device_transports/message_transport.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

namespace jali {

namespace {

class LocalEnd;

// Existing ends, by number. An end may be destroyed at any time, also while its other end waits for its
// start.
struct LocalEnds {
    std::mutex mutex;
    int made = 0;
    std::map<int, LocalEnd*> there;
};

class LocalEnd : public MessageEnd {
  public:
    LocalEnd(std::shared_ptr<LocalEnds> ends, const MessageArray& array)
        : MessageEnd(array), ends_(std::move(ends)) {
        std::lock_guard lock(ends_->mutex);
        number_ = ++ends_->made;
        ends_->there[number_] = this;
    }
    ~LocalEnd() override {
        std::lock_guard lock(ends_->mutex);
        ends_->there.erase(number_);
    }

    std::vector<std::byte> announcement() const override {
        const auto bytes = std::as_bytes(std::span(&number_, 1));
        return {bytes.begin(), bytes.end()};
    }
    void meet(std::span<const std::byte> other, const MessageTransport&) override {
        std::memcpy(&other_, other.data(), sizeof other_);
    }

    // The source of the bytes, if this is the second of the two ends to be started. Throws MessageError.
    std::optional<MessageArray> start(void* stream) {
        std::lock_guard lock(ends_->mutex);
        const std::string message = "a message to oneself with tag " + std::to_string(array.tag);
        const auto found = ends_->there.find(other_);
        if (found == ends_->there.end())
            throw MessageError("the other end of " + message + " is gone; keep both until both are started");
        LocalEnd& other = *found->second;
        if (waits_on_) throw MessageError(message + " is started again before its other end was");
        if (!other.waits_on_) {
            waits_on_ = stream;
            return std::nullopt;
        }
        if (*other.waits_on_ != stream)
            throw MessageError("the two ends of " + message + " are started on different streams");
        other.waits_on_.reset();
        return other.array;
    }

  private:
    std::shared_ptr<LocalEnds> ends_;
    int number_ = 0, other_ = 0;
    std::optional<void*> waits_on_; // the stream of a start whose other end has not been started
};

class Local : public MessageConnection {
  public:
    explicit Local(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
    std::unique_ptr<MessageEnd> make(const MessageArray& array) override {
        return std::make_unique<LocalEnd>(ends_, array);
    }
    void begin(StreamProgram& program, Ends ends) override {
        for (MessageEnd* end : ends)
            program.add("a copy, if both ends have been started", own, {}, [this, end](void* stream) {
                const MessageArray& here = end->array;
                const auto other = static_cast<LocalEnd*>(end)->start(stream);
                if (!other || here.bytes == 0) return;
                const auto& [from, to] = here.sends ? std::tie(here, *other) : std::tie(*other, here);
                gpu_->copy(to.address, from.address, here.bytes, stream);
            });
    }

  private:
    std::shared_ptr<Gpu> gpu_;
    std::shared_ptr<LocalEnds> ends_ = std::make_shared<LocalEnds>();
};

std::shared_ptr<MessageConnection> make(const MessageRanks& ranks) {
    return std::make_shared<Local>(ranks.gpu);
}

} // namespace

const MessageTransport messages_to_oneself{
    {"local", "a copy", {.recordable = true, .one_sided = true}, nullptr}, make, {.to_oneself = true}};

} // namespace jali
