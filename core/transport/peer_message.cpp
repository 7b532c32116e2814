#include "transport/peer_message.hpp"
#include "transport/message_kernels.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace jali {

namespace {

// Of the kernels that store, which wait, too.
constexpr std::int64_t most_blocks = 128, blocks_of_message = 64, bytes_of_block = 16384;
constexpr unsigned storing_threads = 256, waiting_threads = 32;

// Bytes that may be moved at once between these.
std::int64_t unit_of(GpuAddress from, GpuAddress to) {
    return std::int64_t{1} << std::min(4, std::countr_zero(from | to | 16));
}

} // namespace

// ---- what messages share -------------------------------------------------------------------------------

PeerPost::PeerPost(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator)
    : gpu_(std::move(gpu)), communicator_(std::move(communicator)),
      why_not_(static_cast<std::size_t>(communicator_->size())),
      no_handle_type_(agree_on_handle_type(gpu_, *communicator_)),
      words_(gpu_->allocate(most_messages * place_bytes, "message counters", true)),
      watch_(gpu_, communicator_, "waited for its device, where messages of other ranks may be missing"),
      beside_(gpu_), fork_(gpu_, false), join_(gpu_, false) {
    gpu_->builtin("pass_messages"); // not to be loaded while something waits on the device
    gpu_->fill(words_.address(), 0, words_.size());
    gpu_->synchronize();
    const HandleExporter exporter(*gpu_, words_.address(), words_.size()); // until all have mapped it
    const MemoryHandle& mine = exporter.handle();
    handles_ = gather_values(*communicator_, mine, "messages between devices");
    const auto ranks = static_cast<std::size_t>(size());
    std::vector<std::byte> reached(ranks, std::byte{1});
    mapped_.resize(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
        if (static_cast<int>(r) == rank()) continue;
        const MemoryHandle& other = handles_[r];
        const bool same_process = other.process == mine.process;
        if (std::strcmp(other.host, mine.host) != 0) {
            why_not_[r] = "rank " + std::to_string(r) + " is on another host";
        } else if (same_process && std::strcmp(other.device, mine.device) == 0) {
            // ranks that share a stream would wait for work that is behind them on it
            why_not_[r] = "rank " + std::to_string(r) + " is in the same process and has the same device";
        } else {
            int can = 1;
            if (same_process)
                gpu_->api().check(
                    gpu_->api().can_access_peer(&can, gpu_->ordinal(), static_cast<int>(other.ordinal)),
                    "asking for peer access");
            try {
                if (can == 0) throw GpuError("the driver lets the two devices not access each other");
                mapped_[r] = MappedMemory(gpu_, other);
            } catch (const GpuError& error) {
                why_not_[r] = "the memory of rank " + std::to_string(r) + " cannot be mapped: " +
                              (same_process || no_handle_type_.empty() ? error.what() : no_handle_type_);
            }
        }
        if (!why_not_[r].empty()) reached[r] = std::byte{0};
    }
    const auto all = communicator_->all_gather(reached, "messages between devices");
    all_reached_ = true;
    for (std::size_t r = 0; r < ranks; ++r) {
        check_bytes(all[r], ranks, static_cast<int>(r), "messages between devices");
        for (std::byte b : all[r]) all_reached_ = all_reached_ && b == std::byte{1};
        if (all[r][static_cast<std::size_t>(rank())] == std::byte{0} && why_not_[r].empty())
            why_not_[r] = "rank " + std::to_string(r) + " cannot map the memory of this rank";
    }
}

int PeerPost::take_place() {
    clear_dropped();
    if (fresh_ < most_messages) return fresh_++;
    if (free_.empty())
        throw GpuError(std::to_string(most_messages) + " messages are in use on rank " +
                       std::to_string(rank()) + "; drop those that are done with");
    const int number = free_.front();
    free_.pop_front();
    return number;
}

void PeerPost::clear_dropped() {
    if (gpu_->is_capturing(gpu_->stream())) return; // not the business of a graph
    std::lock_guard lock(mutex_);
    for (Dropped& dropped : dropped_) {
        if (dropped.passed) continue;
        gpu_->fill(place(words_.address(), dropped.number), 0, place_bytes);
        dropped.passed = std::make_unique<GpuEvent>(gpu_, false);
        dropped.passed->record(gpu_->stream());
    }
    while (!dropped_.empty() && dropped_.front().passed->reached()) {
        free_.push_back(dropped_.front().number);
        dropped_.pop_front();
    }
}

// ---- one end -------------------------------------------------------------------------------------------

PeerMessage::PeerMessage(std::shared_ptr<PeerPost> post, int peer, bool sends, GpuAddress address,
                         std::size_t bytes)
    : post_(std::move(post)), peer_(peer), number_(post_->take_place()), sends_(sends), address_(address),
      bytes_(bytes) {
    if (sends_ || bytes_ == 0) return;
    exporter_ = HandleExporter(*post_->gpu_, address_, bytes_, true);
    const MemoryHandle& handle = exporter_.handle();
    if (handle.type == HandleType::none && post_->handles_[peer_].process != handle.process) {
        landing_ = post_->gpu_->allocate(bytes_, "landing of a message");
        exporter_ = HandleExporter(*post_->gpu_, landing_.address(), bytes_, true);
    }
}

PeerMessage::~PeerMessage() {
    std::lock_guard lock(post_->mutex_);
    post_->dropped_.push_back({number_, std::move(mapped_), std::move(landing_), nullptr});
}

