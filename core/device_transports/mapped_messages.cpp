#include "device_transports/mapped_messages.hpp"
#include "peers/message_kernels.hpp"
#include "settings/counted.hpp"

#include <algorithm>
#include <array>
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

// The announcements of the two ends.
struct Announcement {
    MemoryHandle handle; // of the written memory
    std::int64_t number; // of the end
};
static_assert(sizeof(Announcement) <= MessageEnd::most_announced);

} // namespace

// ---- what messages share -------------------------------------------------------------------------------

MappedMessages::MappedMessages(const MessageRanks& ranks)
    : peers_(most_messages, -1),
      pad_(ranks.gpu, ranks.control,
           {{SignalWords::data, most_messages, "start",
             [this](std::int64_t end) { return peers_[static_cast<std::size_t>(end)]; }},
            {SignalWords::credit, most_messages, "start",
             [this](std::int64_t end) { return peers_[static_cast<std::size_t>(end)]; }}},
           0, 2 * most_messages, "waited for its device, where messages of other ranks may be missing",
           "signal pad of messages", SymmetricBuffer::Reach::some) {
    ranks.gpu->builtin("pass_messages"); // not to be loaded while something waits on the device
}

int MappedMessages::take_end(int peer) {
    clear_dropped();
    int number = fresh_;
    if (fresh_ < most_messages) {
        ++fresh_;
    } else if (free_.empty()) {
        throw GpuError(counted(most_messages, "message") + " are in use on rank " + std::to_string(rank()) +
                       "; drop those that are done with");
    } else {
        number = free_.front();
        free_.pop_front();
    }
    peers_[static_cast<std::size_t>(number)] = peer;
    return number;
}

void MappedMessages::clear_dropped() {
    Gpu& gpu = *pad_.gpu();
    if (gpu.is_capturing(gpu.stream())) return; // not the business of a graph
    std::deque<Dropped> fresh; // cleared without the lock: dropping an end must not wait for a full stream
    {
        std::lock_guard lock(mutex_);
        fresh.swap(dropped_);
    }
    for (Dropped& dropped : fresh) {
        for (const Row row : {data, credit})
            gpu.fill(pad_.own_word(row, dropped.number), 0, sizeof(std::int64_t));
        gpu.fill(pad_.epoch(2 * dropped.number), 0, 2 * sizeof(std::int64_t));
        dropped.passed = std::make_unique<GpuEvent>(pad_.gpu(), false);
        dropped.passed->record(gpu.stream());
        cleared_.push_back(std::move(dropped));
    }
    for (; !cleared_.empty() && cleared_.front().passed->reached(); cleared_.pop_front())
        free_.push_back(cleared_.front().number);
}

// ---- one end -------------------------------------------------------------------------------------------

MappedMessage::MappedMessage(std::shared_ptr<MappedMessages> ends, const MessageArray& of)
    : MessageEnd(of), ends_(std::move(ends)), number_(ends_->take_end(of.peer)) {
    if (array.sends || array.bytes == 0) return;
    Gpu& gpu = *ends_->pad_.gpu();
    if (array.address != 0) exporter_ = HandleExporter(gpu, array.address, array.bytes, true);
    if (array.address == 0 ||
        (exporter_.handle().type == HandleType::none && !ends_->pad_.buffer().in_this_process(array.peer))) {
        landing_ = gpu.allocate(array.bytes, "landing of a message");
        exporter_ = HandleExporter(gpu, landing_.address(), array.bytes, true);
    }
}

MappedMessage::~MappedMessage() {
    std::lock_guard lock(ends_->mutex_);
    ends_->dropped_.push_back({number_, std::move(mapped_), std::move(landing_), nullptr});
}

std::vector<std::byte> MappedMessage::announcement() const {
    const Announcement announcement{exporter_.handle(), number_};
    const auto bytes = std::as_bytes(std::span(&announcement, 1));
    return {bytes.begin(), bytes.end()};
}

void MappedMessage::meet(std::span<const std::byte> other, const MessageTransport& by) {
    Announcement announcement;
    if (other.size() != sizeof announcement)
        throw GpuError("what the other end of a message announces has another size");
    std::memcpy(static_cast<void*>(&announcement), other.data(), sizeof announcement);
    stored_ = by.traits.stores;
    if (array.sends) mapped_ = MappedMemory(ends_->pad_.gpu(), announcement.handle);
    other_ = ends_->pad_.word(array.peer, array.sends ? MappedMessages::data : MappedMessages::credit,
                              announcement.number);
}

bool MappedMessage::copy_alone(void* stream) const {
    if (array.sends && array.bytes > 0)
        ends_->pad_.gpu()->copy(mapped_.address(), array.address, array.bytes, stream);
    return array.sends;
}

// ---- a start of several --------------------------------------------------------------------------------

std::unique_ptr<MessageEnd> MappedMessages::make(const MessageArray& array) {
    return std::make_unique<MappedMessage>(shared_from_this(), array);
}

// One launch: credit granted, messages sent, arrivals taken.
struct MappedMessages::Launch {
    PassArguments arguments{};
    std::array<const MappedMessage*, most_messages_of_launch> sends{};
    std::int64_t blocks = 0;

