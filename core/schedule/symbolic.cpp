#include "schedule/symbolic.hpp"

#include <numeric>
#include <tuple>

namespace jali::symbolic {

namespace {

std::size_t mixed(std::size_t hash, std::int64_t value) {
    hash ^= static_cast<std::size_t>(value) + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
    return hash * 0xff51afd7ed558ccdull;
}

} // namespace

std::size_t Symbols::HashKey::operator()(const std::vector<std::int64_t>& key) const {
    return std::accumulate(key.begin(), key.end(), std::size_t{17}, mixed);
}

std::size_t Symbols::HashSymbol::operator()(const Symbol& symbol) const {
    std::size_t hash = mixed(mixed(23, symbol.how), symbol.divide_by);
    for (const Term& term : symbol.terms) {
        hash = mixed(hash, static_cast<std::int64_t>(term.rank) << 32 ^ term.buffer);
        hash = mixed(hash, term.offset * 64 + term.times);
    }
    return hash;
}

std::size_t read(const Contents& from, std::size_t begin, std::size_t bytes, Source& source) {
    source.clear();
    std::size_t covered = begin;
    const std::size_t end = begin + bytes;
    const auto& all = from.all();
    for (std::size_t k = from.find(begin); k < all.size() && all[k].begin < end; ++k) {
        const std::size_t first = std::max(all[k].begin, begin), last = std::min(all[k].end, end);
        if (first == covered) covered = last;
        source.push_back({first - begin,
                          last - begin,
                          {all[k].what.symbol, all[k].what.shift + static_cast<std::int64_t>(begin)}});
    }
    return covered - begin;
}

void write(Contents& to, std::size_t begin, std::size_t bytes, const Source& source) {
    thread_local Source shifted; // kept for its memory
    shifted.clear();
    for (const auto& [first, last, what] : source)
        shifted.push_back(
            {first + begin, last + begin, {what.symbol, what.shift - static_cast<std::int64_t>(begin)}});
    to.replace(begin, begin + bytes, shifted);
}

int Symbols::number(Symbol symbol) {
    const auto found = numbers_.find(symbol);
    if (found != numbers_.end()) return found->second;
    const int fresh = static_cast<int>(symbols_.size());
    numbers_.emplace(symbol, fresh);
    symbols_.push_back(std::move(symbol));
    return fresh;
}

Content Symbols::original(int rank, int buffer) {
    return {number({-1, 1, {Term{rank, buffer, 0, 1}}}), 0};
}

int Symbols::operation(const Reduction& reduction, bool reproducible) {
    const auto operation = reduction.operation == Operation::avg ? Operation::sum : reduction.operation;
    const Known known{operation, reduction.user.get(),
                      reproducible && (reduction.type >= DataType::fp16 || reduction.user),
                      reduction.type == DataType::fp16 || reduction.type == DataType::bf16};
    const auto found = std::find(operations_.begin(), operations_.end(), known);
    const auto number = static_cast<int>(found - operations_.begin());
    if (found == operations_.end()) operations_.push_back(known);
    return number;
}

std::string Symbols::name_of_operation(int how) const {
    return operations_[how].user ? operations_[how].user->name()
                                 : std::string(name_of(operations_[how].operation));
}

Content Symbols::combine(int how, int divide_by, std::span<const Content> sources) {
    if (sources.size() == 1 && divide_by == 1) return sources[0];
    key_.clear();
    key_.push_back(static_cast<std::int64_t>(how) << 32 | divide_by);
    for (const Content& source : sources) {
        key_.push_back(source.symbol);
        key_.push_back(source.shift - sources[0].shift);
    }
    auto found = known_.find(key_);
    if (found == known_.end()) {
        Content result = combine_anew(how, divide_by, sources);
        result.shift -= sources[0].shift;
        found = known_.emplace(key_, result).first;
    }
    return {found->second.symbol, found->second.shift + sources[0].shift};
}

Content Symbols::combine_anew(int how, int divide_by, std::span<const Content> sources) {
    const bool ordered = operations_[how].ordered, rounds = operations_[how].rounds;
    Symbol result{how, divide_by, {}};
    auto& terms = result.terms;
    for (std::size_t k = 0; k < sources.size(); ++k) {
        const auto& [symbol, shift] = sources[k];
        const Symbol& source = symbols_[symbol];
        // Associativity: partial results of the same operation dissolve. Where bits depend on the grouping,
        // only a prefix does, and not if it was rounded on the way.
        const bool dissolves =
            source.how == how && source.divide_by == 1 && (!ordered || (k == 0 && !rounds));
        if (source.how == -1 || dissolves) {
            for (const Term& term : source.terms)
                terms.push_back({term.rank, term.buffer, term.offset + shift, term.times});
        } else {
            terms.push_back({-1, symbol, shift, 1});
        }
    }
    if (!ordered) {
        std::sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) {
            return std::tie(a.rank, a.buffer, a.offset) < std::tie(b.rank, b.buffer, b.offset);
        });
        std::size_t kept = 0;
        for (std::size_t k = 1; k < terms.size(); ++k) {
            if (terms[k].rank == terms[kept].rank && terms[k].buffer == terms[kept].buffer &&
                terms[k].offset == terms[kept].offset) {
                terms[kept].times += terms[k].times;
            } else {
                terms[++kept] = terms[k];
            }
        }
        terms.resize(kept + 1);
    }
    const std::int64_t first = terms[0].offset;
    for (Term& term : terms) term.offset -= first;
    return {number(std::move(result)), first};
}

void Symbols::combine(int how, int divide_by, std::span<const Source> sources, std::size_t bytes,
                      Source& result) {
    result.clear();
    at_.assign(sources.size(), 0);
    for (std::size_t position = 0; position < bytes;) {
        std::size_t end = bytes;
        operands_.clear();
        for (std::size_t k = 0; k < sources.size(); ++k) {
            while (sources[k][at_[k]].end <= position) ++at_[k];
            end = std::min(end, sources[k][at_[k]].end);
            operands_.push_back(sources[k][at_[k]].what);
        }
        result.push_back({position, end, combine(how, divide_by, operands_)});
        position = end;
    }
}

} // namespace jali::symbolic
