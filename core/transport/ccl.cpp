#include "transport/ccl.hpp"
#include "device/driver_record.hpp"
#include "device/timeline.hpp"

#include "transport/patience.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <future>
#include <numeric>
#include <optional>
#include <thread>

namespace jali {

namespace {

constexpr double longest_end = 10; // seconds that ending a communicator may take

struct TypeRow {
    int number, parts; // of the library, how many of these make one element; -1: it has none
};

// by DataType
constexpr TypeRow type_rows[data_types] = {
    {ccl_int8, 1}, {-1, 1},         {ccl_int32, 1},  {ccl_int64, 1}, {ccl_uint8, 1},
    {-1, 1},       {ccl_uint32, 1}, {ccl_uint64, 1}, {ccl_fp16, 1},  {ccl_bf16, 1},
    {ccl_fp32, 1}, {ccl_fp64, 1},   {ccl_fp32, 2},   {ccl_fp64, 2},
};

const TypeRow& row_of(DataType type) {
    return type_rows[static_cast<int>(type)];
}

// The library's number, or -1.
int number_of(Operation operation) {
    switch (operation) {
    case Operation::sum:
        return ccl_sum;
    case Operation::prod:
        return ccl_prod;
    case Operation::min:
        return ccl_min;
    case Operation::max:
        return ccl_max;
    case Operation::avg:
        return ccl_avg;
    default:
        return -1;
    }
}

const char* name_of_call(int kind) {
    static const char* names[] = {"a send",      "a receive",     "an all-reduce", "a reduce-scatter",
                                  "a reduction", "a broadcast",   "an all-gather", "a gather",
                                  "a scatter",   "an all-to-all", "a copy"};
    return names[kind];
}

// What each rank tells the others before anything starts.
struct Introduction {
    char library[32] = {};                 // "NCCL 2.28.3"
    char identity[64] = {}, name[64] = {}; // of its device
    char error[864] = {};                  // why it cannot take part, empty if it can
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

void check_agreement(const std::vector<Introduction>& all, const CclApi* mine) {
    const int ranks = static_cast<int>(all.size());
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
                           all[rank].identity + "), but " + mine->name() +
                           " wants one for each rank: start as many ranks per host as it has GPUs, or give "
                           "each rank another one ('cuda:<number>', CUDA_VISIBLE_DEVICES and its like)");
    }
}

} // namespace

// ---- beginning and end ---------------------------------------------------------------------------------

CclCommunicator::CclCommunicator(std::shared_ptr<Communicator> control, std::shared_ptr<Gpu> gpu,
                                 const std::string& library)
    : control_(std::move(control)), gpu_(std::move(gpu)), limit_(watchdog_seconds()) {
    agree(library);
    CclId id{};
    std::string error;
    if (rank() == 0) {
        const int result = api_->get_id(&id);
        if (result != ccl_success) error = "no id for a group: " + api_->text_of(result, nullptr);
    }
    std::vector<std::byte> told(sizeof id + error.size());
    std::memcpy(told.data(), &id, sizeof id);
    std::memcpy(told.data() + sizeof id, error.data(), error.size());
    told = control_->broadcast(told, 0, "making a group of GPUs");
    if (told.size() < sizeof id) check_bytes(told, sizeof id, 0, "making a group of GPUs");
    std::memcpy(&id, told.data(), sizeof id);
    error.assign(reinterpret_cast<const char*>(told.data()) + sizeof id, told.size() - sizeof id);
    if (!error.empty()) throw GpuError(std::string(api_->name()) + " on rank 0 gives " + error);

    // The call may outlive a wait that was given up, so what it writes to is its own.
    auto made = std::make_shared<CclHandle>(nullptr);
    const std::string what = "making a group of " + std::to_string(size()) + " GPUs";
    const int result = patiently(what, [api = api_, made, id, ranks = size(), rank = rank()] {
        return api->init_rank(made.get(), ranks, id, rank);
    });
    comm_ = *made;
    settle(result, what);
    gpu_->set_while_waiting(this, [this, patience = Patience(limit_)](unsigned looks) mutable {
        if (looks == 0) patience.moved();
        if (comm_ == nullptr || looks % 64 != 63) return pause_core();
        guard("the device", [&] {
            check();
            patience.look_at_clock([] { return "waiting for the device, where other ranks may be missing"; });
        });
    });
}