    bool empty() const { return arguments.incoming == 0 && arguments.outgoing == 0; }
    void add(const MappedMessage& m, std::int64_t roles) {
        if (!m.array.sends) {
            arguments.in[arguments.incoming++] = {m.other_, m.own_word(), m.starts()};
            return;
        }
        const auto bytes = static_cast<std::int64_t>(m.array.bytes);
        std::int64_t mine = 1;
        if ((roles & role_put) != 0)
            mine =
                std::clamp((bytes + bytes_of_block - 1) / bytes_of_block, std::int64_t{1}, blocks_of_message);
        sends[static_cast<std::size_t>(arguments.outgoing)] = &m;
        arguments.out[arguments.outgoing++] = {.from = 0, // each start may set another
                                               .to = m.mapped_.address(),
                                               .bytes = bytes,
                                               .ready = m.own_word(),
                                               .arrived = m.other_,
                                               .count = m.starts(),
                                               .done = m.blocks_done(),
                                               .roles = roles,
                                               .unit = 0,
                                               .first_block = blocks,
                                               .blocks = mine};
        blocks += mine;
    }
    // `what`: in words.
    int put(MappedMessages& ends, StreamProgram& program, const std::string& what, std::int64_t steps,
            int stream = own, std::span<const int> needs = {}) {
        arguments.steps = steps;
        arguments.watch = ends.pad_.watch();
        bool stores = false;
        for (std::int64_t m = 0; m < arguments.outgoing; ++m)
            stores = stores || (arguments.out[m].roles & role_put) != 0;
        return program.add(what, stream, needs,
                           [&gpu = *ends.pad_.gpu(), passed = arguments, sends = sends, stores,
                            grid = static_cast<unsigned>(std::clamp(blocks, std::int64_t{1}, most_blocks))](
                               void* on) mutable {
                               for (std::size_t k = 0; k < static_cast<std::size_t>(passed.outgoing); ++k) {
                                   OutgoingMessage& message = passed.out[k];
                                   message.from = sends[k]->array.address;
                                   message.unit = unit_of(message.from, message.to);
                               }
                               gpu.launch(gpu.builtin("pass_messages"), grid,
                                          stores ? storing_threads : waiting_threads, passed, on);
                           });
    }
};

void MappedMessages::begin(StreamProgram& program, Ends ends) {
    std::vector<const MappedMessage*> all_incoming, all_stored, all_copied;
    for (const MessageEnd* end : ends) {
        const auto* m = static_cast<const MappedMessage*>(end);
        (!m->array.sends ? all_incoming : m->stored_ ? all_stored : all_copied).push_back(m);
    }
    std::span<const MappedMessage* const> incoming = all_incoming, stored = all_stored, copied = all_copied;
    // In sixteens: credit is granted for all arrays before anything is waited for.
    const auto in_launches = [&](std::span<const MappedMessage* const> of, const char* what,
                                 std::int64_t roles, std::int64_t steps) {
        for (std::size_t first = 0; first < of.size(); first += most_messages_of_launch) {
            Launch launch;
            for (const MappedMessage* m :
                 of.subspan(first, std::min<std::size_t>(most_messages_of_launch, of.size() - first)))
                launch.add(*m, roles);
            launch.put(*this, program, what, steps);
        }
    };
    const bool few = incoming.size() <= most_messages_of_launch &&
                     stored.size() + copied.size() <= most_messages_of_launch;
    if (few) {
        Launch launch;
        for (const MappedMessage* m : incoming) launch.add(*m, 0);
        for (const MappedMessage* m : copied) launch.add(*m, role_await);
        for (const MappedMessage* m : stored) launch.add(*m, role_await | role_put | role_announce);
        std::string what = incoming.empty() ? "" : "grant credit";
        const auto then = [&](const char* next) { what += (what.empty() ? "" : " + ") + std::string(next); };
        if (!stored.empty() || !copied.empty()) then("await");
        if (!stored.empty()) then("put + announce");
        if (!incoming.empty() && copied.empty()) then("take");
        launch.put(*this, program, what, copied.empty() ? step_grant_credit | step_take : step_grant_credit);
        if (copied.empty()) incoming = {};
    } else {
        in_launches(incoming, "grant credit", 0, step_grant_credit);
        in_launches(copied, "await", role_await, 0);
        in_launches(stored, "await + put + announce", role_await | role_put | role_announce, 0);
    }
    Launch last; // signals a single copy and receives
    for (const MappedMessage* m : copied) {
        const int copy = program.add("copy to rank " + std::to_string(m->array.peer), own, {},
                                     [m](void* stream) { m->copy_alone(stream); });
        if (copied.size() == 1 && incoming.size() <= most_messages_of_launch) {
            last.add(*m, role_announce);
            continue;
        }
        Launch launch; // beside the stream, so that one copy follows the other
        launch.add(*m, role_announce);
        launch.put(*this, program, "announce", 0, beside, std::span(&copy, 1));
    }
    if (incoming.size() <= most_messages_of_launch) {
        const bool announces = !last.empty();
        for (const MappedMessage* m : incoming) last.add(*m, 0);
        if (!last.empty())
            last.put(*this, program,
                     !announces         ? "take"
                     : incoming.empty() ? "announce"
                                        : "announce + take",
                     step_take);
    } else {
        in_launches(incoming, "take", 0, step_take);
    }
    for (const MappedMessage* m : all_incoming)
        if (m->lands_beside())
            program.add("copy what has landed from rank " + std::to_string(m->array.peer), own, {},
                        [m, &gpu = *pad_.gpu()](void* stream) {
                            gpu.copy(m->array.address, m->landing_.address(), m->array.bytes, stream);
                        });
    program.add("", own, {}, [this](void* stream) { pad_.note_work(stream); });
}

std::shared_ptr<MessageConnection> make_mapped_messages(const MessageRanks& ranks) {
    return std::make_shared<MappedMessages>(ranks);
}

} // namespace jali
