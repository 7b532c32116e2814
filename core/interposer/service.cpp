#include "interposer/service.hpp"
#include "collective/collectives.hpp"
#include "collective/kept_plans.hpp"
#include "collective/rules.hpp"
#include "device/sha256.hpp"
#include "device/vendor.hpp"
#include "settings/notice.hpp"
#include "settings/settings.hpp"
#include "settings/version.hpp"
#include "transport/communicator.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <span>

namespace jali::interposer {

namespace {

// What jali has of one of the program's communicators.
struct Served {
    std::shared_ptr<Communicator> ranks;
    std::shared_ptr<Collectives> collectives;
    std::shared_ptr<Communicator> votes;
    std::shared_ptr<Gpu> gpu; // of this rank; the first that all ranks have come with
    // Of its own, since calls of several communicators may wait for each other's ranks at once.
    std::optional<GpuStream> stream;
    std::optional<GpuEvent> meeting;
    bool device_closed = false; // some rank's has no room for plans
    KeptPlans<const CollectiveChoice> ways;
};

constexpr int most_served = 64; // communicators at a time

// Attached to communicators that are none of ours: groups of one, of several worlds, between two groups.
Served not_served;

std::atomic<bool> may_serve = false;
bool devices_may_come = false; // on some rank
int key_of_served = 0;
std::mutex mutex; // of the set
std::set<Served*> all_served;

bool has_devices() {
    const Settings& set = settings();
    return !set.cuda_driver.empty() || !set.hip_driver.empty() || std::filesystem::exists("/dev/nvidiactl") ||
           std::filesystem::exists("/dev/kfd");
}

int no_copy(MpiHandle, int, void*, void*, void*, int* copied) {
    *copied = 0; // a duplicate gets its own
    return 0;
}

int drop_served(MpiHandle, int, void* value, void*) {
    auto* served = static_cast<Served*>(value);
    if (served == &not_served) return 0;
    {
        std::lock_guard lock(mutex);
        if (all_served.erase(served) == 0) return 0;
    }
    const std::shared_ptr<Communicator> ranks = served->ranks;
    delete served;
    ranks->end_belongings();
    ranks->give_back(); // all ranks are here, as they free the communicator
    return 0;
}

// Whether all ranks were started together, so that all have this library and its settings.
bool is_of_this_world(H comm, int ranks) {
    std::vector<std::byte> groups(2 * sizeof(H));
    void *group = groups.data(), *world = groups.data() + sizeof(H);
    if (mpi().Comm_group(comm, group) != 0 || mpi().Comm_group(mpi().world, world) != 0) return false;
    std::vector<int> here(ranks), there(ranks);
    for (int k = 0; k < ranks; ++k) here[k] = k;
    const int error = mpi().Group_translate_ranks(mpi().handle_at(group, 0), ranks, here.data(),
                                                  mpi().handle_at(world, 0), there.data());
    mpi().Group_free(group);
    mpi().Group_free(world);
    return error == 0 && std::ranges::find(there, mpi().undefined) == there.end();
}

Served* served_for(H comm) {
    Served* served = nullptr;
    int there = 0;
    if (mpi().Comm_get_attr(comm, key_of_served, &served, &there) == 0 && there)
        return served != &not_served ? served : nullptr;
    int between = 0, ranks = 0;
    const bool ours = mpi().Comm_test_inter(comm, &between) == 0 && between == 0 &&
                      mpi().Comm_size(comm, &ranks) == 0 && ranks > 1 && is_of_this_world(comm, ranks);
    if (!ours) {
        mpi().Comm_set_attr(comm, key_of_served, &not_served);
        return nullptr;
    }
    // MPI has a limited number of communicators, and jali takes some seven for each: all ranks count alike.
    int mine = 0, largest = 0;
    {
        std::lock_guard lock(mutex);
        mine = static_cast<int>(all_served.size());
    }
    std::vector<int> all(ranks);
    MpiAbi::find("").check(
        mpi().Allgather(&mine, sizeof mine, mpi().byte, all.data(), sizeof mine, mpi().byte, comm),
        "MPI_Allgather");
    for (int each : all) largest = std::max(largest, each);
    if (largest >= most_served) {
        mpi().Comm_set_attr(comm, key_of_served, &not_served);
        return nullptr;
    }
    auto made = std::make_unique<Served>();
    made->ranks = make_mpi_communicator(static_cast<std::uintptr_t>(mpi().handle(comm)), "");
    made->collectives = Collectives::make(made->ranks);
    made->collectives->serve_mpi_program();
    made->votes = made->collectives->carriers().front().second->duplicate();
    MpiAbi::find("").check(mpi().Comm_set_attr(comm, key_of_served, made.get()), "MPI_Comm_set_attr");
    std::lock_guard lock(mutex);
    all_served.insert(made.get());
    return made.release();
}

std::optional<Operation> operation_of_mpi(H op) {
    constexpr Operation known[] = {Operation::sum,         Operation::prod,        Operation::min,
                                   Operation::max,         Operation::logical_and, Operation::logical_or,
                                   Operation::logical_xor, Operation::bit_and,     Operation::bit_or,
                                   Operation::bit_xor};
    op = mpi().handle(op);
    for (std::size_t k = 0; k < std::size(known); ++k)
        if (op == mpi().operations[k]) return known[k];
    return std::nullopt;
}

// Of the largest buffer.
std::int64_t bytes_of(const PlannedCall& planned, int ranks) {
    std::int64_t count = 0;
    for (std::int64_t each : planned.counts) count += each;
    const bool whole = planned.collective == Collective::broadcast ||
                       planned.collective == Collective::reduce ||
                       planned.collective == Collective::all_reduce;
    if (!whole && planned.counts.size() == 1) count *= ranks;
    return planned.op == 0 ? count : count * layout_of(planned.type)->size;
}

// The call as jali has it; none where jali has no such elements or operation.
std::optional<CollectiveCall> translated(const PlannedCall& planned) {
    CollectiveCall call;
    call.collective = planned.collective;
    call.counts = planned.counts;
    call.root = planned.root;
    call.in_place = planned.in_place;
    if (planned.op == 0) {
        call.type = DataType::uint8;
        return call;
    }
    const std::optional<DataType> type = layout_of(planned.type)->element;
    const std::optional<Operation> operation = operation_of_mpi(planned.op);
    if (!type || !operation) return std::nullopt;
    call.type = *type;
    call.operation = *operation;
    try {
        check_reduction({call.type, call.operation, 1, nullptr});
    } catch (const std::invalid_argument&) {
        return std::nullopt; // the MPI library says what it thinks of it
    }
    return call;
}

// This rank's part of a call, as the plan wants it: contiguous.
struct Part {
    const void* address; // the program's; null: there is none here
    const std::vector<Elements>* elements;
    std::size_t bytes; // what the plan reads or writes here

