// To oneself: a copy on the stream, when both ends have been started.
#include "transport/numbered_end.hpp"

#include <map>
#include <tuple>

namespace jali {

namespace {

class Local : public MessageCarrier {
  public:
    explicit Local(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
    std::unique_ptr<MessageEnd> make(const MessageArray& array) override {
        return std::make_unique<NumberedEnd>(array, ++made_);
    }
    void begin(Ends ends, void* stream) override {
        for (const MessageEnd* end : ends)
            start(end->array, static_cast<const NumberedEnd*>(end)->number(), stream);
    }

  private:
    struct Waiting { // for the other end
        MessageArray array;
        void* stream;
    };

    void start(const MessageArray& array, int number, void* stream) {
        const auto [at, is_first] = waiting_.try_emplace(number, array, stream);
        if (is_first) return;
        const Waiting& other = at->second;
        if (other.array.sends == array.sends)
            throw MessageError("a message to oneself with tag " + std::to_string(array.tag) +
                               " is started again before its other end was");
        if (other.stream != stream)
            throw MessageError("the two ends of a message to oneself are started on different streams");
        const auto& [from, to] = array.sends ? std::tie(array, other.array) : std::tie(other.array, array);
        if (array.bytes > 0) gpu_->copy(to.address, from.address, array.bytes, stream);
        waiting_.erase(at);
    }

    std::shared_ptr<Gpu> gpu_;
    int made_ = 0;
    std::map<int, Waiting> waiting_; // by number
};

std::shared_ptr<MessageCarrier> make(const MessageRanks& ranks) {
    return std::make_shared<Local>(ranks.gpu);
}

} // namespace

const MessageTransport messages_to_oneself{
    {"local", "a copy", {.recordable = true, .one_sided = true}, nullptr}, make, {.to_oneself = true}};

} // namespace jali
