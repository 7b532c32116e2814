#include "transport/peer_memory.hpp"
#include "transport/patience.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

#include <unistd.h>

namespace jali {

namespace {

PeerCard own_card(const Gpu& gpu) {
    PeerCard card{};
    card.process = getpid();
    card.ordinal = gpu.ordinal();
    gethostname(card.host, sizeof card.host - 1);
    std::strncpy(card.device, gpu.identity().c_str(), sizeof card.device - 1);
    return card;
}

template <class T>
std::vector<T> exchange(Communicator& communicator, const T& mine) {
    std::vector<T> all(static_cast<std::size_t>(communicator.size()));
    const auto parts = communicator.all_gather(std::as_bytes(std::span(&mine, 1)));
    for (std::size_t r = 0; r < all.size(); ++r) std::memcpy(&all[r], parts[r].data(), sizeof(T));
    return all;
}

constexpr unsigned lazy_peer_access = 1; // the flag of the drivers' IPC functions
constexpr int pointer_range_start = 11;  // attribute of an address, in both drivers

} // namespace

std::size_t largest_on_ranks(Communicator& communicator, std::size_t mine) {
    const auto all = exchange(communicator, mine);
    return *std::max_element(all.begin(), all.end());
}

std::string PeerMemory::why_not(Gpu& gpu, Communicator& communicator) {
    const PeerCard mine = own_card(gpu);
    const auto cards = exchange(communicator, mine);
    std::int64_t trouble = 0; // 1: other host, 2: no way between two devices, 4: one device and one process
    for (int r = 0; r < communicator.size(); ++r) {
        if (r == communicator.rank()) continue;
        const PeerCard& other = cards[r];
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
    PeerCard offer = mine;
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

PeerMemory::PeerMemory(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator,
                       std::string waiting)
    : gpu_(std::move(gpu)), communicator_(std::move(communicator)) {
    const std::string trouble = why_not(*gpu_, *communicator_);
    if (!trouble.empty()) throw GpuError("devices cannot exchange messages through their memory: " + trouble);
    watch_ = std::make_unique<PeerWatch>(gpu_, communicator_, std::move(waiting));
}

void PeerMemory::allocate(std::size_t bytes, std::size_t zeroed, std::string_view label) {
    if (mapping_) {
        gpu_->api().check(gpu_->api().context_synchronize(), "waiting for the device");
        communicator_->barrier(); // nobody writes into old blocks any more
        mapping_.reset();
        communicator_->barrier(); // nor has one mapped
        memory_.release();
    }
    // at least what has an allocation of its own, since the whole allocation is mapped
    memory_ = gpu_->allocate(std::max(bytes, std::size_t{2} << 20), label);
    if (zeroed > 0) gpu_->fill(memory_.address(), 0, zeroed);
    gpu_->synchronize();
    mapping_ = std::make_unique<PeerMapping>(gpu_, *communicator_, memory_.address());
}

PeerCard card_of(const Gpu& gpu, GpuAddress address) {
    PeerCard card = own_card(gpu);
    card.address = address;
    if (address == 0) return card;
    gpu.make_current();
    GpuAddress begin = 0;
    int error = gpu.api().pointer_attribute(&begin, pointer_range_start, address);
    if (error == gpu_success) error = gpu.api().ipc_export(&card.handle, begin);
    card.offset = address - begin;
    card.exported = error == gpu_success ? 1 : 0;
    return card;
}

MappedCard::MappedCard(const std::shared_ptr<Gpu>& gpu, const PeerCard& card) : gpu_(gpu) {
    if (card.address == 0) return;
    gpu_->make_current();
    if (card.process == getpid()) {
        address_ = card.address;
        if (card.ordinal == gpu_->ordinal()) return;
        // the other device is open in this process too
        Gpu& peer = *Gpu::open(gpu_->kind(), static_cast<int>(card.ordinal));
        const int error = peer.let_reach(*gpu_);
        if (error != gpu_success && error != gpu_peer_enabled)
            throw GpuError("peer access: " + gpu_->api().text_of(error));
        return;
    }
    if (card.exported == 0) throw GpuError("its driver does not export it");
    const int error = gpu_->api().ipc_open(&opened_, card.handle, lazy_peer_access);
    if (error != gpu_success) {
        opened_ = 0;
        throw GpuError(gpu_->api().text_of(error));
    }
    address_ = opened_ + card.offset;
}

MappedCard& MappedCard::operator=(MappedCard&& other) noexcept {
    if (this != &other) {
        close();
        gpu_ = std::move(other.gpu_);
        address_ = std::exchange(other.address_, 0);
        opened_ = std::exchange(other.opened_, 0);
    }
    return *this;
}

void MappedCard::close() noexcept {
    if (opened_ == 0) return;
    try {
        gpu_->make_current();
        gpu_->api().ipc_close(opened_);
    } catch (const GpuError&) { // a device that is lost says so elsewhere
    }
    address_ = opened_ = 0;
}

PeerMapping::PeerMapping(const std::shared_ptr<Gpu>& gpu, Communicator& communicator, GpuAddress mine,
                         const std::vector<char>& wanted) {
    const auto cards = exchange(communicator, card_of(*gpu, mine));
    std::string trouble;
    for (int r = 0; r < communicator.size(); ++r) {
        mapped_.emplace_back();
        if (!wanted.empty() && !wanted[r]) {
            addresses_.push_back(0);
            continue;
        }
        try {
            mapped_.back() = MappedCard(gpu, cards[r]);
        } catch (const GpuError& error) {
            trouble = "mapping the memory of rank " + std::to_string(r) + ": " + error.what();
        }
        addresses_.push_back(mapped_.back().address());
    }
    const auto failed = static_cast<std::size_t>(trouble.empty() ? 0 : 1);
    if (largest_on_ranks(communicator, failed) == 0) return; // all is there and mapped
    throw CannotMap(trouble.empty() ? "another rank cannot map the memory of its peers" : trouble);
}

PeerWatch::PeerWatch(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator,
                     std::string waiting)
    : gpu_(std::move(gpu)), communicator_(std::move(communicator)), pending_(gpu_, false) {
    abandoned_ = gpu_->allocate_pinned(sizeof(std::int64_t), "peer counters");
    std::memset(abandoned_.data(), 0, sizeof(std::int64_t));
    gpu_->set_while_waiting(this, [this, waiting = std::move(waiting),
                                   patience = Patience(watchdog_seconds())](unsigned looks) mutable {
        if (looks == 0) patience.moved();
        if (looks % 64 != 63) return pause_core();
        record_noted();
        if (!in_graph_ && pending_.reached()) return; // nothing of ours is waited for
        try {
            communicator_->check();
            patience.look_at_clock(
                [&] { return "rank " + std::to_string(communicator_->rank()) + " " + waiting; });
        } catch (...) {
            abandon();
            throw;
        }
    });
}

PeerWatch::~PeerWatch() {
    gpu_->set_while_waiting(this, nullptr);
}

GpuAddress PeerWatch::abandoned() const {
    return reinterpret_cast<GpuAddress>(abandoned_.data());
}

void PeerWatch::abandon() {
    *reinterpret_cast<volatile std::int64_t*>(abandoned_.data()) = 1;
}

// An event is one more call of the driver, so the device's own stream, which is there for ever, gets one
// only when somebody asks. Until it is reached everything on the stream counts as waiting for others.
void PeerWatch::note_work(void* stream, bool captured) {
    if (captured) {
        in_graph_ = true; // and then it may be under way at any time
        return;
    }
    noted_ = stream == gpu_->stream();
    if (!noted_) pending_.record(stream);
}

void PeerWatch::record_noted() {
    if (noted_) pending_.record(gpu_->stream());
    noted_ = false;
}

void PeerWatch::order_behind_work(void* stream) {
    record_noted();
    gpu_->api().check(gpu_->api().stream_wait(stream, pending_.handle(), 0), "ordering work between devices");
}

namespace {

struct Dropped {
    std::shared_ptr<Gpu> gpu;
    std::unique_ptr<PeerMapping> mapping;
    std::unique_ptr<GpuEvent> done; // null: not known yet
};

} // namespace

void drop_later(const std::shared_ptr<Gpu>& gpu, std::unique_ptr<PeerMapping> mapping) {
    static std::mutex mutex;
    static auto* all = new std::vector<Dropped>; // never destroyed: the driver may go first
    std::lock_guard lock(mutex);
    if (mapping) all->push_back({gpu, std::move(mapping), nullptr});
    if (gpu->is_capturing(gpu->stream())) return; // an event would become a part of the graph
    std::erase_if(*all, [&](Dropped& dropped) {
        if (dropped.gpu != gpu) return false;
        if (dropped.done) return dropped.done->reached();
        dropped.done = std::make_unique<GpuEvent>(gpu, false);
        dropped.done->record(gpu->stream());
        return false;
    });
}

} // namespace jali
