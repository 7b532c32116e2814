// What a byte is, without its value: symbols of data, and maps from ranges of bytes to them.
//
// A symbol is a piece of a rank's buffer, or a combination of other symbols by an operation. Symbols are
// interned: equal contents have equal numbers. Positions are affine: `Content{symbol, shift}` over a range
// says that position x holds byte x + shift of the symbol's first term (the others stand at fixed distances
// from it), so that data that is copied elsewhere keeps its symbol, and all chunks of a pipeline share few
// symbols.
#pragma once

#include "schedule/element.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace jali::symbolic {

struct Content {
    int symbol = 0; // 0: undefined
    std::int64_t shift = 0;
    bool operator==(const Content&) const = default;
};

// `times` copies of byte (first + offset) of a buffer of a rank, or, if rank is -1, of symbol `buffer`.
struct Term {
    int rank = 0, buffer = 0;
    std::int64_t offset = 0;
    int times = 1;
    bool operator==(const Term&) const = default;
};

// terms[0] op terms[1] op ..., divided by `divide_by`. Without an operation (how == -1): the one term.
// Commutative operations have their terms sorted, and equal ones counted.
struct Symbol {
    int how = -1;
    int divide_by = 1;
    std::vector<Term> terms;
    bool operator==(const Symbol&) const = default;
};

template <class T>
struct Range {
    std::size_t begin = 0, end = 0;
    T what{};
};

// Disjoint ranges in ascending order. Where there is none, there is nothing.
template <class T>
class Ranges {
  public:
    const std::vector<Range<T>>& all() const { return ranges_; }

    // The first range that ends after `position`.
    std::size_t find(std::size_t position) const {
        return std::partition_point(ranges_.begin(), ranges_.end(),
                                    [&](const Range<T>& r) { return r.end <= position; }) -
               ranges_.begin();
    }

    // Replaces all that is in [begin, end) by `inside`, which has to lie in it.
    void replace(std::size_t begin, std::size_t end, std::span<const Range<T>> inside) {
        if (begin >= end) return;
        const std::size_t first = find(begin);
        std::size_t last = first;
        while (last < ranges_.size() && ranges_[last].begin < end) ++last;
        if (last == first + 1 && inside.size() == 1 && ranges_[first].begin == begin &&
            ranges_[first].end == end) {
            ranges_[first] = inside[0];
            return;
        }
        fresh_.clear();
        if (first < last && ranges_[first].begin < begin)
            fresh_.push_back({ranges_[first].begin, begin, ranges_[first].what});
        for (const auto& range : inside) {
            if (!fresh_.empty() && fresh_.back().end == range.begin && fresh_.back().what == range.what) {
                fresh_.back().end = range.end;
            } else {
                fresh_.push_back(range);
            }
        }
        if (first < last && ranges_[last - 1].end > end) {
            const auto& rest = ranges_[last - 1];
            if (!fresh_.empty() && fresh_.back().end == end && fresh_.back().what == rest.what) {
                fresh_.back().end = rest.end;
            } else {
                fresh_.push_back({end, rest.end, rest.what});
            }
        }
        // Neighbours with equal contents are merged, so that a buffer filled in order stays one range.
        std::size_t from = first;
        if (from > 0 && !fresh_.empty() && ranges_[from - 1].end == fresh_.front().begin &&
            ranges_[from - 1].what == fresh_.front().what) {
            fresh_.front().begin = ranges_[--from].begin;
        }
        std::size_t to = last;
        if (to < ranges_.size() && !fresh_.empty() && ranges_[to].begin == fresh_.back().end &&
            ranges_[to].what == fresh_.back().what) {
            fresh_.back().end = ranges_[to++].end;
        }
        const std::size_t common = std::min(to - from, fresh_.size());
        std::copy_n(fresh_.begin(), common, ranges_.begin() + from);
        if (fresh_.size() > common)
            ranges_.insert(ranges_.begin() + from + common, fresh_.begin() + common, fresh_.end());
        else
            ranges_.erase(ranges_.begin() + from + common, ranges_.begin() + to);
    }

  private:
    std::vector<Range<T>> ranges_, fresh_;
};

using Contents = Ranges<Content>;
using Source = std::vector<Range<Content>>; // of a region, positions relative to its beginning

// The contents of `bytes` bytes from `begin` on. Returns the position of the first undefined byte, or
// `bytes`.
std::size_t read(const Contents& from, std::size_t begin, std::size_t bytes, Source& source);
// Replaces them; undefined is what `source` has not.
void write(Contents& to, std::size_t begin, std::size_t bytes, const Source& source);

class Symbols {
  public:
    Symbols() { symbols_.emplace_back(); }

    Content original(int rank, int buffer);

    // The number of an operation; averages are sums (their division is apart). `reproducible`: combinations
    // of floating-point numbers, or by a user's operation, keep their order, and their grouping as far as it
    // affects bits.
    int operation(const Reduction& reduction, bool reproducible);

    // sources[0] op sources[1] op ..., divided by `divide_by`. None is undefined.
    Content combine(int how, int divide_by, std::span<const Content> sources);
    // The same of regions of so many bytes.
    void combine(int how, int divide_by, std::span<const Source> sources, std::size_t bytes, Source& result);

    const Symbol& operator[](int symbol) const { return symbols_[symbol]; }
    std::string name_of_operation(int how) const;

  private:
    struct HashKey {
        std::size_t operator()(const std::vector<std::int64_t>& key) const;
    };
    struct HashSymbol {
        std::size_t operator()(const Symbol& symbol) const;
    };
    Content combine_anew(int how, int divide_by, std::span<const Content> sources);
    int number(Symbol symbol);

    std::vector<Symbol> symbols_;
    std::unordered_map<Symbol, int, HashSymbol> numbers_;
    std::unordered_map<std::vector<std::int64_t>, Content, HashKey> known_;
    std::vector<std::int64_t> key_;
    std::vector<std::size_t> at_;
    std::vector<Content> operands_;
    struct Known {
        Operation operation;
        const UserOperation* user;
        bool ordered, rounds; // rounds: every combination ends with a 16-bit number
        bool operator==(const Known&) const = default;
    };
    std::vector<Known> operations_;
};

} // namespace jali::symbolic