    bool is_dense() const {
        std::int64_t end = 0;
        for (const Elements& each : *elements) {
            if (each.count <= 0) continue;
            const auto layout = layout_of(each.type);
            if (!layout->dense || each.offset != end) return false;
            end = each.offset + each.count * layout->size;
        }
        return true;
    }
};

template <class Do>
void in_pieces(const std::vector<Elements>& elements, const std::byte* base, Do&& work) {
    constexpr std::int64_t most = std::int64_t{1} << 30; // MPI_Pack counts with int
    for (const Elements& each : elements) {
        if (each.count <= 0) continue;
        const auto layout = layout_of(each.type);
        if (layout->size == 0) continue;
        if (layout->size > most) throw TransportError("an element of an MPI type of more than 1 GiB");
        const std::int64_t step = std::max<std::int64_t>(1, most / layout->size);
        for (std::int64_t k = 0; k < each.count; k += step)
            work(base + each.offset + k * layout->extent, static_cast<int>(std::min(step, each.count - k)),
                 each.type, std::min(step, each.count - k) * layout->size);
    }
}

void pack(const std::vector<Elements>& elements, const void* from, std::vector<std::byte>& into) {
    std::size_t at = 0;
    in_pieces(elements, static_cast<const std::byte*>(from),
              [&](const std::byte* piece, int count, H type, std::int64_t bytes) {
                  int place = 0;
                  MpiAbi::find("").check(mpi().Pack(piece, count, type, into.data() + at,
                                                    static_cast<int>(bytes), &place, for_packing()),
                                         "MPI_Pack");
                  at += bytes;
              });
}

void unpack(const std::vector<Elements>& elements, const std::vector<std::byte>& from, void* into) {
    std::size_t at = 0;
    in_pieces(elements, static_cast<const std::byte*>(into),
              [&](const std::byte* piece, int count, H type, std::int64_t bytes) {
                  int place = 0;
                  MpiAbi::find("").check(mpi().Unpack(from.data() + at, static_cast<int>(bytes), &place,
                                                      const_cast<std::byte*>(piece), count, type,
                                                      for_packing()),
                                         "MPI_Unpack");
                  at += bytes;
              });
}

// The buffers of a call on this rank: "data" in place, else "send" and "recv".
struct Parts {
    Part send{nullptr, nullptr, 0}, receive{nullptr, nullptr, 0};
    bool one = false; // both are one buffer
};

Parts parts_of(const CollectiveCall& call, const PlannedCall& planned, int ranks, int rank, const void* send,
               const void* receive, const std::vector<Elements>& sent,
               const std::vector<Elements>& received) {
    const std::vector<std::size_t> bytes = bytes_of_buffers(call, ranks, rank);
    Parts parts;
    parts.one = call.in_place;
    if (parts.one) {
        // A broadcast's root sends what others receive.
        if (!sent.empty()) parts.send = {send, &sent, bytes[0]};
        if (!received.empty()) parts.receive = {receive, &received, bytes[0]};
        return parts;
    }
    if (planned.root_in_place) {
        if (call.collective == Collective::scatter)
            parts.send = {send, &sent, bytes[0]};
        else
            parts.receive = {receive, &received, bytes[1]};
        return parts;
    }
    if (!sent.empty() && bytes[0] > 0) parts.send = {send, &sent, bytes[0]};
    if (!received.empty() && bytes[1] > 0) parts.receive = {receive, &received, bytes[1]};
    return parts;
}

// Where the root's own part stands in what it has in place.
std::size_t own_place(const CollectiveCall& call, int rank) {
    if (call.collective == Collective::reduce) return 0;
    const std::size_t size = size_of(call.type);
    if (call.counts.size() == 1) return static_cast<std::size_t>(rank * call.counts[0]) * size;
    std::size_t at = 0;
    for (int k = 0; k < rank; ++k) at += static_cast<std::size_t>(call.counts[k]) * size;
    return at;
}

class OnHost {
  public:
    OnHost(const CollectiveCall& call, const PlannedCall& planned, const Parts& parts, int ranks, int rank)
        : parts_(parts) {
        const std::vector<std::size_t> bytes = bytes_of_buffers(call, ranks, rank);
        if (parts.one) {
            const bool reads = parts.send.address != nullptr || parts.send.elements != nullptr;
            const bool both = !reads && call.collective != Collective::broadcast;
            std::byte* data = nullptr;
            if (reads)
                data = read(parts.send, send_);
            else
                data = write(parts.receive, receive_, both);
            buffers_ = {data};
            return;
        }
        std::byte* from = parts.send.elements != nullptr ? read(parts.send, send_) : nullptr;
        std::byte* to = parts.receive.elements != nullptr
                            ? write(parts.receive, receive_, planned.root_in_place)
                            : nullptr;
        if (planned.root_in_place) { // others do not know: the root's part goes by a copy
            const bool scatters = call.collective == Collective::scatter;
            own_.resize(scatters ? bytes[1] : bytes[0]);
            if (scatters)
                to = own_.data();
            else
                std::memcpy(own_.data(), to + own_place(call, rank), own_.size());
            if (!scatters) from = own_.data();
        }
        buffers_ = {from, to};
    }

