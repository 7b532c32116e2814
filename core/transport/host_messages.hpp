// Messages of a communicator that carry what lies on devices: all of an exchange are waited for together.
#pragma once

#include "device/driver_record.hpp"
#include "transport/communicator.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace jali {

class HostMessages {
  public:
    explicit HostMessages(Communicator& communicator) : communicator_(communicator) {}
    void receive(void* data, std::size_t bytes, int from, int tag) {
        if (bytes == 0) return;
        if (DriverRecord::on())
            DriverRecord::note({.kind = DriverCall::Kind::receive,
                                .to = reinterpret_cast<std::uint64_t>(data),
                                .bytes = bytes,
                                .peer = from,
                                .tag = tag});
        requests_.push_back(communicator_.receive(data, bytes, from, tag));
    }
    void send(const void* data, std::size_t bytes, int to, int tag) {
        if (bytes == 0) return;
        if (DriverRecord::on())
            DriverRecord::note({.kind = DriverCall::Kind::send,
                                .from = reinterpret_cast<std::uint64_t>(data),
                                .bytes = bytes,
                                .peer = to,
                                .tag = tag});
        requests_.push_back(communicator_.send(data, bytes, to, tag));
    }
    void wait(const std::string& what) {
        if (DriverRecord::on()) DriverRecord::note({.kind = DriverCall::Kind::complete});
        auto requests = std::exchange(requests_, {}); // withdrawn if the wait fails
        communicator_.wait(requests, what);
    }
    void withdraw() { requests_.clear(); }

  private:
    Communicator& communicator_;
    std::vector<std::unique_ptr<Request>> requests_;
};

} // namespace jali
