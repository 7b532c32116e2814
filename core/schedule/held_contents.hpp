// The contents of memory during events, which are processed in any possible order.
#pragma once

#include "schedule/ordered_events.hpp"
#include "schedule/symbolic.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace jali {

class HeldContents {
  public:
    // The contents of a message.
    struct Transfer {
        Stretch from, to;
        symbolic::Source sent_values;
    };
    HeldContents(std::span<const RankEvents> ranks, const ProofWords& words)
        : ranks_(ranks), words_(words), values_(ranks.size()) {}

    // The next event of rank number `rank`; its sent or received contents. Throws ScheduleError if contents
    // differ from those it expects.
    void pass(int rank, int event, Transfer* sends, Transfer* receives);

  private:
    struct Original { // the meaning of a symbol without an operation
        int rank = 0; // whose list
        std::int32_t list = -1;
        std::uint64_t label = 0;
        std::int64_t site_bytes = 1;
        int of_rank = 0, since = -1; // the first event that held it, and
        int which = 0;               // as which of what it held
    };
    symbolic::Content original(int rank, std::int32_t list, std::uint64_t label, std::int64_t site_bytes,
                               int since, int which);
    const symbolic::Content& value(int rank, std::int32_t value);
    int operation(int rank, std::int32_t how);

    void clear(const Stretch& where);
    void read(const Stretch& from, symbolic::Source& source);
    void combine(const Combination& combination, symbolic::Source& source);
    void expect(const Holding& expected);
    void expect(const ExpectedValue& expected);
    // f(begin, end, content) of every stretch of equal contents.
    template <class F>
    void each(const Stretch& where, F f);
    [[noreturn]] void fail(Fault kind, const std::string& what) const;
    [[noreturn]] void fail_unwritten(const Stretch& where, std::uint64_t hole) const;
    std::string say(const symbolic::Content& content, std::uint64_t position) const;
    std::string say(const symbolic::Term& term, std::int64_t position) const;
    std::string say_difference(const symbolic::Content& expected, const symbolic::Content& found,
                               std::uint64_t position) const;

    std::span<const RankEvents> ranks_;
    const ProofWords& words_;
    int rank_ = 0, ordered_event_ = 0; // the one that passes
    symbolic::Symbols symbols_;
    std::vector<Original> originals_;
    std::map<std::tuple<int, std::int32_t, std::uint64_t, std::int64_t>, int> numbers_; // of originals
    std::unordered_map<std::uint64_t, symbolic::Contents> contents_;                    // by space
    std::vector<std::vector<symbolic::Content>> values_;                                // [rank][value]
    std::vector<symbolic::Source> sources_, filled_;
};

} // namespace jali
