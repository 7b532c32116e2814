// The fluid model of transfers that share links.
//
// Every active transfer crosses some links, which give them max-min fair shares of their capacity. An ordered
// link serves the most urgent class first; capacity that this class cannot use, because its transfers are
// limited elsewhere, serves the next class. A link offers each of its transfers a rate; a transfer flows at
// its smallest offer. A change is propagated from link to link as long as offers change by more than a small
// fraction, so that its cost does not depend on the size of the machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace jali {

class Shares {
  public:
    struct Link {
        double capacity = 0; // bytes/s
        std::size_t crowd = static_cast<std::size_t>(-1);
        double crowded = 1;   // share of the capacity that remains with more than `crowd` transfers
        bool ordered = false; // the most urgent first
    };
    explicit Shares(std::vector<Link> links);

    double capacity(int link) const { return links_[link].capacity; }

    // A link as a transfer uses it. `times`: one transfer may represent several equivalent ones; so many of
    // them cross this link.
    struct Crossing {
        int link = 0, times = 1;
    };
    // `name` is the caller's. At most 12 links, none unlimited; one may be crossed in two places.
    void add(int name, double bytes, std::uint64_t priority, std::span<const Crossing> crossings, double now);

    void settle(double now); // shares after transfers began and ended
    double next_end() const; // infinity: none under way
    void take_ended(double until, double now, std::vector<int>& names);
    double busy(int link) const { return busy_[link]; }

  private:
    struct Flow {
        int name = -1, count = 0;
        std::uint64_t priority = 0;
        Crossing at[12];
        double offer[12];
        double left = 0, rate = 0, since = 0, end = 0;
        int heap = -1;
        bool touched = false;
    };
    void remove(int flow, double now);
    void mark(int link);
    void share(int link);
    void put(int position, int flow);
    void sift(int position);

    std::vector<Link> links_;
    std::vector<double> busy_, busy_since_;
    std::vector<std::vector<std::pair<std::int32_t, std::int8_t>>>
        on_link_; // (flow, which of its crossings), by priority
    std::vector<Flow> flows_;
    std::vector<int> free_, heap_, dirty_, touched_;
    std::vector<char> is_dirty_;
    std::vector<std::pair<double, int>> wanted_;
};

} // namespace jali