std::vector<std::byte> PeerMessage::told() const {
    std::vector<std::byte> text(told_bytes);
    const std::int64_t number = number_;
    std::memcpy(text.data(), &exporter_.handle(), sizeof(MemoryHandle));
    std::memcpy(text.data() + sizeof(MemoryHandle), &number, sizeof number);
    return text;
}

void PeerMessage::meet(std::span<const std::byte> other, Way way) {
    if (other.size() != told_bytes) throw GpuError("what the other end of a message tells has another size");
    way_ = way;
    MemoryHandle handle;
    std::int64_t number = 0;
    std::memcpy(&handle, other.data(), sizeof handle);
    std::memcpy(&number, other.data() + sizeof handle, sizeof number);
    if (sends_) mapped_ = MappedMemory(post_->gpu_, handle);
    other_ = post_->place(post_->mapped_[peer_].address(), static_cast<int>(number));
}

// One launch: arrays offered, messages sent, arrivals taken.
struct PeerMessage::Launch {
    PassArguments arguments{};
    std::int64_t blocks = 0;

    bool empty() const { return arguments.incoming == 0 && arguments.outgoing == 0; }
    void add(const PeerMessage& m, std::int64_t deeds) {
        if (!m.sends_) {
            arguments.in[arguments.incoming++] = {m.other_, m.own(0), m.own(1)};
            return;
        }
        const auto bytes = static_cast<std::int64_t>(m.bytes_);
        std::int64_t mine = 1;
        if ((deeds & deed_put) != 0)
            mine =
                std::clamp((bytes + bytes_of_block - 1) / bytes_of_block, std::int64_t{1}, blocks_of_message);
        arguments.out[arguments.outgoing++] = {m.address_,
                                               m.mapped_.address(),
                                               bytes,
                                               m.own(0),
                                               m.other_,
                                               m.own(1),
                                               m.own(2),
                                               deeds,
                                               unit_of(m.address_, m.mapped_.address()),
                                               blocks,
                                               mine};
        blocks += mine;
    }
    void run(PeerPost& post, std::int64_t steps, void* stream) {
        arguments.steps = steps;
        arguments.abandoned = post.watch_.abandoned();
        bool stores = false;
        for (std::int64_t m = 0; m < arguments.outgoing; ++m)
            stores = stores || (arguments.out[m].deeds & deed_put) != 0;
        post.gpu_->launch(post.gpu_->builtin("pass_messages"),
                          static_cast<unsigned>(std::clamp(blocks, std::int64_t{1}, most_blocks)),
                          stores ? storing_threads : waiting_threads, arguments, stream);
    }
};

void PeerMessage::start(std::span<PeerMessage* const> messages, void* stream) {
    if (messages.empty()) return;
    PeerPost& post = *messages.front()->post_;
    Gpu& gpu = *post.gpu_;
    gpu.make_current();
    std::vector<const PeerMessage*> incoming, stored, copied;
    for (const PeerMessage* m : messages) {
        if (!m->has_met()) throw GpuError("a message was started before its ends have met");
        (!m->sends_ ? incoming : m->way_ == Way::store ? stored : copied).push_back(m);
    }
    // In sixteens: all arrays are offered before anything is waited for.
    const auto in_launches = [&](std::span<const PeerMessage* const> of, std::int64_t deeds,
                                 std::int64_t steps) {
        for (std::size_t first = 0; first < of.size(); first += most_messages_of_launch) {
            Launch launch;
            for (const PeerMessage* m :
                 of.subspan(first, std::min<std::size_t>(most_messages_of_launch, of.size() - first)))
                launch.add(*m, deeds);
            launch.run(post, steps, stream);
        }
    };
    const bool few = incoming.size() <= most_messages_of_launch &&
                     stored.size() + copied.size() <= most_messages_of_launch;
    if (few) {
        Launch launch;
        for (const PeerMessage* m : incoming) launch.add(*m, 0);
        for (const PeerMessage* m : copied) launch.add(*m, deed_await);
        for (const PeerMessage* m : stored) launch.add(*m, deed_await | deed_put | deed_announce);
        launch.run(post, copied.empty() ? step_offer | step_take : step_offer, stream);
        if (copied.empty()) incoming.clear();
    } else {
        in_launches(incoming, 0, step_offer);
        in_launches(copied, deed_await, 0);
        in_launches(stored, deed_await | deed_put | deed_announce, 0);
    }
    Launch last; // announces a single copy and takes what arrives
    for (std::size_t k = 0; k < copied.size(); ++k) {
        const PeerMessage& m = *copied[k];
        m.copy_alone(stream);
        if (copied.size() == 1 && incoming.size() <= most_messages_of_launch) {
            last.add(m, deed_announce);
            continue;
        }
        // said beside the stream, so that one copy follows the other
        post.fork_.record(stream);
        post.fork_.let_wait(post.beside_.handle());
        Launch launch;
        launch.add(m, deed_announce);
        launch.run(post, 0, post.beside_.handle());
    }
    if (!copied.empty() && last.empty()) {
        post.join_.record(post.beside_.handle());
        post.join_.let_wait(stream);
    }
    if (incoming.size() <= most_messages_of_launch) {
        for (const PeerMessage* m : incoming) last.add(*m, 0);
        if (!last.empty()) last.run(post, step_take, stream);
    } else {
        in_launches(incoming, 0, step_take);
    }
    for (const PeerMessage* m : messages)
        if (m->lands_beside()) gpu.copy(m->address_, m->landing_.address(), m->bytes_, stream);
    post.watch_.note_work(stream);
}

void PeerMessage::copy_alone(void* stream) const {
    if (bytes_ > 0) post_->gpu_->copy(mapped_.address(), address_, bytes_, stream);
}

} // namespace jali