CclCommunicator::~CclCommunicator() {
    gpu_->set_while_waiting(this, nullptr);
    if (comm_ != nullptr)
        finish(api_->destroy); // perhaps on another thread, so the control plane is not asked
}

void CclCommunicator::agree(const std::string& library) {
    Introduction mine;
    try {
        api_ = &CclApi::get(gpu_->vendor(), library);
        put(mine.library, std::string(api_->name()) + " " + api_->version_text());
        put(mine.identity, gpu_->identity());
        put(mine.name, gpu_->name());
    } catch (const GpuError& error) {
        put(mine.error, error.what());
    }
    const auto all = gather_values(*control_, mine, "making a group of GPUs");
    if (mine.error[0] != '\0') throw GpuError(mine.error);
    check_agreement(all, api_);
}

void CclCommunicator::close() noexcept {
    if (comm_ == nullptr) return;
    why_not_ = "it has been closed";
    auto end = api_->destroy;
    try {
        control_->check();
    } catch (...) { // the failure is told wherever somebody waits
        end = api_->abort;
    }
    finish(end);
}

// What the library does here may wait for other ranks of the host, which may have gone.
void CclCommunicator::finish(int (*function)(CclHandle)) noexcept {
    try {
        auto ended = std::make_shared<std::promise<void>>();
        std::future<void> end = ended->get_future();
        std::thread([gpu = gpu_, function, comm = comm_, ended] {
            try {
                gpu->make_current();
                function(comm);
            } catch (...) { // a device that has failed cannot do more
            }
            ended->set_value();
        }).detach();
        comm_ = nullptr;
        end.wait_for(std::chrono::duration<double>(std::min(limit_, longest_end)));
    } catch (...) { // no thread to be had: leave it as it is
        comm_ = nullptr;
    }
}

void CclCommunicator::abandon() noexcept {
    group_drop();
    if (comm_ != nullptr) finish(api_->abort);
}

void CclCommunicator::give_up(const std::string& cause) {
    const std::string text = here() + ": " + cause;
    if (why_not_.empty()) why_not_ = cause;
    control_->fail(text); // first, since aborting may wait until the others do so too
    abandon();
    throw GpuError(text);
}

std::string CclCommunicator::here() const {
    return std::string(api_->name()) + " on rank " + std::to_string(rank()) + " of " + std::to_string(size());
}

// ---- waiting -------------------------------------------------------------------------------------------

template <class Done>
void CclCommunicator::await(const std::string& what, Done&& done) {
    Patience patience(limit_);
    guard(what, [&] {
        while (!done()) {
            control_->check();
            patience.look_at_clock([&] { return "waiting for " + what; });
        }
    });
}

template <class Look>
void CclCommunicator::guard(const std::string& what, Look&& look) {
    try {
        look();
    } catch (const TransportError& error) {
        give_up(error.what());
    } catch (const RankFailure& failure) {
        why_not_ = failure.what();
        abandon();
        throw;
    } catch (const GpuError& error) {
        if (why_not_.empty()) give_up(error.what()); // of the device; the library's come from here
        throw;
    } catch (...) { // the program was told to stop
        control_->fail("stopped while waiting for " + what);
        why_not_ = "it was stopped";
        abandon();
        throw;
    }
}

int CclCommunicator::patiently(const std::string& what, std::function<int()> call) {
    auto answer = std::make_shared<std::promise<int>>();
    std::future<int> result = answer->get_future();
    std::thread([gpu = gpu_, call = std::move(call), answer] {
        try {
            gpu->make_current();
            answer->set_value(call());
        } catch (...) {
            answer->set_exception(std::current_exception());
        }
    }).detach();
    await(what, [&] { return result.wait_for(std::chrono::milliseconds(10)) == std::future_status::ready; });
    return result.get();
}