    std::span<std::byte* const> buffers() const { return buffers_; }

    void finish() {
        if (receive_.packed) unpack(*parts_.receive.elements, receive_.bytes, receive_.host);
        staging_.write_back();
    }

  private:
    struct Held {
        std::vector<std::byte> bytes;
        void* host = nullptr; // where the elements are, on the host
        bool packed = false;
    };

    std::byte* read(const Part& part, Held& held) {
        held.host = given(part, Use::read);
        if (part.is_dense()) return begin(part, held.host);
        held.packed = true;
        held.bytes.resize(part.bytes);
        pack(*part.elements, held.host, held.bytes);
        return held.bytes.data();
    }
    std::byte* write(const Part& part, Held& held, bool both) {
        held.host = given(part, both ? Use::both : Use::written);
        if (part.is_dense()) return begin(part, held.host);
        held.packed = true;
        held.bytes.resize(part.bytes);
        if (both) pack(*part.elements, held.host, held.bytes);
        return held.bytes.data();
    }
    void* given(const Part& part, Use use) {
        return has_driver() ? staging_.give(part.address, *part.elements, use)
                            : const_cast<void*>(part.address);
    }
    static std::byte* begin(const Part& part, void* host) {
        return part.bytes > 0 ? static_cast<std::byte*>(host) : nullptr;
    }

