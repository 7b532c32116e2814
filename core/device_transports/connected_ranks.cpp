#include "device_transports/connected_ranks.hpp"
#include "device_transports/message_transport.hpp"
#include "settings/counted.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

namespace jali {

namespace {

struct Heading { // of the report of one rank
    std::int64_t rank;
    std::uint64_t bytes;
};

std::vector<std::byte> packed(const ConnectedRanks::Reports& known) {
    std::vector<std::byte> all;
    for (const auto& [rank, reported] : known) {
        const Heading heading{rank, reported.size()};
        const auto words = std::as_bytes(std::span(&heading, 1));
        all.insert(all.end(), words.begin(), words.end());
        all.insert(all.end(), reported.begin(), reported.end());
    }
    return all;
}

void unpack(std::span<const std::byte> all, ConnectedRanks::Reports& into) {
    while (!all.empty()) {
        Heading heading;
        std::memcpy(&heading, all.data(), sizeof heading);
        const auto reported = all.subspan(sizeof heading, heading.bytes);
        into[static_cast<int>(heading.rank)].assign(reported.begin(), reported.end());
        all = all.subspan(sizeof heading + heading.bytes);
    }
}

} // namespace

std::string StartedEnd::of(int rank) const {
    return "a message from rank " + std::to_string(sends ? rank : peer) + " to rank " +
           std::to_string(sends ? peer : rank) + " with tag " + std::to_string(tag);
}

ConnectedRanks::ConnectedRanks(Communicator& communicator, std::span<const StartedEnd> mine)
    : communicator_(communicator) {
    const int rank = communicator_.rank();
    std::set<int> peers;
    for (const StartedEnd& end : mine)
        if (end.peer != rank) peers.insert(end.peer);
    peers_.assign(peers.begin(), peers.end());
    const auto bytes = std::as_bytes(mine);
    Reports known{{rank, {bytes.begin(), bytes.end()}}};
    ends_[rank].assign(mine.begin(), mine.end());
    while (rounds_ < rounds_needed()) {
        ++rounds_;
        pass_on(known);
        for (const auto& [other, reported] : known) {
            std::vector<StartedEnd>& ends = ends_[other];
            ends.resize(reported.size() / sizeof(StartedEnd));
            if (!ends.empty()) std::memcpy(ends.data(), reported.data(), reported.size());
        }
    }
    check();
}

void ConnectedRanks::check() const {
    for (const auto& [here, ends] : ends_)
        for (const StartedEnd& end : ends) {
            if (end.peer == here) continue; // either end of a message to oneself starts it
            const auto times = [&end](const std::vector<StartedEnd>& among, int peer, bool sends) {
                return std::ranges::count_if(among, [&](const StartedEnd& e) {
                    return e.peer == peer && e.tag == end.tag && (e.sends != 0) == sends;
                });
            };
            const auto same = times(ends, end.peer, end.sends != 0);
            const auto there = times(ends_.at(end.peer), here, end.sends == 0);
            if (same != there)
                throw MessageError("rank " + std::to_string(here) + " starts " + end.of(here) + " " +
                                   counted(same, "time") + ", rank " + std::to_string(end.peer) +
                                   " does so " + counted(there, "time") +
                                   ": ranks start the same messages with each other at once, if these are "
                                   "looked at");
        }
}

ConnectedRanks::Reports ConnectedRanks::gather(std::vector<std::byte> mine) const {
    Reports reported;
    reported.emplace(communicator_.rank(), std::move(mine));
    for (int round = 0; round < rounds_; ++round) pass_on(reported);
    return reported;
}

void ConnectedRanks::pass_on(Reports& known) const {
    for (const auto& theirs : exchange(packed(known))) unpack(theirs, known);
}

std::vector<std::vector<std::byte>> ConnectedRanks::exchange(std::span<const std::byte> mine) const {
    const std::uint64_t size = mine.size();
    std::vector<std::uint64_t> sizes(peers_.size());
    std::vector<std::vector<std::byte>> reported;
    std::vector<std::unique_ptr<Request>> requests;
    const auto start = [&](int peer, const void* data, std::size_t sent, void* into,
                           std::size_t received_bytes) {
        requests.push_back(
            communicator_.receive(into, received_bytes, peer, 1)); // tag 0: announcements of ends
        requests.push_back(communicator_.send(data, sent, peer, 1));
    };
    const auto wait = [&] {
        communicator_.wait(requests, "the starts of messages of other ranks, which are looked at together");
        requests.clear();
    };
    for (std::size_t k = 0; k < peers_.size(); ++k)
        start(peers_[k], &size, sizeof size, &sizes[k], sizeof size);
    wait();
    for (std::size_t k = 0; k < peers_.size(); ++k) {
        reported.emplace_back(sizes[k]);
        start(peers_[k], mine.data(), mine.size(), reported.back().data(), reported.back().size());
    }
    wait();
    return reported;
}

// The number of rounds until every rank has all reports, as far as known by now.
int ConnectedRanks::rounds_needed() const {
    int farthest = 0;
    for (const auto& [start, own] : ends_) {
        std::map<int, int> distance{{start, 0}};
        std::vector<int> at{start};
        for (std::size_t k = 0; k < at.size(); ++k) {
            const auto known = ends_.find(at[k]);
            if (known == ends_.end()) return rounds_ + 1;
            for (const StartedEnd& end : known->second)
                if (distance.emplace(end.peer, distance.at(at[k]) + 1).second) at.push_back(end.peer);
        }
        farthest = std::max(farthest, distance.at(at.back())); // those found last are farthest
    }
    return farthest;
}

} // namespace jali
