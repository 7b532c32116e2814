#include "messaging/communicator.hpp"

namespace jali {

void Communicator::check_rank(int rank) const {
    if (rank < 0 || rank >= size())
        throw std::invalid_argument("rank " + std::to_string(rank) + " does not exist among " +
                                    std::to_string(size()));
}

void Communicator::check_message(int peer, int tag) const {
    check_rank(peer);
    if (tag < 0 || tag > largest_tag())
        throw std::invalid_argument("message tag " + std::to_string(tag) + " is not in 0.." +
                                    std::to_string(largest_tag()));
}

void Communicator::check_size(std::size_t bytes, std::size_t came, bool may_be_shorter, int from,
                              int tag) const {
    if (may_be_shorter ? came <= bytes : came == bytes) return;
    throw TransportError("rank " + std::to_string(rank()) + " expected " + std::to_string(bytes) +
                         " bytes from rank " + std::to_string(from) + " with tag " + std::to_string(tag) +
                         ", but " + std::to_string(came) + " came");
}

std::string first_reported(Communicator& communicator, const std::string& mine, std::string_view what) {
    for (const auto& bytes : communicator.all_gather(std::as_bytes(std::span(mine)), what))
        if (!bytes.empty()) return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    return "";
}

} // namespace jali
