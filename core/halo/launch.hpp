// A kernel bound to fields, a domain and its halos: everything that one call of a site function does.
//
// Built once, run often. run() copies the words that the owner prepared, fills in addresses that may move,
// finds which ghost slabs are stale, and either runs the kernel over everything or executes the exchange
// schedule in which the bulk runs while halos travel. Contributions to sums are deposited chunk by chunk and
// reduced over threads and ranks. All ranks must run the same launches in the same order. The kernel ABI is
// described in ARCHITECTURE.md, section 3.
#pragma once

#include "halo/exchange.hpp"
#include "halo/storage.hpp"
#include "sum/binned.hpp"
#include "transport/communicator.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace jali {

struct LaunchRead {
    std::shared_ptr<FieldStorage> field;
    Offset offset;
    int parities; // of the sites read: 1 even, 2 odd, 3 both
};

// Where a launch runs: a list of blocks, or, if the list is empty, the blocks begin..end-1.
struct LaunchDomain {
    std::int64_t begin = 0, end = 0;
    std::vector<std::int32_t> blocks;
    std::vector<std::uint32_t> masks; // lane bits per position; empty: all lanes
    std::int64_t size() const {
        return blocks.empty() ? end - begin : static_cast<std::int64_t>(blocks.size());
    }
};

struct LaunchSums {
    int count = 0;                   // doubles per site
    std::vector<std::int32_t> slice; // [block][lane]: its slice, or empty for one sum over all sites
    int nslices = 1;
    bool fast = false; // plain double sums: the last bits depend on threads and partition
};

struct LaunchDefinition {
    std::shared_ptr<Layout> layout;
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<ThreadPool> pool;
    KernelFunction kernel = nullptr;
    const std::uint64_t* words = nullptr; // read at every run; the owner keeps them and may change scalars
    int nwords = 0;
    std::vector<std::pair<int, std::shared_ptr<FieldStorage>>> patches; // word that holds the field's address
    std::vector<LaunchRead> reads;
    std::vector<std::pair<std::shared_ptr<FieldStorage>, int>> writes; // field, parities
    LaunchDomain domain;
    LaunchSums sums;
    int ncounters = 0;
    const HaloPolicy* policy = nullptr; // null: halo_policy("")
};

class Launch {
  public:
    explicit Launch(
        LaunchDefinition definition); // throws LayoutError for anything that does not fit together
    Launch(const Launch&) = delete;

    // sums: [nslices][count], or null if there are none. Throws RankFailure.
    void run(double* sums);

    const LaunchDefinition& definition() const { return definition_; }
    const std::vector<std::int64_t>& counters() const { return counters_; } // of the last run, on this rank
    // The schedule of a run in which all ghosts that it reads are stale; null if it reads none.
    const Schedule* full_schedule();
    std::string describe(); // as text

  private:
    // One thread's copy of the words and what it accumulates, on cache lines of its own.
    struct alignas(64) Worker {
        std::vector<std::uint64_t> words;
        std::vector<std::int64_t> counters;
        Memory contributions;            // doubles [component][chunk][lane], aligned for vectors
        std::vector<BinnedSum> binned;   // [slice][component]
        std::vector<double> plain;       // the same, for fast sums
        std::vector<double> sorted;      // one component of a chunk, slice by slice
        std::vector<std::int32_t> place; // where each value of the chunk goes in it
        std::vector<std::int32_t> ends;  // [slice]: end of its values
        bool used = false;               // in this run
    };
    // An exchange for one set of stale parts, and the positions that may run before it ends.
    struct Plan {
        std::unique_ptr<HaloExchange> exchange;
        LaunchDomain parts[2]; // bulk, boundary; the second is empty when not overlapped
    };

    void add_requests();
    void prepare_sums();
    void run_domain(const LaunchDomain& domain, const ThreadPool::Progress* progress);
    void run_piece(int thread, std::int64_t begin, std::int64_t end);
    void deposit(Worker& worker, std::int64_t begin, std::int64_t end);
    void reduce(double* sums);
    bool find_stale();
    Plan& plan_for(const std::vector<char>& stale);

    LaunchDefinition definition_;
    std::vector<Worker> workers_;
    std::vector<HaloRequest> requests_;
    std::vector<FieldStorage*> touched_; // fields whose ghosts must have room
    std::vector<char> stale_;            // [request][parity]
    std::map<std::vector<char>, Plan> plans_;
    std::vector<std::int64_t> counters_, reduced_;
    ThreadPool::Body body_;
    const LaunchDomain* running_ = nullptr;
    std::int64_t chunk_ = 0; // positions per kernel call when there are sums
};

} // namespace jali
