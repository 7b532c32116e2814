#include "peers/ccl_group.hpp"
#include "device/driver_record.hpp"
#include "device/timeline.hpp"
#include "peers/peer_memory.hpp"

#include "messaging/wait_loop.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>

namespace jali {

namespace {

constexpr double longest_end = 10; // seconds that ending a communicator may take

const char* name_of_call(int kind) {
    static const char* names[] = {"a send",      "a receive",     "an all-reduce", "a reduce-scatter",
                                  "a reduction", "a broadcast",   "an all-gather", "a gather",
                                  "a scatter",   "an all-to-all", "a copy"};
    return names[kind];
}

// What each rank sends to the others before the group is made.
struct Introduction {
    char library[32] = {};                 // "NCCL 2.28.3"
    char no_windows[160] = {};             // why there are none of its, empty if there may be
    char identity[64] = {}, name[64] = {}; // of its device
    char error[856] = {};                  // why it cannot take part, empty if it can
    std::int64_t with_handles = 0;         // so is the memory of its device's pool
};

template <std::size_t length>
void put(char (&to)[length], const std::string& text) {
    std::strncpy(to, text.c_str(), length - 1);
}

std::string numbers(const std::vector<int>& ranks) {
    std::string text;
    for (std::size_t k = 0; k < ranks.size(); ++k)
        text += (k == 0 ? "" : k + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[k]);
    return text;
}

void check_agreement(const std::vector<Introduction>& all, const CclApi* mine, const std::string& crowd) {
    const int ranks = static_cast<int>(all.size());
    const std::string one_each =
        ", but " + std::string(mine->name()) +
        " wants one for each rank: start as many ranks per host as it has GPUs, or give each rank another "
        "one ('cuda:<number>', CUDA_VISIBLE_DEVICES and its like)";
    for (int rank = 0; rank < ranks; ++rank)
        if (all[rank].error[0] != '\0')
            throw GpuError("rank " + std::to_string(rank) + " cannot join: " + all[rank].error);
    for (int rank = 1; rank < ranks; ++rank)
        if (std::strcmp(all[rank].library, all[0].library) != 0)
            throw GpuError("rank 0 has " + std::string(all[0].library) + ", but rank " +
                           std::to_string(rank) + " has " + all[rank].library +
                           ": give all ranks the same library, with JALI_NCCL or JALI_RCCL");
    for (int rank = 0; rank < ranks; ++rank) {
        std::vector<int> same;
        for (int other = 0; other < ranks; ++other)
            if (std::strcmp(all[other].identity, all[rank].identity) == 0) same.push_back(other);
        if (same.size() > 1)
            throw GpuError("ranks " + numbers(same) + " use one GPU (" + all[rank].name + ", " +
                           all[rank].identity + ")" + one_each);
    }
    if (!crowd.empty()) throw GpuError(crowd + one_each);
}

} // namespace

// ---- beginning and end ---------------------------------------------------------------------------------

CclGroup::CclGroup(std::shared_ptr<Communicator> control, std::shared_ptr<Gpu> gpu,
                   const std::string& library)
    : control_(std::move(control)), gpu_(std::move(gpu)), limit_(watchdog_seconds()) {
    agree(library);
    CclId id{};
    std::string error;
    if (rank() == 0) {
        const int result = api_->get_id(&id);
        if (result != ccl_success) error = "no id for a group: " + api_->text_of(result, nullptr);
    }
    std::vector<std::byte> reported(sizeof id + error.size());
    std::memcpy(reported.data(), &id, sizeof id);
    std::memcpy(reported.data() + sizeof id, error.data(), error.size());
    reported = control_->broadcast(reported, 0, "making a group of GPUs");
    if (reported.size() < sizeof id) check_bytes(reported, sizeof id, 0, "making a group of GPUs");
    std::memcpy(&id, reported.data(), sizeof id);
    error.assign(reinterpret_cast<const char*>(reported.data()) + sizeof id, reported.size() - sizeof id);
    if (!error.empty()) throw GpuError(std::string(api_->name()) + " on rank 0 gives " + error);

    // The call may outlive its wait after a timeout, so it owns the memory it writes to.
    auto made = std::make_shared<CclHandle>(nullptr);
    const std::string what = "making a group of " + std::to_string(size()) + " GPUs";
    const int result = with_timeout(what, [api = api_, made, id, ranks = size(), rank = rank()] {
        return api->init_rank(made.get(), ranks, id, rank);
    });
    comm_ = *made;
    settle(result, what);
    waits_ = DeviceWaits::of(*control_);
    gpu_->set_while_waiting(this, [this, wait_loop = WaitLoop(limit_),
                                   passed = std::uint64_t{0}](unsigned checks) mutable {
        if (checks == 0) wait_loop.moved();
        if (comm_ == nullptr || checks % 64 != 63) return pause_core();
        guard("the device", [&] {
            check();
            if (const std::uint64_t now = gpu_->progress().passed(); now != std::exchange(passed, now))
                wait_loop.moved();
            wait_loop.check_clock([] { return "waiting for the device, where other ranks may be missing"; });
            waits_->observe(wait_loop.waited(), [this] { return gpu_->progress().ahead(); });
        });
    });
}

CclGroup::~CclGroup() {
    gpu_->set_while_waiting(this, nullptr);
    gpu_->set_aborted(this, nullptr);
    if (comm_ != nullptr)
        finish(api_->destroy); // perhaps on another thread, so the control plane is not used
}

void CclGroup::agree(const std::string& library) {
    Introduction mine;
    try {
        api_ = &CclApi::get(gpu_->vendor(), library);
        put(mine.library, std::string(api_->name()) + " " + api_->version_text());
        put(mine.identity, gpu_->identity());
        put(mine.name, gpu_->name());
        mine.with_handles = gpu_->handle_type() == HandleType::descriptor ? 1 : 0;
        if (api_->window_register == nullptr || api_->window_deregister == nullptr)
            put(mine.no_windows,
                std::string(mine.library) + " has no symmetric windows; NCCL has them since 2.27");
        else
            put(mine.no_windows, why_no_virtual_memory(gpu_->api()));
    } catch (const GpuError& error) {
        put(mine.error, error.what());
    }
    const auto all = gather_values(*control_, mine, "making a group of GPUs");
    const std::string crowd = RankDevices::crowded(*gpu_, *control_);
    if (mine.error[0] != '\0') throw GpuError(mine.error);
    check_agreement(all, api_, crowd);
    with_handles_ = std::ranges::all_of(all, [](const Introduction& each) { return each.with_handles != 0; });
    for (int rank = 0; rank < size() && why_no_windows_.empty(); ++rank)
        if (all[rank].no_windows[0] != '\0')
            why_no_windows_ = "rank " + std::to_string(rank) + ": " + all[rank].no_windows;
}

void CclGroup::close() noexcept {
    if (comm_ == nullptr) return;
    waits_->end();
    why_not_ = "it has been closed";
    auto end = api_->destroy;
    try {
        control_->check();
    } catch (...) { // every wait reports the failure
        end = api_->abort;
    }
    finish(end);
}

// The library's function may wait for other ranks of the host, which may have ended.
void CclGroup::finish(int (*function)(CclHandle)) noexcept {
    try {
        auto ended = std::make_shared<std::promise<void>>();
        std::future<void> end = ended->get_future();
        // After an error windows end with the communicator. Their memory is kept until then.
        const auto deregister = function == api_->destroy ? api_->window_deregister : nullptr;
        std::thread([gpu = gpu_, function, comm = comm_, windows = std::exchange(windows_, {}), deregister,
                     ended] {
            try {
                const CurrentGpu current(*gpu);
                if (deregister != nullptr && !windows.empty()) {
                    gpu->api().context_synchronize();
                    for (const Window& window : windows) deregister(comm, window.handle);
                }
                function(comm);
            } catch (...) { // a device that has failed cannot do more
            }
            ended->set_value();
        }).detach();
        comm_ = nullptr;
        end.wait_for(std::chrono::duration<double>(std::min(limit_, longest_end)));
    } catch (...) { // no thread can be started: leave the communicator
        comm_ = nullptr;
    }
}

void CclGroup::abandon() noexcept {
    if (comm_ == nullptr) return;
    gpu_->set_aborted(this, [ranks = control_, why = why_not_] { // this may be a group that cannot be made
        constexpr double for_ever = std::numeric_limits<double>::infinity();
        return ranks->has_left(ranks->rank(), for_ever) ? "" : why;
    });
    finish(api_->abort);
}

void CclGroup::give_up(const std::string& cause) {
    const std::string text = here() + ": " + cause;
    if (why_not_.empty()) why_not_ = cause;
    control_->fail(text); // first, since aborting may wait until the others do so too
    abandon();
    throw GpuError(text);
}

std::string CclGroup::here() const {
    return std::string(api_->name()) + " on rank " + std::to_string(rank()) + " of " + std::to_string(size());
}

// ---- the one of a Communicator -------------------------------------------------------------------------

namespace {

struct SharedGroup : GroupResource {
    std::shared_ptr<CclGroup> group;
    std::string trouble;
    void end() noexcept override {
        if (group) group->close();
    }
};

const SharedGroup& shared_by(Communicator& ranks, const std::shared_ptr<Gpu>& gpu,
                             const std::string& library) {
    auto& resource =
        ranks.resources[gpu->vendor().ccl.title + " on device " + std::to_string(gpu->ordinal())];
    if (!resource) {
        auto made = std::make_shared<SharedGroup>();
        try {
            // a duplicate, which does not extend the lifetime of `ranks`
            made->group = std::make_shared<CclGroup>(ranks.duplicate(), gpu, library);
        } catch (const GpuError& error) {
            made->trouble = error.what();
        }
        resource = made;
    }
    return static_cast<const SharedGroup&>(*resource);
}

} // namespace

std::shared_ptr<CclGroup> CclGroup::shared(Communicator& ranks, const std::shared_ptr<Gpu>& gpu,
                                           const std::string& library) {
    const SharedGroup& found = shared_by(ranks, gpu, library);
    if (!found.group) throw GpuError(found.trouble);
    return found.group;
}

std::string CclGroup::why_not(Communicator& ranks, const std::shared_ptr<Gpu>& gpu) {
    return shared_by(ranks, gpu, "").trouble;
}

// ---- waiting -------------------------------------------------------------------------------------------

template <class Done>
void CclGroup::await(const std::string& what, Done&& done) {
    WaitLoop wait_loop(limit_);
    guard(what, [&] {
        while (!done()) {
            control_->check();
            wait_loop.check_clock([&] { return "waiting for " + what; });
        }
    });
}

template <class Observe>
void CclGroup::guard(const std::string& what, Observe&& observe) {
    try {
        observe();
    } catch (const TransportError& error) {
        give_up(error.what());
    } catch (const RankFailure& failure) {
        why_not_ = failure.what();
        abandon();
        throw;
    } catch (const GpuError& error) {
        if (why_not_.empty()) give_up(error.what()); // the device's; the library's have set it
        throw;
    } catch (...) { // the program was interrupted
        control_->fail("stopped while waiting for " + what);
        why_not_ = "it was stopped";
        abandon();
        throw;
    }
}

int CclGroup::with_timeout(const std::string& what, std::function<int()> call) {
    auto answer = std::make_shared<std::promise<int>>();
    std::future<int> result = answer->get_future();
    std::thread([gpu = gpu_, call = std::move(call), answer] {
        try {
            const CurrentGpu current(*gpu);
            answer->set_value(call());
        } catch (...) {
            answer->set_exception(std::current_exception());
        }
    }).detach();
    await(what, [&] { return result.wait_for(std::chrono::milliseconds(10)) == std::future_status::ready; });
    return result.get();
}

// Turns the result of a call into an exception; waits for a call in progress (NCCL_COMM_BLOCKING=0).
void CclGroup::settle(int error, const std::string& what) {
    if (error == ccl_in_progress)
        await(what, [&] {
            if (api_->async_error(comm_, &error) == ccl_success && error == ccl_in_progress) {
                std::this_thread::sleep_for(std::chrono::microseconds(20));
                return false;
            }
            return true;
        });
    if (error != ccl_success) give_up(what + ": " + api_->text_of(error, comm_));
}

void CclGroup::check_usable() const {
    if (comm_ == nullptr) throw GpuError(here() + " is of no more use: " + why_not_);
}

void CclGroup::check() {
    check_usable();
    int error = ccl_success;
    const int result = api_->async_error(comm_, &error);
    if (result != ccl_success) error = result;
    if (error != ccl_success && error != ccl_in_progress)
        give_up("an error while it ran: " + api_->text_of(error, comm_));
    try {
        control_->check();
    } catch (const RankFailure& failure) {
        why_not_ = failure.what();
        abandon();
        throw;
    }
}

void CclGroup::wait(const GpuEvent& event, const std::string& what) {
    check();
    unsigned rounds = 0;
    auto moved = std::chrono::steady_clock::now();
    std::uint64_t passed = gpu_->progress().passed();
    await(what, [&] {
        if (event.reached()) return true;
        check();
        const auto now = std::chrono::steady_clock::now();
        if (const std::uint64_t more = gpu_->progress().passed(); more != std::exchange(passed, more))
            moved = now;
        waits_->observe(std::chrono::duration<double>(now - moved).count(),
                        [&] { return what + ", " + gpu_->progress().ahead(); });
        control_->Communicator::rest(0, rounds++); // not the transport's own: no message will wake us
        return false;
    });
    check();
}

void CclGroup::synchronize(const std::string& what, void* stream) {
    GpuEvent event(gpu_, false);
    event.record(stream);
    wait(event, what);
}

// ---- windows -------------------------------------------------------------------------------------------

// The library assigns windows the same place on all ranks by counting them, so all ranks make and drop the
// same windows in the same order, even if one rank's program releases an array earlier than another's.
std::shared_ptr<GpuMemory> CclGroup::symmetric(std::size_t bytes) {
    const std::string what = "allocating symmetric memory";
    check();
    const auto wanted = gather_values(*control_, static_cast<std::uint64_t>(bytes), what);
    for (int rank = 1; rank < size(); ++rank)
        if (wanted[rank] != wanted[0])
            throw std::invalid_argument("symmetric memory of " + std::to_string(wanted[0]) +
                                        " bytes on rank 0, but of " + std::to_string(wanted[rank]) +
                                        " on rank " + std::to_string(rank) +
                                        ": give all ranks the same shape and type");
    if (!why_no_windows_.empty()) throw GpuError("no symmetric windows here: " + why_no_windows_);

    std::vector<std::byte> mine;
    for (const Window& window : windows_)
        mine.push_back(window.memory.use_count() == 1 ? std::byte{1} : std::byte{0});
    std::vector<char> unused(windows_.size(), 1);
    int from = 0;
    for (const auto& theirs : control_->all_gather(mine, what)) {
        check_bytes(theirs, windows_.size(), from++, what);
        for (std::size_t k = 0; k < unused.size(); ++k)
            if (theirs[k] == std::byte{0}) unused[k] = 0;
    }
    std::shared_ptr<GpuMemory> found;
    const std::size_t held = Gpu::with_handle_size(bytes);
    for (std::size_t k = 0; k < windows_.size() && !found; ++k)
        if (unused[k] != 0 && windows_[k].memory->size() == held) {
            found = windows_[k].memory;
            unused[k] = 0;
        }
    deregister(unused);
    if (found) return found;

    auto memory = std::make_shared<GpuMemory>();
    std::string trouble;
    try {
        *memory = gpu_->allocate_with_handle(bytes, "symmetric arrays");
    } catch (const std::exception& error) {
        trouble = error.what();
    }
    const auto troubles = control_->all_gather(std::as_bytes(std::span(trouble)), what);
    for (int rank = 0; rank < size(); ++rank) // all throw the same
        if (!troubles[rank].empty())
            throw GpuError(
                what + ": rank " + std::to_string(rank) + ": " +
                std::string(reinterpret_cast<const char*>(troubles[rank].data()), troubles[rank].size()));

    auto handle = std::make_shared<CclWindow>(nullptr); // may outlive a wait that timed out
    settle(with_timeout(what,
                        [api = api_, comm = comm_, memory, handle] {
                            return api->window_register(comm, reinterpret_cast<void*>(memory->address()),
                                                        memory->size(), handle.get(), ccl_symmetric);
                        }),
           what);
    windows_.push_back({memory, *handle});
    const auto made = gather_values(*control_, static_cast<std::uint64_t>(*handle != nullptr ? 1 : 0), what);
    if (std::find(made.begin(), made.end(), 0) == made.end()) return memory;
    why_no_windows_ = api_->name() +
                      " makes none between these devices (do they reach each other's memory, and are "
                      "NCCL_WIN_ENABLE and NCCL_CUMEM_ENABLE not 0?)";
    memory.reset();
    std::vector<char> last(windows_.size(), 0);
    last.back() = 1;
    deregister(last);
    throw GpuError("no symmetric windows here: " + why_no_windows_);
}

void CclGroup::deregister(const std::vector<char>& which) {
    if (std::find(which.begin(), which.end(), 1) == which.end()) return;
    const std::string what = "giving up symmetric memory";
    const CurrentGpu current(*gpu_);
    synchronize(what, gpu_->stream());
    with_timeout(what, [gpu = gpu_] { return gpu->api().context_synchronize(); }); // whatever the stream
    control_->barrier(what);                                                       // no rank reads it any
                                                                                   // more
    std::vector<Window> left;
    for (std::size_t k = 0; k < windows_.size(); ++k) {
        if (which[k] == 0)
            left.push_back(windows_[k]);
        else if (windows_[k].handle != nullptr)
            settle(api_->window_deregister(comm_, windows_[k].handle), what);
    }
    windows_ = std::move(left);
}

// ---- operations ----------------------------------------------------------------------------------------

// Whether the library has done the like before, so that it has its connections. Algorithms change with the
// size, so that counts too.
bool CclGroup::met_before(const CclCall& call) {
    const bool message = call.kind == CclCall::Kind::send || call.kind == CclCall::Kind::receive;
    const int like = message ? call.peer : static_cast<int>(std::bit_width(call.count));
    return !met_.insert({static_cast<int>(call.kind), like}).second;
}

void CclGroup::note(const std::vector<CclCall>& calls) const {
    for (const CclCall& call : calls) {
        DriverCall noted{.kind = DriverCall::Kind::refused,
                         .name = here() + ": " + name_of_call(static_cast<int>(call.kind)),
                         .stream = call.stream,
                         .to = call.to,
                         .from = call.from,
                         .bytes = call.count,
                         .peer = call.peer};
        if (call.type == ccl_uint8 && call.kind == CclCall::Kind::send)
            noted.kind = DriverCall::Kind::ccl_send;
        if (call.type == ccl_uint8 && call.kind == CclCall::Kind::receive)
            noted.kind = DriverCall::Kind::ccl_receive;
        DriverRecord::note(std::move(noted));
    }
    DriverRecord::note({.kind = DriverCall::Kind::group_end, .stream = calls.front().stream});
}

CclGroup::Extent CclGroup::extent_of(const CclCall& call) const {
    static constexpr std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2}; // by CclType
    const std::size_t one = call.count * sizes[call.type], all = one * static_cast<std::size_t>(size());
    const bool root = call.peer == rank();
    switch (call.kind) {
    case CclCall::Kind::send:
        return {one, 0};
    case CclCall::Kind::receive:
        return {0, one};
    case CclCall::Kind::all_reduce:
        return {one, one};
    case CclCall::Kind::reduce_scatter:
        return {all, one};
    case CclCall::Kind::reduce:
        return {one, root ? one : 0};
    case CclCall::Kind::broadcast:
        return {root ? one : 0, one};
    case CclCall::Kind::all_gather:
        return {one, all};
    case CclCall::Kind::gather:
        return {one, root ? all : 0};
    case CclCall::Kind::scatter:
        return {root ? all : 0, one};
    case CclCall::Kind::all_to_all:
        return {all, all};
    case CclCall::Kind::copy:
        break;
    }
    return {0, 0}; // the device's affair
}

