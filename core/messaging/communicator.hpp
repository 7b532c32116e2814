// A group of ranks: point-to-point messages and the few collectives that jali's control plane needs.
//
// The one interface between everything that moves bytes (halo exchange, sums, files) and whatever carries
// them
// (`thread`: virtual ranks of one process, `mpi`: any MPI library, `self`: one rank). A transport is one
// file. Communicators made from one another share their failures: whoever waits in one hears of them all.
// Every blocking call either returns or throws: a failure on any rank reaches the others as RankFailure with
// the first cause, and a rank whose program has ended is not waited for. It knows nothing of lattices.
//
// A communicator and its requests are used by one thread at a time. Several threads may use several at once
// where takes_threads() says so; with MPI otherwise the thread that started MPI alone, and others get a
// TransportError.
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

// Another rank failed (or this one was told to stop); carries the first cause.
struct RankFailure : std::runtime_error {
    RankFailure(int rank, const std::string& cause) : std::runtime_error(cause), rank(rank) {}
    int rank; // where the first cause arose, as numbered in the outermost communicator; -1 if unknown
    std::string here = {}; // what this rank was about: "rank 0 waits for ..."; may be empty
};

// The transport itself went wrong: nothing moved for the watchdog's time, a message of another size than
// expected, an error of the MPI library.
struct TransportError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

constexpr int max_tag = 32767; // what every transport has; Communicator::largest_tag() may be more

// A message under way. Completed by Communicator::test or wait; must not outlive its communicator. Dropping
// one that is not complete withdraws it: only for a rank that gives up.
class Request {
  public:
    virtual ~Request() = default;
};

// Something that was made with all ranks of a group (see Communicator::resources).
class GroupResource {
  public:
    virtual ~GroupResource() = default;
    virtual void end() noexcept {} // by all ranks, while they can still speak with each other
};

class ExposedMemory;

class Communicator {
  public:
    virtual ~Communicator() = default;

    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual const char* transport() const = 0; // "self", "thread" or "mpi"

    // Whether communicators that were made from one another may be used by different threads at once.
    virtual bool takes_threads() const { return true; }
    virtual void refuse_other_threads() const {} // throws TransportError where the calling one must not

    // Its ranks are processes, of which those of one host can share memory (make_host_communicator).
    virtual bool can_share_memory() const { return false; }

    virtual int outermost(int rank) const { return rank; } // its number in the outermost communicator
    // How many ranks are threads of this rank's process: all of the outermost communicator, and those of
    // others that were running when that one was made.
    virtual int ranks_of_process() const { return 1; }
    virtual int largest_tag() const = 0; // the same on all ranks, at least max_tag

    // Communicators of the ranks with the same `color`, ordered by `key`, then rank; nullptr for a negative
    // color. Collective. Their messages and collectives never meet those of other communicators. They share
    // failures, departures and the watchdog with this one: fail() and leave() on either speak for the rank
    // in both, and ranks in errors are those of the outermost communicator.
    virtual std::shared_ptr<Communicator> split(int color, int key) = 0;
    std::shared_ptr<Communicator> duplicate() { return split(0, rank()); } // the same ranks; collective

    // Point to point. Messages between two ranks with the same tag arrive in the order sent; tags are
    // 0..largest_tag(). Buffers must stay alive and untouched (send) or unread (receive) until the request
    // completes. A received message must have exactly `bytes` bytes; TransportError at the receiver if not.
    virtual std::unique_ptr<Request> send(const void* data, std::size_t bytes, int to, int tag) = 0;
    virtual std::unique_ptr<Request> receive(void* data, std::size_t bytes, int from, int tag) = 0;
    // The same for a message of at most `most` bytes, which says itself how long it is.
    virtual std::unique_ptr<Request> receive_up_to(void* data, std::size_t most, int from, int tag) = 0;
    virtual bool test(Request& request) = 0; // makes progress; throws RankFailure if a rank failed

    // Waits for all (empty pointers are skipped). Throws RankFailure if a rank failed or has left;
    // TransportError that names `what` when nothing moved for the watchdog's time.
    virtual void wait(std::span<std::unique_ptr<Request>> requests, const std::string& what) = 0;

