// Ends of messages that have a number in common, which the receiver chooses.
#pragma once

#include "device_transports/message_transport.hpp"

#include <cstring>

namespace jali {

class NumberedEnd : public MessageEnd {
  public:
    NumberedEnd(const MessageArray& array, int number) : MessageEnd(array), number_(number) {}
    std::vector<std::byte> announcement() const override {
        const auto bytes = std::as_bytes(std::span(&number_, 1));
        return {bytes.begin(), bytes.end()};
    }
    void meet(std::span<const std::byte> other, const MessageTransport&) override {
        if (!array.sends) return;
        if (other.size() != sizeof number_)
            throw GpuError("the other end of a message to rank " + std::to_string(array.peer) +
                           " cannot take it this way");
        std::memcpy(&number_, other.data(), sizeof number_);
    }
    int number() const { return number_; }

  private:
    int number_;
};

} // namespace jali