    Parts parts_;
    Staging staging_;
    Held send_, receive_;
    std::vector<std::byte> own_;
    std::vector<std::byte*> buffers_;
};

// Of a part of this rank: its device; null where it is not all there as a plan wants it.
DeviceMemory device_of(const Part& part) {
    if (part.elements == nullptr || part.bytes == 0 || !part.is_dense()) return {};
    return device_memory(part.address);
}

// Whether all ranks have all their arguments on devices of one vendor. Collective.
std::shared_ptr<Gpu> agreed_device(Served& served, const Parts& parts) {
    std::shared_ptr<Gpu> mine;
    if (has_driver()) {
        bool all = true;
        for (const Part* part : {&parts.send, &parts.receive}) {
            if (part->elements == nullptr || part->bytes == 0) continue;
            DeviceMemory memory = device_of(*part);
            all = all && memory.gpu && (!mine || mine == memory.gpu) && in_own_context(memory);
            if (memory.gpu) mine = memory.gpu;
        }
        if (!all || (served.gpu && mine != served.gpu)) mine = nullptr;
    }
    const std::vector<std::string> kinds = vendor_names();
    std::vector<std::int64_t> votes(kinds.size(), 0);
    if (mine) ++votes[std::ranges::find(kinds, mine->kind()) - kinds.begin()];
    served.votes->all_reduce_sum(votes, "asking where arguments are");
    for (std::int64_t vote : votes)
        if (vote == served.ranks->size()) return mine;
    return nullptr;
}

// Whether every rank's device has room for a plan of this call; where one has not, no later call on these
// ranks asks. Collective.
bool has_room(Served& served, const std::shared_ptr<Gpu>& gpu, CollectiveCall call) {
    if (call.collective == Collective::all_to_all) call.in_place = false; // see below
    DeviceMemory here;
    here.gpu = gpu;
    const InContextOf current(here);
    if (served.stream && (*served.collectives->find(*gpu))->find(call, false)) return true;
    std::string trouble;
    try {
        served.gpu = gpu;
        if (!served.stream) served.stream.emplace(gpu);
        if (!served.meeting) served.meeting.emplace(gpu, false);
        served.collectives->on(gpu)->plan_of(call, false);
    } catch (const OutOfMemory& error) {
        trouble = error.what();
    }
    const std::string told = first_told(*served.votes, trouble, "room for plans on devices");
    if (told.empty()) return true;
    served.device_closed = true;
    if (served.ranks->rank() == 0)
        tell_once("collectives on devices go through MPI, staged, on some communicators: " + told);
    return false;
}

std::string run_on_device(Served& served, const std::shared_ptr<Gpu>& gpu, CollectiveCall call,
                          const PlannedCall& planned, const Parts& parts) {
    DeviceMemory here;
    here.gpu = gpu;
    const InContextOf current(here);
    const std::shared_ptr<DeviceCollectives>& collectives = served.collectives->on(gpu);
    const int rank = served.ranks->rank(), ranks = served.ranks->size();
    const auto address = [](const Part& part) {
        return part.bytes > 0 ? reinterpret_cast<GpuAddress>(part.address) : GpuAddress{0};
    };
    void* stream = served.stream->handle();
    served.meeting->record(nullptr); // after what the program has put on its usual streams
    served.meeting->let_wait(stream);
    std::vector<GpuAddress> buffers;
    GpuMemory own;
    const auto copied = [&](GpuAddress from, std::size_t size) {
        own = gpu->allocate(size, "a part of an MPI program's");
        gpu->api().check(gpu->api().copy(own.address(), from, size, stream),
                         "copying a part of an MPI program's");
        return own.address();
    };
    if (parts.one && call.collective == Collective::all_to_all) { // plans of devices have none in place
        const GpuAddress data = address(parts.receive);
        call.in_place = false;
        buffers = {copied(data, parts.receive.bytes), data};
    } else if (parts.one) {
        buffers = {parts.send.elements != nullptr ? address(parts.send) : address(parts.receive)};
    } else {
        buffers = {address(parts.send), address(parts.receive)};
    }
    if (planned.root_in_place) { // others do not know: its own part goes by a copy
        const std::vector<std::size_t> bytes = bytes_of_buffers(call, ranks, rank);
        if (call.collective != Collective::scatter && bytes[0] > 0)
            buffers[0] = copied(buffers[1] + own_place(call, rank), bytes[0]);
        if (call.collective == Collective::scatter && bytes[1] > 0) {
            own = gpu->allocate(bytes[1], "a part of an MPI program's");
            buffers[1] = own.address();
        }
    }
    const std::string way = collectives->way_of(call).way.name;
    collectives->start(call, buffers, stream);
    served.meeting->record(stream);
    served.meeting->wait();
    return way + " on " + gpu->kind();
}

} // namespace

bool serving() noexcept {
    return may_serve.load(std::memory_order_relaxed);
}

void start_service() {
    int ranks = 1;
    mpi().Comm_size(mpi().world, &ranks);
    if (ranks == 1) return;
    // Everybody hears what rank 0 has, and all hear whether somebody has something else.
    struct Mine {
        char digest[64];
        unsigned char devices;
    } first{}, mine{};
    const Settings& set = settings();
    const std::string text = std::string(version()) + "\n" + set.collective + "\n" + set.mpi_serve + "\n" +
                             std::to_string(set.mpi_ask_from) + "\n" + collective_rules()->digest();
    const std::string digest = hexadecimal(Sha256().add(text).digest());
    std::copy_n(digest.data(), std::min(digest.size(), sizeof mine.digest), mine.digest);
    first = mine;
    const MpiAbi& abi = MpiAbi::find("");
    abi.check(mpi().Bcast(&first, sizeof first, mpi().byte, 0, mpi().world), "MPI_Bcast");
    const unsigned char alike = std::memcmp(first.digest, mine.digest, sizeof mine.digest) == 0 ? 1 : 0;
    // bits that stay where all have them
    const unsigned char told[] = {alike, static_cast<unsigned char>(has_devices() ? 0 : 1)};
    unsigned char heard[2] = {};
    abi.check(mpi().Allreduce(told, heard, 2, mpi().byte, mpi().band, mpi().world), "MPI_Allreduce");
    if (heard[0] == 0)
        throw TransportError(
            "ranks have other versions or settings of jali (JALI_COLLECTIVE, JALI_COLLECTIVE_RULES, "
            "JALI_MPI_SERVE, JALI_MPI_ASK_FROM); give all ranks the same");
    devices_may_come = heard[1] == 0;
    if (set.mpi_serve == "0") return;
    const bool rules_of_hosts = !set.collective_rules.empty() || !set.collective.empty();
    if (!devices_may_come && !rules_of_hosts) return;
    key_of_served = mpi().keyval_invalid;
    abi.check(mpi().Comm_create_keyval(reinterpret_cast<void*>(&no_copy),
                                       reinterpret_cast<void*>(&drop_served), &key_of_served, nullptr),
              "MPI_Comm_create_keyval");
    may_serve = true;
}

void end_service() noexcept {
    if (!may_serve.exchange(false)) return;
    std::set<Served*> left;
    {
        std::lock_guard lock(mutex);
        left.swap(all_served);
    }
    try {
        for (Served* served : left) {
            served->votes.reset();
            served->collectives.reset();
            served->ranks->end_belongings();
        }
        for (Served* served : left) served->ranks->leave();
        for (Served* served : left) served->ranks->await_others_leaving();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "jali: at the end of MPI: %s\n", error.what());
    }
    // They stay: attributes of communicators that MPI now ends refer to them.
}

