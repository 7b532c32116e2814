#include "transport/peer.hpp"

#include <algorithm>

namespace jali {

PeerMailbox::PeerMailbox(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator)
    : memory_(std::move(gpu), std::move(communicator),
              "waited for its device, where halos of other ranks may be missing") {
    const std::size_t words = most_messages + static_cast<std::size_t>(memory_.communicator()->size());
    header_bytes_ = (words * sizeof(std::int64_t) + 4095) / 4096 * 4096;
    epoch_ = memory_.gpu()->allocate(sizeof(std::int64_t), "halo counters");
}

bool PeerMailbox::reserve(std::size_t bytes) {
    const std::size_t largest = largest_on_ranks(*memory_.communicator(), bytes);
    if (largest <= slot_bytes_ && memory_.bytes() > 0) return false;
    slot_bytes_ = (std::max<std::size_t>(2 * slot_bytes_, largest) + 4095) / 4096 * 4096;
    memory_.allocate(header_bytes_ + 2 * slot_bytes_, header_bytes_, "mailbox");
    memory_.gpu()->fill(epoch_.address(), 0, epoch_.size());
    memory_.gpu()->synchronize();
    enqueued = 0;
    return true;
}

} // namespace jali
