#include "transport/peer.hpp"
#include "transport/patience.hpp"

#include <algorithm>
#include <cstring>

#include <unistd.h>

namespace jali {

namespace {

// What a rank tells the others about its device and its block of memory.
struct Card {
    std::int64_t process, ordinal;
    std::uint64_t bytes;
    GpuAddress address;
    IpcHandle handle;
    char host[64], device[40];
};

Card own_card(const Gpu& gpu) {
    Card card{};
    card.process = getpid();
    card.ordinal = gpu.ordinal();
    gethostname(card.host, sizeof card.host - 1);
    std::strncpy(card.device, gpu.identity().c_str(), sizeof card.device - 1);
    return card;
}

std::vector<Card> exchange(Communicator& communicator, const Card& mine) {
    std::vector<Card> cards(static_cast<std::size_t>(communicator.size()));
    const auto parts = communicator.all_gather(std::as_bytes(std::span(&mine, 1)));
    for (std::size_t r = 0; r < cards.size(); ++r) std::memcpy(&cards[r], parts[r].data(), sizeof(Card));
    return cards;
}

constexpr unsigned lazy_peer_access = 1; // the flag of the drivers' IPC functions

} // namespace

std::string PeerMailbox::why_not(Gpu& gpu, Communicator& communicator) {
    const Card mine = own_card(gpu);
    const auto cards = exchange(communicator, mine);
    std::int64_t trouble = 0; // 1: other host, 2: no way between two devices, 4: one device and one process
    for (int r = 0; r < communicator.size(); ++r) {
        if (r == communicator.rank()) continue;
        const Card& other = cards[r];
        if (std::strcmp(other.host, mine.host) != 0) {
            trouble |= 1;
        } else if (std::strcmp(other.device, mine.device) == 0) {
            // ranks that share a stream would wait for work that is behind them on it
            if (other.process == mine.process) trouble |= 4;
        } else if (other.process == mine.process) {
            int can = 0;
            gpu.api().check(gpu.api().can_access_peer(&can, gpu.ordinal(), static_cast<int>(other.ordinal)),
                            "asking for peer access");
            if (can == 0) trouble |= 2;
        }
    }
    // Between processes one device may have different numbers: trying is what tells.
    GpuMemory tried = gpu.allocate(std::size_t{2} << 20, "trying peer access");
    Card offer = mine;
    const int exported = gpu.api().ipc_export(&offer.handle, tried.address());
    offer.address = exported == gpu_success ? tried.address() : 0;
    const auto offers = exchange(communicator, offer);
    for (int r = 0; r < communicator.size() && trouble == 0; ++r) {
        if (r == communicator.rank() || offers[r].process == mine.process) continue;
        GpuAddress address = 0;
        if (offers[r].address == 0 ||
            gpu.api().ipc_open(&address, offers[r].handle, lazy_peer_access) != gpu_success) {
            trouble |= 2;
        } else {
            gpu.api().ipc_close(address);
        }
    }
    std::vector<std::int64_t> all{(trouble >> 0) & 1, (trouble >> 1) & 1, (trouble >> 2) & 1};
    communicator.all_reduce_sum(all); // also keeps everybody's memory until all have tried
    if (all[0] > 0) return "ranks run on several hosts";
    if (all[1] > 0) return "the driver lets some device reach another's memory neither directly nor by IPC";
    if (all[2] > 0) return "ranks of one process share a device";
    return "";
}

PeerMailbox::PeerMailbox(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator)
    : gpu_(std::move(gpu)), communicator_(std::move(communicator)) {
    const std::string trouble = why_not(*gpu_, *communicator_);
    if (!trouble.empty()) throw GpuError("devices cannot exchange messages through their memory: " + trouble);
    const std::size_t words = most_messages + static_cast<std::size_t>(communicator_->size());
    header_bytes_ = (words * sizeof(std::int64_t) + 4095) / 4096 * 4096;
    epoch_ = gpu_->allocate(sizeof(std::int64_t), "halo counters");
    abandoned_ = gpu_->allocate_pinned(sizeof(std::int64_t), "halo counters");
    std::memset(abandoned_.data(), 0, sizeof(std::int64_t));
    pending_ = std::make_unique<GpuEvent>(gpu_, false);
    // Kernels wait for other ranks; where one has failed they are told to stop, and the host says why.
    gpu_->set_while_waiting(this, [this, patience = Patience(watchdog_seconds())](unsigned looks) mutable {
        if (looks == 0) patience.moved();
        if (looks % 64 != 63) return pause_core();
        if (!in_graph_ && pending_->reached()) return; // nothing of ours is waited for
        try {
            communicator_->check();
            patience.look_at_clock([&] {
                return "rank " + std::to_string(communicator_->rank()) +
                       " waited for its device, where halos of other ranks may be missing";
            });
        } catch (...) {
            abandon();
            throw;
        }
    });
}

PeerMailbox::~PeerMailbox() {
    gpu_->set_while_waiting(this, nullptr);
    close();
}

void PeerMailbox::close() {
    gpu_->make_current();
    for (GpuAddress address : opened_) gpu_->api().ipc_close(address);
    opened_.clear();
}

GpuAddress PeerMailbox::abandoned() const {
    return reinterpret_cast<GpuAddress>(abandoned_.data());
}

void PeerMailbox::abandon() {
    *reinterpret_cast<volatile std::int64_t*>(abandoned_.data()) = 1;
}

bool PeerMailbox::reserve(std::size_t bytes) {
    Card card = own_card(*gpu_);
    card.bytes = bytes;
    std::size_t largest = 0;
    for (const Card& other : exchange(*communicator_, card))
        largest = std::max<std::size_t>(largest, other.bytes);
    if (largest <= slot_bytes_ && memory_.size() > 0) return false;
    gpu_->api().check(gpu_->api().context_synchronize(), "waiting for the device");
    communicator_->barrier(); // nobody writes into old mailboxes any more
    close();
    communicator_->barrier(); // nor has one mapped
    memory_.release();
    slot_bytes_ = (std::max<std::size_t>(2 * slot_bytes_, largest) + 4095) / 4096 * 4096;
    // at least what has an allocation of its own, since the whole allocation is mapped
    memory_ = gpu_->allocate(std::max<std::size_t>(header_bytes_ + 2 * slot_bytes_, std::size_t{2} << 20),
                             "mailbox");
    gpu_->fill(memory_.address(), 0, header_bytes_);
    gpu_->fill(epoch_.address(), 0, epoch_.size());
    gpu_->synchronize();
    enqueued = 0;
    card.address = memory_.address();
    gpu_->make_current();
    const int exported = gpu_->api().ipc_export(&card.handle, memory_.address());
    if (exported != gpu_success) card.bytes = 0;
    const auto cards = exchange(*communicator_, card);
    bases_.assign(cards.size(), 0);
    std::string trouble;
    for (int r = 0; r < communicator_->size(); ++r) {
        const Card& other = cards[r];
        if (other.process == card.process) {
            bases_[r] = other.address;
            if (other.ordinal != card.ordinal) {
                // the other device is open in this process too
                Gpu& peer = *Gpu::open(gpu_->kind(), static_cast<int>(other.ordinal));
                const int error = peer.let_reach(*gpu_);
                if (error != gpu_success && error != gpu_peer_enabled)
                    trouble = "peer access: " + gpu_->api().text_of(error);
            }
            continue;
        }
        const int error = gpu_->api().ipc_open(&bases_[r], other.handle, lazy_peer_access);
        if (error != gpu_success) {
            trouble = "mapping the memory of rank " + std::to_string(r) + ": " + gpu_->api().text_of(error);
        } else {
            opened_.push_back(bases_[r]);
        }
    }
    communicator_->barrier(); // all mailboxes are empty and mapped
    if (!trouble.empty()) throw GpuError(trouble);
    return true;
}

} // namespace jali