    // For whoever waits for any of several messages: note events(), test() them, and rest() if none was
    // complete. A rank rests longer the more `rounds` found nothing: it spins, then gives its core away, then
    // sleeps until events() differs from what was `seen`, if the transport can wake it. True: it has slept.
    virtual std::uint64_t events() { return 0; }
    virtual bool rest(std::uint64_t seen, unsigned rounds);

    // The program of `rank` is over, and what it sent before should have arrived: this rank heard of that
    // some time ago, and has waited for `waited` seconds. Ask before testing.
    virtual bool has_left(int rank, double waited);

    // Collectives over all ranks, called in the same order everywhere. Ranks tell each other what they call:
    // where they disagree, a TransportError on those that see it and a RankFailure on the others name two
    // of the calls. `what`, the same on all ranks, says in errors what the call is for ("making a group").
    virtual void barrier(std::string_view what = {}) = 0;
    virtual void all_reduce_sum(std::span<std::int64_t> values, // exact (modulo 2^64), in place
                                std::string_view what = {}) = 0;
    virtual std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine,
                                                           std::string_view what = {}) = 0;
    virtual std::vector<std::byte> broadcast(std::span<const std::byte> data, int root,
                                             std::string_view what = {}) = 0;

    // Tells every other rank that this one failed; they throw RankFailure at their next call or while
    // waiting. Only the first call counts, and none after another rank's failure was heard.
    virtual void fail(const std::string& cause) noexcept = 0;
    virtual void check() = 0; // throws RankFailure if some rank has failed

    // Tells every other rank that the program of this one is over: messages already sent will still arrive,
    // but whoever waits for more throws. Only await_others_leaving may follow.
    virtual void leave() noexcept = 0;

    // After leave(): returns when every other rank has left too, or one has failed. Call it before the
    // transport itself is shut down. Throws only what the wait hook throws.
    virtual void await_others_leaving() = 0;

    // Empty if messages may lie in the memory of a device of this vendor ("cuda"), else why not. The
    // same on all ranks; collective.
    virtual std::string why_not_from_devices(const std::string& kind);

    // The memory of other ranks that this one can write into; see exposed_memory(). Collective.
    virtual std::shared_ptr<ExposedMemory> expose_memory();

    // Who carries messages between hosts, where ranks of one host share memory; null: this one does.
    virtual std::shared_ptr<Communicator> beneath() const { return nullptr; }

    // The outermost communicator and all that were made from it are given up, by all ranks at once: nothing
    // may follow. Of use where MPI goes on without jali, as it holds a limited number. Collective.
    virtual void free() {}

    // What is made once for this group and lives as long as it does, by name. End them before leave().
    std::map<std::string, std::shared_ptr<GroupResource>> resources;
    void end_resources() noexcept;

  protected:
    // For those that carry messages. Throw std::invalid_argument for what is no rank, or no tag.
    void check_rank(int rank) const;
    void check_message(int peer, int tag) const;
    // A message of `bytes` bytes was expected, or of at most so many. Throws TransportError.
    void check_size(std::size_t bytes, std::size_t came, bool may_be_shorter, int from, int tag) const;
};

// Throws TransportError unless rank `from` gave `wanted` bytes.
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

// Empty, or what the first rank says that says anything; collective.
std::string first_reported(Communicator& communicator, const std::string& mine, std::string_view what);

std::shared_ptr<Communicator> make_self_communicator();

// `ranks` virtual ranks of this process, each to be used by a thread of its own.
std::vector<std::shared_ptr<Communicator>> make_thread_communicators(int ranks);

// Over a duplicate of an MPI communicator, given as the integer value of its handle (mpi4py: comm.handle);
// collective over it. `library` is the path of a loaded object through which the MPI library can be reached
// (mpi4py's extension module), or empty.
std::shared_ptr<Communicator> make_mpi_communicator(std::uintptr_t handle, const std::string& library);

// The ranks of `base`, with messages between processes of one host through memory that they share and all
// others through a duplicate of `base`; transport "shm". Collective. Where ranks share no memory (JALI_SHM=0,
// one rank per host, virtual ranks) it is a duplicate of `base`. JALI_SHM_COPY=cma or slots chooses how long
// messages are copied. Throws TransportError, on all ranks, if what was chosen is not possible.
std::shared_ptr<Communicator> make_host_communicator(Communicator& base);

// Called by waiting ranks a few times per second; may throw to end the wait (Python: pending signals).
void set_wait_hook(std::function<void()> hook);

} // namespace jali
