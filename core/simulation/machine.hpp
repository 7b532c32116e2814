// The simulator's model of a machine: equal nodes of nested parts, wires between the parts, NICs between
// nodes.
//
// Rank r sits on node r / ranks_per_node. A message between two nodes leaves by the NIC to which its sender
// is bound and enters by its receiver's; inside a node it uses the wires of the outermost level at which the
// two ranks part. A wire has a bandwidth for each direction and may have one for both together (`duplex`). A
// library adds its costs: latency, a gap per message, and a bandwidth limit per rank. Where a rank's memory
// has a bandwidth, its kernels and messages share it. Units here are seconds and bytes; infinity means "no
// limit". Python code reads such a machine from a file.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace jali {

constexpr double unlimited = std::numeric_limits<double>::infinity();

struct Nic {
    double rated = unlimited;     // bytes/s in one direction, as sold: for bounds
    double bandwidth = unlimited; // bytes/s in one direction, as measured
    double duplex = unlimited;    // in and out together
    // The share of it that remains while more than `crowd` messages are active in the same direction.
    int crowd = std::numeric_limits<int>::max();
    double crowded = 1;
};

// A level inside a node: each unit of the level above has `parts` units.
struct NodeLevel {
    std::string name;
    int parts = 1;
    bool pairs = false; // a wire between each two units, or one port per unit into a switch
    double bandwidth = unlimited;
    double duplex = unlimited;
    double latency = 0; // seconds
};

// The properties of a library at a level (level 0: between nodes; 1 + i: inside[i] of the machine).
struct LibraryLevel {
    bool usable = false;
    double latency = 0;           // seconds until the first byte leaves; overlaps earlier messages
    double gap = 0;               // seconds for which a message holds its links beyond its bytes
    double bandwidth = unlimited; // bytes/s that one rank sends, or receives
    double duplex = unlimited;    // bytes/s that one rank sends and receives together
    double efficiency = 1;        // bytes of payload per byte on the wires
};

struct Library {
    std::string name;
    std::vector<LibraryLevel> at;
    double engine = unlimited; // bytes/s that one rank sends with it, at all levels together
};

constexpr int most_crossed = 12; // links of a message

struct Path {
    int level = 0; // physical: 0 between nodes
    double latency = 0, gap = 0, efficiency = 1;
    int count = 0;
    int links[most_crossed];
};

// Throws PlanError from `finish` and `path` for inconsistent data.
class Machine {
  public:
    std::string name;
    int nodes = 1;
    std::vector<NodeLevel> inside; // outermost first; may be empty: one rank per node
    std::vector<Nic> nics;         // of a node
    std::vector<int> binding;      // NIC of each rank of a node
    double network_latency = 0;
    std::vector<Library> libraries;
    double copy = unlimited;      // bytes read and written per second by a local copy
    double reduction = unlimited; // bytes read and written per second by a reduction
    double launch = 0;            // seconds to start a copy or a reduction
    double memory = unlimited;    // bytes/s of a rank's memory, shared by its kernels and messages

    // Numbers the links; to be called after the last change.
    void finish();

    int ranks_per_node() const { return ranks_per_node_; }
    int ranks() const { return nodes * ranks_per_node_; }
    int levels() const { return 1 + static_cast<int>(inside.size()); }

    // The outermost level at which the ranks part; they must differ.
    int level_between(int from, int to) const;

    // The library's number: by name; "" is the first that is usable at the level.
    int library(const std::string& name, int level) const;
    Path path(int from, int to, int library) const;
    // Of the card that the rank is bound to; direction: out, in, both.
    int nic_link(int rank, int direction) const {
        return nic_[direction] + rank / ranks_per_node_ * static_cast<int>(nics.size()) +
               binding[rank % ranks_per_node_];
    }

    // Of the rank's memory; -1 where that is unlimited.
    int memory_link(int rank) const { return memory_ < 0 ? -1 : memory_ + rank; }

    int links() const { return links_; }
    double capacity(int link) const;   // bytes/s
    const Nic* nic_of(int link) const; // the link's NIC; nullptr: none
    bool ordered(int link) const;      // links of one direction queue: the most urgent goes first
    std::string link_name(int link) const;

  private:
    struct Block { // links of one kind: `width` per unit
        enum Kind { nic, port, wire, rank, engine, memory } kind = nic;
        int level = 0, library = 0, direction = 0, begin = 0, end = 0;
        double capacity = unlimited;
    };
    int unit(int rank, int level) const { return rank / ranks_below_[level]; }
    int block_of(int link) const;
    int add_block(Block block, int count);

    int ranks_per_node_ = 1, links_ = 0;
    std::vector<int> ranks_below_; // per level: ranks in one of its units (a node, a device, ...)
    std::vector<Block> blocks_;
    int nic_[3] = {-1, -1, -1};                   // first link of: out, in, both
    std::vector<int> inside_[3];                  // per level inside
    std::vector<std::vector<int>> of_library_[3]; // [library][level]
    std::vector<int> engines_;                    // [library]
    int memory_ = -1;                             // first link of ranks' memories
};

} // namespace jali
