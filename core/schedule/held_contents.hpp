// What memory holds while moments come one after the other, in any order that is possible.
#pragma once

#include "schedule/moments.hpp"
#include "schedule/symbolic.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace jali {

class HeldContents {
  public:
    // Moments have one number over all ranks; `name` is that of a number.
    HeldContents(std::span<const RankMoments> ranks, std::function<std::string(int)> name)
        : ranks_(ranks), name_(std::move(name)), values_(ranks.size()) {}

    // The next moment, of rank number `rank`; `arrived`: what a transfer brings. Throws ScheduleError where
    // something else is held than it expects.
    void pass(int number, int rank, const Moment& moment, const Move* arrived);

  private:
    struct Original { // what a symbol without an operation stands for
        int rank = 0; // whose list
        std::int32_t list = -1;
        std::uint64_t label = 0;
        std::int64_t site_bytes = 1;
        int since = -1; // the first moment that held it, and
        int which = 0;  // as which of what it held
    };
    symbolic::Content original(int rank, std::int32_t list, std::uint64_t label, std::int64_t site_bytes,
                               int since, int which);
    const symbolic::Content& value(int rank, std::int32_t value);
    int operation(int rank, std::int32_t how);

    void clear(const Stretch& where);
    symbolic::Source moved(const Move& move);
    symbolic::Source combined(int number, int rank, const Combination& combination);
    void expect(int number, int rank, const Holding& expected);
    void expect(int number, int rank, const ExpectedValue& expected);
    // f(begin, end, content) of every stretch of equal contents; fails where nothing is.
    template <class F>
    void each(int number, const Stretch& where, F f);
    [[noreturn]] void fail(int number, const Stretch& where, const std::string& what) const;
    std::string say(const symbolic::Content& content, std::uint64_t position) const;

    std::span<const RankMoments> ranks_;
    std::function<std::string(int)> name_;
    symbolic::Symbols symbols_;
    std::vector<Original> originals_;
    std::map<std::tuple<int, std::int32_t, std::uint64_t, std::int64_t>, int> numbers_; // of originals
    std::map<std::uint64_t, symbolic::Contents> contents_;                              // by space
    std::vector<std::vector<symbolic::Content>> values_;                                // [rank][value]
    std::vector<symbolic::Source> sources_;
};

} // namespace jali
