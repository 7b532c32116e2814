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

MessageEnds::MessageEnds(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator)
    : peers_(most_messages, -1),
      pad_(gpu, std::move(communicator),
           {{SignalWords::data, most_messages, "start",
             [this](std::int64_t end) { return peers_[static_cast<std::size_t>(end)]; }},
            {SignalWords::credit, most_messages, "start",
             [this](std::int64_t end) { return peers_[static_cast<std::size_t>(end)]; }}},
           0, 2 * most_messages, "waited for its device, where messages of other ranks may be missing",
           "signal pad of messages", SymmetricBuffer::Reach::some),
      beside_(gpu), fork_(gpu, false), join_(gpu, false) {
    gpu->builtin("pass_messages"); // not to be loaded while something waits on the device
}

int MessageEnds::take_end(int peer) {
    clear_dropped();
    int number = fresh_;
    if (fresh_ < most_messages) {
        ++fresh_;
    } else if (free_.empty()) {
        throw GpuError(std::to_string(most_messages) + " messages are in use on rank " +
                       std::to_string(rank()) + "; drop those that are done with");
    } else {
        number = free_.front();
        free_.pop_front();
    }
    peers_[static_cast<std::size_t>(number)] = peer;
    return number;
}

void MessageEnds::clear_dropped() {
    Gpu& gpu = *pad_.gpu();
    if (gpu.is_capturing(gpu.stream())) return; // not the business of a graph
    std::lock_guard lock(mutex_);
    for (Dropped& dropped : dropped_) {
        if (dropped.passed) continue;
        for (const Row row : {data, credit})
            gpu.fill(pad_.own_word(row, dropped.number), 0, sizeof(std::int64_t));
        gpu.fill(pad_.epoch(2 * dropped.number), 0, 2 * sizeof(std::int64_t));
        dropped.passed = std::make_unique<GpuEvent>(pad_.gpu(), false);
        dropped.passed->record(gpu.stream());
    }
    while (!dropped_.empty() && dropped_.front().passed->reached()) {
        free_.push_back(dropped_.front().number);
        dropped_.pop_front();
    }
}

// ---- one end -------------------------------------------------------------------------------------------

PeerMessage::PeerMessage(std::shared_ptr<MessageEnds> ends, int peer, bool sends, GpuAddress address,
                         std::size_t bytes)
    : ends_(std::move(ends)), peer_(peer), number_(ends_->take_end(peer)), sends_(sends), address_(address),
      bytes_(bytes) {
    if (sends_ || bytes_ == 0) return;
    Gpu& gpu = *ends_->gpu();
    exporter_ = HandleExporter(gpu, address_, bytes_, true);
    if (exporter_.handle().type == HandleType::none && !ends_->pad_.buffer().in_this_process(peer_)) {
        landing_ = gpu.allocate(bytes_, "landing of a message");
        exporter_ = HandleExporter(gpu, landing_.address(), bytes_, true);
    }
}

PeerMessage::~PeerMessage() {
    std::lock_guard lock(ends_->mutex_);
    ends_->dropped_.push_back({number_, std::move(mapped_), std::move(landing_), nullptr});
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
    if (sends_) mapped_ = MappedMemory(ends_->gpu(), handle);
    other_ = ends_->pad_.word(peer_, sends_ ? MessageEnds::data : MessageEnds::credit, number);
}

// One launch: arrays offered, messages sent, arrivals taken.
struct PeerMessage::Launch {
    PassArguments arguments{};
    std::int64_t blocks = 0;

    bool empty() const { return arguments.incoming == 0 && arguments.outgoing == 0; }
    void add(const PeerMessage& m, std::int64_t deeds) {
        if (!m.sends_) {
            arguments.in[arguments.incoming++] = {m.other_, m.own_word(), m.starts()};
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
                                               m.own_word(),
                                               m.other_,
                                               m.starts(),
                                               m.blocks_done(),
                                               deeds,
                                               unit_of(m.address_, m.mapped_.address()),
                                               blocks,
                                               mine};
        blocks += mine;
    }
    void run(MessageEnds& ends, std::int64_t steps, void* stream) {
        arguments.steps = steps;
        arguments.watch = ends.pad_.watch();
        bool stores = false;
        for (std::int64_t m = 0; m < arguments.outgoing; ++m)
            stores = stores || (arguments.out[m].deeds & deed_put) != 0;
        Gpu& gpu = *ends.gpu();
        gpu.launch(gpu.builtin("pass_messages"),
                   static_cast<unsigned>(std::clamp(blocks, std::int64_t{1}, most_blocks)),
                   stores ? storing_threads : waiting_threads, arguments, stream);
    }
};

void PeerMessage::start(std::span<PeerMessage* const> messages, void* stream) {
    if (messages.empty()) return;
    MessageEnds& ends = *messages.front()->ends_;
    Gpu& gpu = *ends.gpu();
    ends.pad_.refuse_if_aborted();
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
            launch.run(ends, steps, stream);
        }
    };
    const bool few = incoming.size() <= most_messages_of_launch &&
                     stored.size() + copied.size() <= most_messages_of_launch;
    if (few) {
        Launch launch;
        for (const PeerMessage* m : incoming) launch.add(*m, 0);
        for (const PeerMessage* m : copied) launch.add(*m, deed_await);
        for (const PeerMessage* m : stored) launch.add(*m, deed_await | deed_put | deed_announce);
        launch.run(ends, copied.empty() ? step_offer | step_take : step_offer, stream);
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
        ends.fork_.record(stream);
        ends.fork_.let_wait(ends.beside_.handle());
        Launch launch;
        launch.add(m, deed_announce);
        launch.run(ends, 0, ends.beside_.handle());
    }
    if (!copied.empty() && last.empty()) {
        ends.join_.record(ends.beside_.handle());
        ends.join_.let_wait(stream);
    }
    if (incoming.size() <= most_messages_of_launch) {
        for (const PeerMessage* m : incoming) last.add(*m, 0);
        if (!last.empty()) last.run(ends, step_take, stream);
    } else {
        in_launches(incoming, 0, step_take);
    }
    for (const PeerMessage* m : messages)
        if (m->lands_beside()) gpu.copy(m->address_, m->landing_.address(), m->bytes_, stream);
    ends.pad_.note_work(stream);
}

void PeerMessage::copy_alone(void* stream) const {
    if (bytes_ > 0) ends_->gpu()->copy(mapped_.address(), address_, bytes_, stream);
}

} // namespace jali
