// The collectives of the control plane as messages, for transports that have none of their own.
//
// Each takes about log2(ranks) rounds: a dissemination barrier, Bruck's all-gather, recursive doubling, a
// binomial tree. `exchange` stands for "send and receive these at once"; all messages of one collective have
// one tag, since all ranks call the same collectives in the same order.
#pragma once

#include "transport/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace jali {

// Messages of which any number may be under way at once, with one tag.
class Mail {
  public:
    virtual ~Mail() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual std::unique_ptr<Request> send(std::span<const std::byte> data, int to) = 0;
    virtual std::unique_ptr<Request> receive(std::span<std::byte> data, int from) = 0;
    virtual void wait(std::span<std::unique_ptr<Request>> requests, const char* what) = 0;
};

void barrier_by_messages(Mail& mail);
void all_reduce_sum_by_messages(Mail& mail, std::span<std::int64_t> values);
std::vector<std::vector<std::byte>> all_gather_by_messages(Mail& mail, std::span<const std::byte> mine);
std::vector<std::byte> broadcast_by_messages(Mail& mail, std::span<const std::byte> data, int root);

} // namespace jali
