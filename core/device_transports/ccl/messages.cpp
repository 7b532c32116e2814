// The vendor's library, NCCL or RCCL: all messages of a start are one group on the stream.
//
// It has no tags: messages between two ranks match in their order, which is that of tags within a start.
#include "device_transports/device_transports.hpp"
#include "device_transports/message_transport.hpp"
#include "peers/ccl_operations.hpp"
#include "settings/counted.hpp"

#include <algorithm>

namespace jali {

namespace {

class Library : public MessageConnection {
  public:
    Library(std::shared_ptr<CclGroup> ccl, std::shared_ptr<Gpu> gpu)
        : operations_(std::move(ccl)), gpu_(std::move(gpu)) {}
    std::unique_ptr<MessageEnd> make(const MessageArray& array) override {
        return std::make_unique<MessageEnd>(array);
    }
    void begin(StreamProgram& program, Ends ends) override {
        program.add("a group of " + counted(ends.size(), "message") + " of the library", own, {},
                    [this, all = messages_of(ends)](void* stream) { operations_.exchange(all, stream); });
    }
    // It connects two ranks at their first message.
    void warm_up(Ends ends, void* stream) override {
        std::vector<CclMessage> messages = messages_of(ends);
        const GpuMemory bytes = gpu_->allocate(messages.size(), "warmed up messages");
        for (std::size_t k = 0; k < messages.size(); ++k) {
            messages[k].at = bytes.address() + k;
            messages[k].bytes = std::min<std::size_t>(messages[k].bytes, 1);
        }
        operations_.exchange(messages, stream);
    }

  private:
    static std::vector<CclMessage> messages_of(Ends ends) {
        std::vector<const MessageArray*> arrays;
        for (const MessageEnd* end : ends) arrays.push_back(&end->array);
        std::ranges::stable_sort(arrays, {}, &MessageArray::tag);
        std::vector<CclMessage> messages;
        for (const MessageArray* of : arrays)
            messages.push_back({of->address, of->bytes, of->peer, of->sends});
        return messages;
    }

    CclOperations operations_;
    std::shared_ptr<Gpu> gpu_;
};

std::shared_ptr<MessageConnection> make(const MessageRanks& ranks) {
    return std::make_shared<Library>(CclGroup::shared(*ranks.communicator, ranks.gpu), ranks.gpu);
}

} // namespace

const MessageTransport messages_by_library{{vendors_library}, make, {.costly = true}};

} // namespace jali
