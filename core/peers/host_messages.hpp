// Messages of a communicator for data on devices: all messages of an exchange are awaited together.
#pragma once

#include "device/driver_record.hpp"
#include "messaging/communicator.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace jali {

class HostMessages {
  public:
    explicit HostMessages(Communicator& communicator) : communicator_(communicator) {}
    // To or from this memory of the host or, where the library takes it, a device.
    void start(bool sends, std::uint64_t at, std::size_t bytes, int peer, int tag) {
        if (bytes == 0) return;
        if (DriverRecord::on())
            DriverRecord::note({.kind = sends ? DriverCall::Kind::send : DriverCall::Kind::receive,
                                .to = sends ? 0 : at,
                                .from = sends ? at : 0,
                                .bytes = bytes,
                                .peer = peer,
                                .tag = tag});
        requests_.push_back(sends ? communicator_.send(reinterpret_cast<const void*>(at), bytes, peer, tag)
                                  : communicator_.receive(reinterpret_cast<void*>(at), bytes, peer, tag));
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