std::optional<std::string> serve(H comm, const PlannedCall& planned, const void* send, const void* receive,
                                 const std::vector<Elements>& sent, const std::vector<Elements>& received) {
    int ranks = 0;
    if (mpi().Comm_size(comm, &ranks) != 0 || ranks < 2) return std::nullopt;
    const std::int64_t bytes = bytes_of(planned, ranks);
    const Settings& set = settings();
    const bool long_enough = bytes >= set.mpi_ask_from;
    const bool bad = std::ranges::any_of(planned.counts, [](std::int64_t count) { return count < 0; }) ||
                     planned.root < 0 || planned.root >= ranks ||
                     (send == receive && !sent.empty() && !received.empty());
    if (bad) return std::nullopt; // MPI says what it thinks of it
    if (bytes == 0 || (!long_enough && set.collective_rules.empty() && set.collective.empty()))
        return std::nullopt;
    const std::optional<CollectiveCall> call = translated(planned);
    if (!call) return std::nullopt;
    Served* served = served_for(comm);
    if (served == nullptr) return std::nullopt;
    const int rank = served->ranks->rank();
    const Parts parts = parts_of(*call, planned, ranks, rank, send, receive, sent, received);
    if (devices_may_come && long_enough && !served->device_closed)
        if (const std::shared_ptr<Gpu> gpu = agreed_device(*served, parts);
            gpu && has_room(*served, gpu, *call))
            return run_on_device(*served, gpu, *call, planned, parts);
    std::shared_ptr<const CollectiveChoice> way = served->ways.find(*call);
    if (way == nullptr) {
        way = std::make_shared<const CollectiveChoice>(served->collectives->way_of(*call));
        (void)served->ways.add(*call, way);
    }
    if (way->way.name == by_mpi) return std::nullopt;
    OnHost on_host(*call, planned, parts, ranks, rank);
    served->collectives->run(*call, on_host.buffers());
    on_host.finish();
    return way->way.name;
}

void forget(H comm) {
    if (!serving()) return;
    Served* served = nullptr;
    int there = 0;
    if (mpi().Comm_get_attr(comm, key_of_served, &served, &there) == 0 && there)
        mpi().Comm_delete_attr(comm, key_of_served);
}

} // namespace jali::interposer
