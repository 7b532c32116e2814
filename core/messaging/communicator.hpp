// A group of ranks: point-to-point messages and the few collectives that jali's control plane needs.
//
// The one interface between code that moves bytes (halo exchange, sums, files) and the transports that carry
// them (`thread`: virtual ranks of one process, `mpi`: any MPI library, `shm`: shared memory, `self`: one
// rank). A transport is one file. Communicators split from one another share their failures: a wait in one
// reports the failures of all. Every blocking call either returns or throws: a failure on any rank reaches
// the others as RankFailure with the first cause, and a rank whose program has ended is not waited for. It
// does not depend on lattices.
//
// A communicator and its requests are used by one thread at a time. Several threads may use several at once
// where takes_threads() says so; otherwise, with MPI, only the thread that started MPI may, and other threads
// get a TransportError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace jali {

// Another rank failed (or this rank was stopped); carries the first cause.
struct RankFailure : std::runtime_error {
    RankFailure(int rank, const std::string& cause) : std::runtime_error(cause), rank(rank) {}
    int rank; // where the first cause arose, as numbered in the outermost communicator; -1 if unknown
    std::string here = {}; // what this rank was doing: "rank 0 waits for ..."; may be empty
};

// The transport itself went wrong: nothing moved for the watchdog's time, a message of another size than
// expected, an error of the MPI library.
struct TransportError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

constexpr int max_tag = 32767; // what every transport has; Communicator::largest_tag() may be more

// A pending message. Completed by Communicator::test or wait; must not outlive its communicator. Destroying
// an incomplete request cancels it: only for a rank that stops after an error.
class Request {
  public:
    virtual ~Request() = default;
};

// An object created collectively by all ranks of a group (see Communicator::resources).
class GroupResource {
  public:
    virtual ~GroupResource() = default;
    virtual void end() noexcept {} // by all ranks, while they can still exchange messages
};

class ExposedMemory;

class Communicator {
  public:
    virtual ~Communicator() = default;

    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual const char* transport() const = 0; // "self", "thread", "mpi", "shm" or a user's name

    // Whether communicators that were made from one another may be used by different threads at once.
    virtual bool takes_threads() const { return true; }
    virtual void refuse_other_threads() const {} // throws TransportError where the calling one must not

    // Its ranks are processes, of which those of one host can share memory (make_host_communicator).
    virtual bool can_share_memory() const { return false; }

    virtual int outermost(int rank) const { return rank; } // its number in the outermost communicator
    // The number of ranks that are threads of this rank's process: those of the outermost communicator and of
    // all others that were running when it was made.
    virtual int ranks_of_process() const { return 1; }
    virtual int largest_tag() const = 0; // the same on all ranks, at least max_tag

    // Communicators of the ranks with the same `color`, ordered by `key`, then rank; nullptr for a negative
    // color. Collective. Their messages and collectives never match those of other communicators. They share
    // failures, departures and the watchdog with this one: fail() and leave() on either apply to both, and
    // ranks in errors are those of the outermost communicator.
    virtual std::shared_ptr<Communicator> split(int color, int key) = 0;
    std::shared_ptr<Communicator> duplicate() { return split(0, rank()); } // the same ranks; collective

    // Point to point. Messages between two ranks with the same tag arrive in the order sent; tags are
    // 0..largest_tag(). Buffers must stay alive and untouched (send) or unread (receive) until the request
    // completes. A received message must have exactly `bytes` bytes; TransportError at the receiver if not.
    virtual std::unique_ptr<Request> send(const void* data, std::size_t bytes, int to, int tag) = 0;
    virtual std::unique_ptr<Request> receive(void* data, std::size_t bytes, int from, int tag) = 0;
    // The same for a message of at most `most` bytes, which carries its own length.
    virtual std::unique_ptr<Request> receive_up_to(void* data, std::size_t most, int from, int tag) = 0;
    virtual bool test(Request& request) = 0; // makes progress; throws RankFailure if a rank failed

    // Waits for all (empty pointers are skipped). Throws RankFailure if a rank failed or has left;
    // TransportError that names `what` when no progress was made for the watchdog's time.
    virtual void wait(std::span<std::unique_ptr<Request>> requests, const std::string& what) = 0;

    // To wait for any of several messages: read events(), test() the messages, and rest() if none is
    // complete. A rank rests longer the more `rounds` found nothing: it spins, then yields its core, then
    // sleeps until events() differs from `seen`, if the transport can wake it. Returns true if it slept.
    virtual std::uint64_t events() { return 0; }
    virtual bool rest(std::uint64_t seen, unsigned rounds);

