// Ends of messages that have a number in common, which the receiver chooses.
#pragma once

#include "transport/message_transport.hpp"

#include <cstring>

namespace jali {

class NumberedEnd : public MessageEnd {
  public:
    NumberedEnd(const MessageArray& array, int number) : MessageEnd(array), number_(number) {}
    std::vector<std::byte> told() const override {
        const auto bytes = std::as_bytes(std::span(&number_, 1));
        return {bytes.begin(), bytes.end()};
    }
    void meet(std::span<const std::byte> other, const MessageTransport&) override {
        if (array.sends) std::memcpy(&number_, other.data(), sizeof number_);
    }
    int number() const { return number_; }

  private:
    int number_;
};

} // namespace jali
