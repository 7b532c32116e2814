// Ends of messages that a communicator carries: with a tag that the receiver chooses.
#pragma once

#include "transport/message_transport.hpp"

#include <cstring>

namespace jali {

class ChannelEnd : public MessageEnd {
  public:
    ChannelEnd(const MessageRanks& ranks, const MessageArray& array)
        : MessageEnd(array), channel_(array.sends ? 0 : ranks.channel()) {}
    std::vector<std::byte> told() const override {
        const auto bytes = std::as_bytes(std::span(&channel_, 1));
        return {bytes.begin(), bytes.end()};
    }
    void meet(std::span<const std::byte> other, const MessageTransport&) override {
        if (array.sends) std::memcpy(&channel_, other.data(), sizeof channel_);
    }
    int channel() const { return channel_; }

  private:
    int channel_;
};

} // namespace jali