    // Whether the program of `rank` has ended and its messages should have arrived: this rank received the
    // notice some time ago, and has waited for `waited` seconds. Call it before testing.
    virtual bool has_left(int rank, double waited);

    // Collectives over all ranks, called in the same order everywhere. Ranks exchange what they call: where
    // they disagree, a TransportError on the ranks that detect it and a RankFailure on the others name two of
    // the calls. `what`, the same on all ranks, names the purpose of the call in errors ("making a group").
    virtual void barrier(std::string_view what = {}) = 0;
    virtual void all_reduce_sum(std::span<std::int64_t> values, // exact (modulo 2^64), in place
                                std::string_view what = {}) = 0;
    virtual std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine,
                                                           std::string_view what = {}) = 0;
    virtual std::vector<std::byte> broadcast(std::span<const std::byte> data, int root,
                                             std::string_view what = {}) = 0;

    // Notifies every other rank that this rank failed; they throw RankFailure at their next call or while
    // waiting. Only the first call has an effect, and none after a notice of another rank's failure.
    virtual void fail(const std::string& cause) noexcept = 0;
    virtual void check() = 0; // throws RankFailure if some rank has failed

    // Notifies every other rank that this rank's program has ended: messages already sent still arrive, but a
    // wait for further messages throws. Only await_others_leaving may follow.
    virtual void leave() noexcept = 0;

    // After leave(): returns when every other rank has left too, or one has failed. Call it before the
    // transport itself is shut down. Throws only what the wait hook throws.
    virtual void await_others_leaving() = 0;

    // Empty if messages may lie in the memory of a device of this vendor ("cuda"), else why not. The
    // same on all ranks; collective.
    virtual std::string why_not_from_devices(const std::string& kind);

    // The memory of other ranks that this rank can write to; see exposed_memory(). Collective.
    virtual std::shared_ptr<ExposedMemory> expose_memory();

    // The communicator for messages between hosts, where ranks of one host share memory; null: this one.
    virtual std::shared_ptr<Communicator> beneath() const { return nullptr; }

    // Frees the outermost communicator and all that were split from it; no call may follow. For programs in
    // which MPI outlives jali, since MPI limits the number of communicators. Collective.
    virtual void free() {}

    // Objects made once for this group, with its lifetime, by name. End them before leave().
    std::map<std::string, std::shared_ptr<GroupResource>> resources;
    void end_resources() noexcept;

  protected:
    // For transports. Throw std::invalid_argument for an invalid rank or tag.
    void check_rank(int rank) const;
    void check_message(int peer, int tag) const;
    // A message of `bytes` bytes was expected, or of at most so many. Throws TransportError.
    void check_size(std::size_t bytes, std::size_t came, bool may_be_shorter, int from, int tag) const;
};

// Throws TransportError unless rank `from` sent `wanted` bytes.
void check_bytes(std::span<const std::byte> given, std::size_t wanted, int from, std::string_view what);

// The value of every rank, in rank order; collective.
template <class Value>
std::vector<Value> gather_values(Communicator& communicator, const Value& mine, std::string_view what) {
    const auto all = communicator.all_gather(std::as_bytes(std::span(&mine, 1)), what);
    std::vector<Value> values(all.size());
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        check_bytes(all[rank], sizeof(Value), static_cast<int>(rank), what);
        std::memcpy(static_cast<void*>(&values[rank]), all[rank].data(), sizeof(Value));
    }
    return values;
}

// The text of the first rank whose `mine` is not empty, or empty; collective.
std::string first_reported(Communicator& communicator, const std::string& mine, std::string_view what);

std::shared_ptr<Communicator> make_self_communicator();

// `ranks` virtual ranks of this process, each to be used by a thread of its own.
std::vector<std::shared_ptr<Communicator>> make_thread_communicators(int ranks);

// Over a duplicate of an MPI communicator, given as the integer value of its handle (mpi4py: comm.handle);
// collective over it. `library` is the path of a loaded object through which the MPI library can be reached
// (mpi4py's extension module), or empty.
std::shared_ptr<Communicator> make_mpi_communicator(std::uintptr_t handle, const std::string& library);

// The ranks of `base`, with messages between processes of one host through shared memory and all others
// through a duplicate of `base`; transport "shm". Collective. Where ranks share no memory (JALI_SHM=0, one
// rank per host, virtual ranks) it is a duplicate of `base`. JALI_SHM_COPY=cma or slots chooses how long
// messages are copied. Throws TransportError, on all ranks, if the chosen way is not possible.
std::shared_ptr<Communicator> make_host_communicator(Communicator& base);

// Called by waiting ranks a few times per second; may throw to end the wait (Python: pending signals).
void set_wait_hook(std::function<void()> hook);

} // namespace jali