// Turns the result of a call into an exception; one that goes on (NCCL_COMM_BLOCKING=0) is waited for.
void CclCommunicator::settle(int error, const std::string& what) {
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

void CclCommunicator::check() {
    if (comm_ == nullptr) throw GpuError(here() + " is of no more use: " + why_not_);
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

void CclCommunicator::wait(const GpuEvent& event, const std::string& what) {
    check();
    unsigned rounds = 0;
    await(what, [&] {
        if (event.reached()) return true;
        check();
        control_->Communicator::rest(0, rounds++); // not the transport's own: no message will wake us
        return false;
    });
    check();
}

void CclCommunicator::synchronize(const std::string& what, Stream stream) {
    GpuEvent event(gpu_, false);
    event.record(handle(stream));
    wait(event, what);
}

// ---- operations ----------------------------------------------------------------------------------------

void CclCommunicator::check_combines(DataType type, Operation operation) const {
    if (operation == Operation::user || number_of(operation) < 0)
        throw GpuError(std::string(api_->name()) + " has no operation '" + std::string(name_of(operation)) +
                       "'; it has sum, prod, min, max and avg");
    check_reduction({type, operation, 1, nullptr});
    const TypeRow& row = row_of(type);
    if (row.number < 0)
        throw GpuError(std::string(api_->name()) + " cannot combine elements of type " +
                       std::string(name_of(type)) +
                       "; 8, 32 and 64-bit integers and floating-point numbers can be");
    if (row.parts > 1 && operation != Operation::sum && operation != Operation::avg)
        throw GpuError(std::string(api_->name()) + " knows no complex numbers: sum and avg of " +
                       std::string(name_of(type)) + " work, '" + std::string(name_of(operation)) +
                       "' does not");
}

void CclCommunicator::check_rank(int rank, const char* what) const {
    if (rank < 0 || rank >= size())
        throw std::invalid_argument(std::string(what) + " " + std::to_string(rank) +
                                    " does not exist among " + std::to_string(size()) + " ranks");
}

void CclCommunicator::add(Call call) {
    if (comm_ == nullptr) throw GpuError(here() + " is of no more use: " + why_not_);
    if (depth_ > 0) {
        waiting_.push_back(call);
    } else {
        issue({call});
    }
}

void CclCommunicator::group_end() {
    if (depth_ == 0) throw std::invalid_argument("a group of operations ends that has not begun");
    if (--depth_ == 0) issue(std::exchange(waiting_, {}));
}

void CclCommunicator::group_drop() noexcept {
    depth_ = 0;
    waiting_.clear();
}

// Whether the library has done the like before, so that it has its connections. Algorithms change with the
// size, so that counts too.
bool CclCommunicator::met_before(const Call& call) {
    const bool message = call.kind == Kind::send || call.kind == Kind::receive;
    const int like = message ? call.peer : static_cast<int>(std::bit_width(call.count));
    return !met_.insert({static_cast<int>(call.kind), like}).second;
}

void CclCommunicator::note(const std::vector<Call>& calls) const {
    for (const Call& call : calls) {
        DriverCall noted{.kind = DriverCall::Kind::refused,
                         .name = here() + ": " + name_of_call(static_cast<int>(call.kind)),
                         .stream = call.stream,
                         .to = call.to,
                         .from = call.from,
                         .bytes = call.count,
                         .peer = call.peer};
        if (call.type == ccl_uint8 && call.kind == Kind::send) noted.kind = DriverCall::Kind::ccl_send;
        if (call.type == ccl_uint8 && call.kind == Kind::receive) noted.kind = DriverCall::Kind::ccl_receive;
        DriverRecord::note(std::move(noted));
    }
    DriverRecord::note({.kind = DriverCall::Kind::group_end, .stream = calls.front().stream});
}

void CclCommunicator::issue(std::vector<Call> calls) {
    if (calls.empty()) return;
    gpu_->make_current();
    for (const Call& call : calls)
        if (call.kind == Kind::copy) gpu_->copy(call.to, call.from, call.count, call.stream);
    std::erase_if(calls, [](const Call& call) { return call.kind == Kind::copy; });
    if (calls.empty()) return;
    if (DriverRecord::on()) note(calls);
    const std::string what =
        name_of_call(static_cast<int>(calls.front().kind)) +
        (calls.size() > 1 ? " and " + std::to_string(calls.size() - 1) + " more" : std::string());
    void* const stream = calls.front().stream;
    bool connected = true;
    for (const Call& call : calls) connected = met_before(call) && connected;
    const auto run = [api = api_, comm = comm_, calls = std::move(calls)] {
        int error = api->group_start();
        for (const Call& call : calls) {
            if (error != ccl_success && error != ccl_in_progress) break;
            const auto* from = reinterpret_cast<const void*>(call.from);
            auto* to = reinterpret_cast<void*>(call.to);
            switch (call.kind) {
            case Kind::send:
                error = api->send(from, call.count, call.type, call.peer, comm, call.stream);
                break;
            case Kind::receive:
                error = api->receive(to, call.count, call.type, call.peer, comm, call.stream);
                break;
            case Kind::all_reduce:
                error = api->all_reduce(from, to, call.count, call.type, call.operation, comm, call.stream);
                break;
            case Kind::reduce_scatter:
                error =
                    api->reduce_scatter(from, to, call.count, call.type, call.operation, comm, call.stream);
                break;
            case Kind::reduce:
                error = api->reduce(from, to, call.count, call.type, call.operation, call.peer, comm,
                                    call.stream);
                break;
            case Kind::broadcast:
                error = api->broadcast(from, to, call.count, call.type, call.peer, comm, call.stream);
                break;
            case Kind::all_gather:
                error = api->all_gather(from, to, call.count, call.type, comm, call.stream);
                break;
            case Kind::gather:
                error = api->gather(from, to, call.count, call.type, call.peer, comm, call.stream);
                break;
            case Kind::scatter:
                error = api->scatter(from, to, call.count, call.type, call.peer, comm, call.stream);
                break;
            case Kind::all_to_all:
                error = api->all_to_all(from, to, call.count, call.type, comm, call.stream);
                break;
            case Kind::copy:
                break;
            }
        }
        // also after an error: groups belong to the thread and would stay open
        const int end = api->group_end();
        return error != ccl_success && error != ccl_in_progress ? error : end;
    };
    std::optional<DeviceSpan> span;
    if (watched()) span.emplace(*gpu_, stream, Phase::collective, std::string(api_->name()) + " " + what);
    settle(connected ? run() : patiently(what, run), what);
}

void CclCommunicator::move(Kind kind, GpuAddress from, GpuAddress to, std::size_t bytes, int peer,
                           void* stream) {
    add({kind, from, to, bytes, ccl_uint8, 0, peer, stream});
}

void CclCommunicator::combine(Kind kind, GpuAddress from, GpuAddress to, std::size_t count, DataType type,
                              Operation operation, int root, Stream stream) {
    check_combines(type, operation);
    check_rank(root, "root");
    const TypeRow& row = row_of(type);
    if (count > 0)
        add({kind, from, to, count * row.parts, row.number, number_of(operation), root, handle(stream)});
}

void CclCommunicator::send(GpuAddress from, std::size_t count, DataType type, int to_rank, Stream stream) {
    check_rank(to_rank, "rank");
    if (count > 0) move(Kind::send, from, 0, count * size_of(type), to_rank, handle(stream));
}

void CclCommunicator::receive(GpuAddress to, std::size_t count, DataType type, int from_rank, Stream stream) {
    check_rank(from_rank, "rank");
    if (count > 0) move(Kind::receive, 0, to, count * size_of(type), from_rank, handle(stream));
}

void CclCommunicator::all_reduce(GpuAddress from, GpuAddress to, std::size_t count, DataType type,
                                 Operation operation, Stream stream) {
    combine(Kind::all_reduce, from, to, count, type, operation, 0, stream);
}

void CclCommunicator::reduce(GpuAddress from, GpuAddress to, std::size_t count, DataType type,
                             Operation operation, int root, Stream stream) {
    combine(Kind::reduce, from, to, count, type, operation, root, stream);
}

void CclCommunicator::reduce_scatter(GpuAddress from, GpuAddress to, std::size_t count, DataType type,
                                     Operation operation, Stream stream) {
    combine(Kind::reduce_scatter, from, to, count, type, operation, 0, stream);
}

void CclCommunicator::broadcast(GpuAddress data, std::size_t count, DataType type, int root, Stream stream) {
    check_rank(root, "root");
    if (count > 0) move(Kind::broadcast, data, data, count * size_of(type), root, handle(stream));
}

std::size_t CclCommunicator::bytes_before(std::span<const std::size_t> counts, DataType type,
                                          int rank) const {
    if (counts.size() != static_cast<std::size_t>(size()))
        throw std::invalid_argument(std::to_string(counts.size()) + " counts for " + std::to_string(size()) +
                                    " ranks");
    return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0}) * size_of(type);
}

