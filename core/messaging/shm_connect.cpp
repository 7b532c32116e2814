// Making a link: ranks determine by trial whose memory each of them can open.
//
// Ranks of one boot of one machine exchange the names of segments; a rank that can open one and finds the
// nonce in it shares memory with its owner, whatever namespaces or containers they run in. Two ranks are
// joined if each can open the other's segment.
#include "messaging/shm_link.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <bitset>
#include <cstdio>
#include <cstring>
#include <fstream>

#include <sched.h>
#include <unistd.h>

namespace jali::shm {

namespace {

constexpr std::size_t host_budget = std::size_t{32} << 20; // for the arenas of all rings of a host
constexpr std::size_t smallest_arena = 32 << 10, largest_arena = 256 << 10;

enum class Copying { best, fetch, pieces };

struct Hello {
    char boot[40];
    bool willing;
    std::bitset<1024> cores; // that the rank may run on
};

struct SegmentHandle {
    char segment[96];
    std::uint64_t nonce;
    FetchProbe probe;
    std::int32_t has_segment;
};

Copying chosen_copying() {
    const std::string& choice = settings().shm_copy;
    return choice == "cma" ? Copying::fetch : choice == "slots" ? Copying::pieces : Copying::best;
}

enum class Sharing { no, if_possible, always };

Sharing chosen_sharing() {
    const std::string& choice = settings().shm;
    return choice == "1" ? Sharing::always : choice == "0" ? Sharing::no : Sharing::if_possible;
}

Hello hello_of_this_rank() {
    Hello hello{};
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    boot.copy(hello.boot, sizeof hello.boot - 1);
    hello.willing = chosen_sharing() != Sharing::no && !boot.empty();
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0)
        for (std::size_t core = 0; core < std::min<std::size_t>(CPU_SETSIZE, 1024); ++core)
            hello.cores[core] = CPU_ISSET(core, &cores);
    return hello;
}

} // namespace

Link::Link(Communicator& base) : local_ranks_(base.size(), -1), process_(getpid()) {
    const Copying copying = chosen_copying();
    const auto hellos = gather_values(base, hello_of_this_rank(), "sharing memory: hosts");
    const Hello& mine = hellos[base.rank()];
    std::vector<int> candidates{base.rank()};
    if (mine.willing) {
        candidates.clear();
        for (int rank = 0; rank < base.size(); ++rank)
            if (hellos[rank].willing && std::strcmp(hellos[rank].boot, mine.boot) == 0)
                candidates.push_back(rank);
    }
    const std::size_t ranks = candidates.size();
    arena_bytes_ = std::clamp(std::size_t{1} << (63 - __builtin_clzll(host_budget / (ranks * ranks) | 1)),
                              smallest_arena, largest_arena);
    const std::size_t ring_bytes = Ring::size(arena_bytes_);
    const std::size_t segment_bytes = sizeof(Bell) + (ranks - 1) * ring_bytes;

    SegmentHandle handle{};
    std::string refused; // why this rank cannot do what was requested
    if (ranks > 1) {
        try {
            mine_ = Segment::create(segment_bytes);
            mine_.name().copy(handle.segment, sizeof handle.segment - 1);
            handle.nonce = mine_.nonce();
            handle.probe = make_probe(mine_.nonce());
            handle.has_segment = 1;
        } catch (const TransportError& error) {
            const std::string who = "rank " + std::to_string(base.rank());
            if (chosen_sharing() == Sharing::always)
                refused = "JALI_SHM=1, but " + who + " shares no memory: " + error.what();
            else
                std::fprintf(stderr,
                             "jali: %s shares no memory with the other ranks of its host, its messages go "
                             "through transport %s: %s\n",
                             who.c_str(), base.transport(), error.what());
        }
    }

    // Peers are numbered as candidates; candidates that share no memory keep an unused number.
    const auto handles = gather_values(base, handle, "sharing memory: segments");
    peers_.resize(ranks);
    std::vector<std::byte> seen(base.size());
    for (std::size_t k = 0; k < ranks; ++k) {
        const SegmentHandle& theirs = handles[candidates[k]];
        if (candidates[k] == base.rank() || !theirs.has_segment || !mine_) continue;
        PeerState& peer = peers_[k];
        peer.segment = Segment::open(theirs.segment, theirs.nonce, segment_bytes);
        seen[candidates[k]] = std::byte{static_cast<bool>(peer.segment)};
        peer.process = static_cast<pid_t>(theirs.probe.process);
        peer.by_kernel = peer.segment && copying != Copying::pieces && can_fetch(theirs.probe);
        if (peer.segment && copying == Copying::fetch && !peer.by_kernel)
            refused = "JALI_SHM_COPY=cma, but the kernel does not let rank " + std::to_string(base.rank()) +
                      " read the memory of rank " + std::to_string(candidates[k]) +
                      "; use JALI_SHM_COPY=slots, or leave the choice to jali";
    }
    const auto all_seen = base.all_gather(seen, "sharing memory: mapped");
    mine_.remove_name();
    for (int rank = 0; rank < base.size(); ++rank)
        check_bytes(all_seen[rank], seen.size(), rank, "sharing memory");
    const auto refusals = base.all_gather(std::as_bytes(std::span(refused)), "sharing memory: refused");
    for (const auto& text : refusals)
        if (!text.empty())
            throw TransportError(std::string(reinterpret_cast<const char*>(text.data()), text.size()));

    if (mine_) bell_ = reinterpret_cast<Bell*>(mine_.data());
    const auto rings = [&](std::byte* segment, std::size_t owner, std::size_t sender) {
        return reinterpret_cast<Ring*>(segment + sizeof(Bell) +
                                       (sender < owner ? sender : sender - 1) * ring_bytes);
    };
    own_ =
        static_cast<int>(std::find(candidates.begin(), candidates.end(), base.rank()) - candidates.begin());
    std::bitset<1024> cores = mine.cores;
    for (std::size_t k = 0; k < ranks; ++k) {
        const int rank = candidates[k];
        const auto number = static_cast<int>(k);
        if (number == own_) {
            local_ranks_[rank] = number;
            continue;
        }
        if (seen[rank] == std::byte{0} || all_seen[rank][base.rank()] == std::byte{0}) continue;
        local_ranks_[rank] = number;
        remote_.push_back(number);
        cores |= hellos[rank].cores;
        PeerState& peer = peers_[k];
        peer.bell = reinterpret_cast<Bell*>(peer.segment.data());
        peer.in = RingReader(rings(mine_.data(), own_, k), arena_bytes_);
        peer.out = RingWriter(rings(peer.segment.data(), k, own_), arena_bytes_);
    }
    crowded_ = remote_.size() + 1 > cores.count();
}

} // namespace jali::shm
