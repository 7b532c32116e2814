#include "interposer/service.hpp"
#include "device/sha256.hpp"
#include "device/vendor.hpp"
#include "interposer/call_parts.hpp"
#include "messaging/communicator.hpp"
#include "planning/rules.hpp"
#include "running/collectives.hpp"
#include "running/plan_cache.hpp"
#include "settings/notice.hpp"
#include "settings/settings.hpp"
#include "settings/version.hpp"

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

// jali's objects for one of the program's communicators.
struct Served {
    std::shared_ptr<Communicator> ranks;
    std::shared_ptr<Collectives> collectives;
    std::shared_ptr<Communicator> messages; // for agreement between ranks
    std::shared_ptr<Gpu> gpu;               // of this rank; the first one used on all ranks
    // Of its own, since calls of several communicators may wait for each other's ranks at once.
    std::optional<GpuStream> stream;
    std::optional<GpuEvent> meeting;
    bool device_closed = false; // some rank's has no room for plans
    PlanCache<const CollectiveChoice> choices;
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
    ranks->end_resources();
    ranks->free(); // all ranks are here, as they free the communicator
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

// The bits that all ranks have set. A round doubles the number of ranks whose bits each has.
std::uint64_t common_bits(Communicator& ranks, std::uint64_t mine, const std::string& what) {
    const int rank = ranks.rank(), size = ranks.size();
    for (int far = 1; far < size; far *= 2) {
        std::uint64_t theirs = 0;
        std::unique_ptr<Request> under_way[] = {
            ranks.receive(&theirs, sizeof theirs, (rank + size - far) % size, 0),
            ranks.send(&mine, sizeof mine, (rank + far) % size, 0)};
        ranks.wait(under_way, what);
        mine &= theirs;
    }
    return mine;
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
    // MPI limits the number of communicators, and jali uses some seven for each: all ranks use the largest
    // count.
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
    made->messages = made->collectives->transports().front().second->duplicate();
    MpiAbi::find("").check(mpi().Comm_set_attr(comm, key_of_served, made.get()), "MPI_Comm_set_attr");
    std::lock_guard lock(mutex);
    all_served.insert(made.get());
    return made.release();
}

// The device of a part of this rank; null if the part is not dense on one device, as a plan requires.
DeviceMemory device_of(const Part& part) {
    if (part.elements == nullptr || part.bytes == 0 || !part.is_dense()) return {};
    return device_memory(part.address);
}

// Whether all ranks have all their arguments on devices of one vendor. Collective.
std::shared_ptr<Gpu> agreed_device(Served& served, const Parts& parts, bool devices) {
    std::shared_ptr<Gpu> mine;
    if (devices) {
        bool all = true;
        for (const Part* part : {&parts.send, &parts.receive}) {
            if (part->elements == nullptr || part->bytes == 0) continue;
            DeviceMemory memory = device_of(*part);
            all = all && memory.gpu && (!mine || mine == memory.gpu) && in_own_context(memory);
            if (memory.gpu) mine = memory.gpu;
        }
        if (!all || (served.gpu && mine != served.gpu)) mine = nullptr;
    }
    static const std::vector<std::string> kinds = vendor_names();
    static const std::string what = "asking where arguments are";
    const std::uint64_t bit =
        mine ? std::uint64_t{1} << (std::ranges::find(kinds, mine->kind()) - kinds.begin()) : 0;
    return common_bits(*served.messages, bit, what) != 0 ? mine : nullptr;
}

// Whether every rank's device has room for a plan of this call; if not, no later call on these ranks checks
// again. Collective.
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
    const std::string reported = first_reported(*served.messages, trouble, "room for plans on devices");
    if (reported.empty()) return true;
    served.device_closed = true;
    if (served.ranks->rank() == 0)
        report_once("collectives on devices go through MPI, staged, on some communicators: " + reported);
    return false;
}