// Whether the library's own function can do it: it has one, and all parts are equal and not empty.
bool CclCommunicator::native(bool present, std::span<const std::size_t> counts) const {
    return present && counts[0] > 0 &&
           std::all_of(counts.begin(), counts.end(), [&](std::size_t count) { return count == counts[0]; });
}

void CclCommunicator::all_gather(GpuAddress from, GpuAddress to, std::span<const std::size_t> counts,
                                 DataType type, Stream stream) {
    const std::size_t mine = bytes_before(counts, type, rank()), bytes = counts[rank()] * size_of(type);
    if (native(true, counts)) return move(Kind::all_gather, from, to, bytes, 0, handle(stream));
    group_start();
    if (from != to + mine && bytes > 0) move(Kind::copy, from, to + mine, bytes, 0, handle(stream));
    for (int other = 0; other < size(); ++other) {
        if (other == rank()) continue;
        send(from, counts[rank()], type, other, stream);
        receive(to + bytes_before(counts, type, other), counts[other], type, other, stream);
    }
    group_end();
}

void CclCommunicator::gather(GpuAddress from, GpuAddress to, std::span<const std::size_t> counts,
                             DataType type, int root, Stream stream) {
    check_rank(root, "root");
    const std::size_t mine = bytes_before(counts, type, rank()), bytes = counts[rank()] * size_of(type);
    if (native(api_->gather != nullptr, counts))
        return move(Kind::gather, from, to, bytes, root, handle(stream));
    if (rank() != root) return send(from, counts[rank()], type, root, stream);
    group_start();
    if (from != to + mine && bytes > 0) move(Kind::copy, from, to + mine, bytes, 0, handle(stream));
    for (int other = 0; other < size(); ++other)
        if (other != root)
            receive(to + bytes_before(counts, type, other), counts[other], type, other, stream);
    group_end();
}

