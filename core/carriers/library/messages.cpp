// The vendor's library, NCCL or RCCL: all messages of a start are one group on the stream.
//
// It knows no tags: messages between two ranks match in their order, which is that of tags within a start.
#include "carriers/carriers.hpp"
#include "transport/message_transport.hpp"

#include <algorithm>

namespace jali {

namespace {

class Library : public MessageCarrier {
  public:
    explicit Library(std::shared_ptr<CclCommunicator> ccl) : ccl_(std::move(ccl)) {}
    std::unique_ptr<MessageEnd> make(const MessageArray& array) override {
        return std::make_unique<MessageEnd>(array);
    }
    void begin(Ends ends, void* stream) override {
        std::vector<const MessageArray*> arrays;
        for (const MessageEnd* end : ends) arrays.push_back(&end->array);
        std::ranges::stable_sort(arrays, {}, &MessageArray::tag);
        std::vector<CclMessage> messages;
        for (const MessageArray* of : arrays)
            messages.push_back({of->address, of->bytes, of->peer, of->sends});
        ccl_->exchange(messages, stream);
    }

  private:
    std::shared_ptr<CclCommunicator> ccl_;
};

std::shared_ptr<MessageCarrier> make(const MessageRanks& ranks) {
    return std::make_shared<Library>(CclCommunicator::shared(*ranks.communicator, ranks.gpu));
}

} // namespace

const MessageTransport messages_by_library{{vendors_library}, make, {.costly = true}};

} // namespace jali
