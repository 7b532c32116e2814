#include "collective/symbolic.hpp"

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

Symbols::Symbols(int ranks, int buffers, DataType type, bool reproducible)
    : buffers_(buffers), reproducible_(reproducible), floating_(type >= DataType::fp16),
      rounds_(type == DataType::fp16 || type == DataType::bf16) {
    symbols_.reserve(1 + static_cast<std::size_t>(ranks) * buffers);
    symbols_.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
        for (int buffer = 0; buffer < buffers; ++buffer)
            symbols_.push_back({-1, 1, {Term{rank, buffer, 0, 1}}});
    }
}

int Symbols::operation(const Reduction& reduction) {
    const auto operation = reduction.operation == Operation::avg ? Operation::sum : reduction.operation;
    for (std::size_t k = 0; k < operations_.size(); ++k) {
        if (operations_[k].operation == operation && operations_[k].user == reduction.user.get())
            return static_cast<int>(k);
    }
    operations_.push_back({operation, reduction.user.get()});
    return static_cast<int>(operations_.size()) - 1;
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
    const bool ordered = reproducible_ && (floating_ || operations_[how].user);
    Symbol result{how, divide_by, {}};
    auto& terms = result.terms;
    for (std::size_t k = 0; k < sources.size(); ++k) {
        const auto& [symbol, shift] = sources[k];
        const Symbol& source = symbols_[symbol];
        // Associativity: partial results of the same operation dissolve. Where bits depend on the grouping,
        // only a prefix does, and not if it was rounded on the way.
        const bool dissolves =
            source.how == how && source.divide_by == 1 && (!ordered || (k == 0 && !rounds_));
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
    auto found = numbers_.find(result);
    if (found == numbers_.end()) {
        found = numbers_.emplace(result, static_cast<int>(symbols_.size())).first;
        symbols_.push_back(std::move(result));
    }
    return {found->second, first};
}

} // namespace jali::symbolic