std::string run_on_device(Served& served, const std::shared_ptr<Gpu>& gpu, CollectiveCall call,
                          const CollectiveCallWithHandles& call_with_handles, const Parts& parts) {
    DeviceMemory here;
    here.gpu = gpu;
    const InContextOf current(here);
    const std::shared_ptr<DeviceCollectives>& collectives = served.collectives->on(gpu);
    const int rank = served.ranks->rank(), ranks = served.ranks->size();
    const auto address = [](const Part& part) {
        return part.bytes > 0 ? reinterpret_cast<GpuAddress>(part.address) : GpuAddress{0};
    };
    void* stream = served.stream->handle();
    served.meeting->record(nullptr); // after the program's work on its usual streams
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
    if (call_with_handles.root_in_place) { // only the root knows: its own part is copied
        const std::vector<std::size_t> bytes = bytes_of_buffers(call, ranks, rank);
        if (call.collective != Collective::scatter && bytes[0] > 0)
            buffers[0] = copied(buffers[1] + own_offset(call, rank), bytes[0]);
        if (call.collective == Collective::scatter && bytes[1] > 0) {
            own = gpu->allocate(bytes[1], "a part of an MPI program's");
            buffers[1] = own.address();
        }
    }
    const std::string spec = collectives->algorithm_of(call).spec.name;
    collectives->start(call, buffers, stream);
    served.meeting->record(stream);
    served.meeting->wait();
    return spec + " on " + gpu->kind();
}

} // namespace

bool serving() noexcept {
    return may_serve.load(std::memory_order_relaxed);
}

void start_service() {
    int ranks = 1;
    mpi().Comm_size(mpi().world, &ranks);
    if (ranks == 1) return;
    // All ranks receive rank 0's values, and then whether any rank's differ.
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
    // bits that remain if all ranks set them
    const unsigned char reported[] = {alike, static_cast<unsigned char>(has_devices() ? 0 : 1)};
    unsigned char combined[2] = {};
    abi.check(mpi().Allreduce(reported, combined, 2, mpi().byte, mpi().band, mpi().world), "MPI_Allreduce");
    if (combined[0] == 0)
        throw TransportError(
            "ranks have other versions or settings of jali (JALI_COLLECTIVE, JALI_COLLECTIVE_RULES, "
            "JALI_MPI_SERVE, JALI_MPI_ASK_FROM); give all ranks the same");
    devices_may_come = combined[1] == 0;
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
            served->messages.reset();
            served->collectives.reset();
            served->ranks->end_resources();
        }
        for (Served* served : left) served->ranks->leave();
        for (Served* served : left) served->ranks->await_others_leaving();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "jali: at the end of MPI: %s\n", error.what());
    }
    // The objects are kept: attributes of communicators that MPI now ends refer to them.
}

std::optional<std::string> serve(H comm, const CollectiveCallWithHandles& call_with_handles, const void* send,
                                 const void* receive, const std::vector<Elements>& sent,
                                 const std::vector<Elements>& received, bool devices) {
    int ranks = 0, rank = 0;
    if (mpi().Comm_size(comm, &ranks) != 0 || ranks < 2 || mpi().Comm_rank(comm, &rank) != 0)
        return std::nullopt;
    const std::int64_t bytes = bytes_of(call_with_handles, ranks);
    const Settings& set = settings();
    const bool long_enough = bytes >= set.mpi_ask_from;
    const bool bad =
        std::ranges::any_of(call_with_handles.counts, [](std::int64_t count) { return count < 0; }) ||
        call_with_handles.root < 0 || call_with_handles.root >= ranks ||
        (send == receive && !sent.empty() && !received.empty());
    if (bad) return std::nullopt; // MPI reports the error
    if (bytes == 0 || (!long_enough && set.collective_rules.empty() && set.collective.empty()))
        return std::nullopt;
    const Translated* const call_here = translated(call_with_handles, ranks, rank);
    if (call_here == nullptr) return std::nullopt;
    const CollectiveCall& call = call_here->call;
    Served* served = served_for(comm);
    if (served == nullptr) return std::nullopt;
    const Parts parts = parts_of(*call_here, call_with_handles, send, receive, sent, received);
    if (devices_may_come && long_enough && !served->device_closed)
        if (const std::shared_ptr<Gpu> gpu = agreed_device(*served, parts, devices);
            gpu && has_room(*served, gpu, call))
            return run_on_device(*served, gpu, call, call_with_handles, parts);
    std::shared_ptr<const CollectiveChoice> spec = served->choices.find(call);
    if (spec == nullptr) {
        spec = std::make_shared<const CollectiveChoice>(served->collectives->algorithm_of(call));
        (void)served->choices.add(call, spec);
    }
    if (spec->spec.name == by_mpi) return std::nullopt;
    OnHost on_host(*call_here, call_with_handles, parts, rank, devices);
    served->collectives->run(call, on_host.buffers());
    on_host.finish();
    return spec->spec.name;
}

void forget(H comm) {
    if (!serving()) return;
    Served* served = nullptr;
    int there = 0;
    if (mpi().Comm_get_attr(comm, key_of_served, &served, &there) == 0 && there)
        mpi().Comm_delete_attr(comm, key_of_served);
}

} // namespace jali::interposer