bool CclGroup::in_window(GpuAddress address) const {
    return std::ranges::any_of(windows_, [&](const Window& window) {
        const GpuAddress begin = window.memory->address();
        return address >= begin && address < begin + window.memory->size();
    });
}

GpuMemory CclGroup::allocate(std::size_t bytes, std::string_view label) {
    return with_handles_ ? gpu_->allocate_with_handle(bytes, label)
                         : gpu_->allocate_without_handle(bytes, label);
}

bool CclGroup::takes(GpuAddress address, bool in_graph) const {
    if (!windows_.empty() && in_window(address)) return false;
    if (!in_graph) return true;
    return with_handles_ ? gpu_->virtual_block(address) != nullptr : !gpu_->has_handle(address);
}

void CclGroup::issue(std::vector<CclCall> calls) {
    check_usable();
    if (calls.empty()) return;
    const CurrentGpu current(*gpu_);
    for (const CclCall& call : calls)
        if (call.kind == CclCall::Kind::copy && call.to != call.from)
            gpu_->copy(call.to, call.from, call.count, call.stream);
    std::erase_if(calls, [](const CclCall& call) { return call.kind == CclCall::Kind::copy; });
    if (calls.empty()) return;
    if (DriverRecord::on()) note(calls);
    const std::string what =
        name_of_call(static_cast<int>(calls.front().kind)) +
        (calls.size() > 1 ? " and " + std::to_string(calls.size() - 1) + " more" : std::string());
    void* const stream = calls.front().stream;
    std::size_t bytes = 0;
    for (const CclCall& call : calls) bytes = std::max(bytes, extent_of(call).read + extent_of(call).written);
    const bool is_noted = gpu_->notes_progress(bytes);
    const std::string words = is_noted ? in_words(calls) : std::string();
    bool connected = true;
    for (const CclCall& call : calls) connected = met_before(call) && connected;
    const auto run = [api = api_, comm = comm_, calls = std::move(calls)] {
        int error = api->group_start();
        for (const CclCall& call : calls) {
            if (error != ccl_success && error != ccl_in_progress) break;
            const auto* from = reinterpret_cast<const void*>(call.from);
            auto* to = reinterpret_cast<void*>(call.to);
            switch (call.kind) {
            case CclCall::Kind::send:
                error = api->send(from, call.count, call.type, call.peer, comm, call.stream);
                break;
            case CclCall::Kind::receive:
                error = api->receive(to, call.count, call.type, call.peer, comm, call.stream);
                break;
            case CclCall::Kind::all_reduce:
                error = api->all_reduce(from, to, call.count, call.type, call.operation, comm, call.stream);
                break;
            case CclCall::Kind::reduce_scatter:
                error =
                    api->reduce_scatter(from, to, call.count, call.type, call.operation, comm, call.stream);
                break;
            case CclCall::Kind::reduce:
                error = api->reduce(from, to, call.count, call.type, call.operation, call.peer, comm,
                                    call.stream);
                break;
            case CclCall::Kind::broadcast:
                error = api->broadcast(from, to, call.count, call.type, call.peer, comm, call.stream);
                break;
            case CclCall::Kind::all_gather:
                error = api->all_gather(from, to, call.count, call.type, comm, call.stream);
                break;
            case CclCall::Kind::gather:
                error = api->gather(from, to, call.count, call.type, call.peer, comm, call.stream);
                break;
            case CclCall::Kind::scatter:
                error = api->scatter(from, to, call.count, call.type, call.peer, comm, call.stream);
                break;
            case CclCall::Kind::all_to_all:
                error = api->all_to_all(from, to, call.count, call.type, comm, call.stream);
                break;
            case CclCall::Kind::copy:
                break;
            }
        }
        // also after an error: groups belong to the thread and would stay open
        const int end = api->group_end();
        return error != ccl_success && error != ccl_in_progress ? error : end;
    };
    std::optional<DeviceSpan> span;
    if (watched()) span.emplace(*gpu_, stream, Phase::collective, std::string(api_->name()) + " " + what);
    settle(connected ? run() : with_timeout(what, run), what);
    if (is_noted) gpu_->note_progress(stream, words);
}

// "NCCL: a send to rank 1 and a receive from rank 1", with ranks where there are few.
std::string CclGroup::in_words(const std::vector<CclCall>& calls) const {
    std::string text = std::string(api_->name()) + ":";
    constexpr std::size_t most = 4;
    for (std::size_t k = 0; k < std::min(calls.size(), most); ++k) {
        const CclCall& call = calls[k];
        text += std::string(k == 0 ? " " : ", ") + name_of_call(static_cast<int>(call.kind));
        if (call.kind == CclCall::Kind::send) text += " to rank " + std::to_string(call.peer);
        if (call.kind == CclCall::Kind::receive) text += " from rank " + std::to_string(call.peer);
    }
    return text + (calls.size() > most ? " and " + std::to_string(calls.size() - most) + " more" : "");
}

} // namespace jali