void CclCommunicator::scatter(GpuAddress from, GpuAddress to, std::span<const std::size_t> counts,
                              DataType type, int root, Stream stream) {
    check_rank(root, "root");
    const std::size_t mine = bytes_before(counts, type, rank()), bytes = counts[rank()] * size_of(type);
    if (native(api_->scatter != nullptr, counts))
        return move(Kind::scatter, from, to, bytes, root, handle(stream));
    if (rank() != root) return receive(to, counts[rank()], type, root, stream);
    group_start();
    if (to != from + mine && bytes > 0) move(Kind::copy, from + mine, to, bytes, 0, handle(stream));
    for (int other = 0; other < size(); ++other)
        if (other != root) send(from + bytes_before(counts, type, other), counts[other], type, other, stream);
    group_end();
}

void CclCommunicator::all_to_all(GpuAddress from, GpuAddress to, std::size_t count, DataType type,
                                 Stream stream) {
    if (api_->all_to_all != nullptr && count > 0)
        return move(Kind::all_to_all, from, to, count * size_of(type), 0, handle(stream));
    const std::vector<std::size_t> counts(size(), count);
    all_to_all(from, to, counts, counts, type, stream);
}

void CclCommunicator::all_to_all(GpuAddress from, GpuAddress to, std::span<const std::size_t> sent,
                                 std::span<const std::size_t> received, DataType type, Stream stream) {
    const std::size_t mine = bytes_before(sent, type, rank()), bytes = sent[rank()] * size_of(type);
    const std::size_t place = bytes_before(received, type, rank());
    if (sent[rank()] != received[rank()])
        throw std::invalid_argument("rank " + std::to_string(rank()) + " sends itself " +
                                    std::to_string(sent[rank()]) + " elements and expects " +
                                    std::to_string(received[rank()]));
    group_start();
    if (bytes > 0) move(Kind::copy, from + mine, to + place, bytes, 0, handle(stream));
    for (int other = 0; other < size(); ++other) {
        if (other == rank()) continue;
        send(from + bytes_before(sent, type, other), sent[other], type, other, stream);
        receive(to + bytes_before(received, type, other), received[other], type, other, stream);
    }
    group_end();
}

} // namespace jali
