#include "composition/evaluation.hpp"

namespace jali {

using symbolic::Content;
using symbolic::Range;
using symbolic::Source;

Evaluation evaluate(const Composition& composition, symbolic::Symbols& symbols, bool reproducible,
                    const std::function<void(int rank, const Region&)>& undefined) {
    const int ranks = composition.ranks(), buffers = static_cast<int>(composition.buffers().size());
    const std::size_t size = size_of(composition.type());
    const auto slot = [&](int rank, int buffer) {
        return static_cast<std::size_t>(rank) * (buffers + 1) + buffer;
    };
    Evaluation e;
    e.before.resize(slot(ranks, 0));
    e.written.resize(slot(ranks, 0));
    for (int rank = 0; rank < ranks; ++rank) {
        for (int b = 0; b < buffers; ++b) {
            const CompositionBuffer& buffer = composition.buffers()[b];
            const std::size_t bytes = buffer.count(rank) * size;
            const Range<Content> all{0, bytes, symbols.original(rank, b)};
            if (buffer.input) e.before[slot(rank, b)].replace(0, bytes, {&all, 1});
        }
    }
    e.after = e.before;
    const auto store = [&](int rank, const Region& to, const Source& source) {
        if (to.bytes == 0) return;
        write(e.after[slot(rank, to.buffer)], to.offset, to.bytes, source);
        const Range<bool> range{to.offset, to.offset + to.bytes, true};
        e.written[slot(rank, to.buffer)].replace(range.begin, range.end, {&range, 1});
    };
    std::vector<Source> sources;
    Source combined;
    for (const auto& primitives : composition.steps()) {
        for (const Primitive& primitive : primitives) {
            const std::size_t bytes = primitive.count * size;
            const Region from{primitive.from.buffer, primitive.from.offset * size, bytes};
            const Region to{primitive.to.buffer, primitive.to.offset * size, bytes};
            const auto load = [&](int rank, Source& source) {
                const std::size_t hole = read(e.after[slot(rank, from.buffer)], from.offset, bytes, source);
                if (hole < bytes) undefined(rank, {from.buffer, from.offset + hole, bytes - hole});
            };
            if (primitive.kind == Primitive::Kind::multicast) {
                sources.resize(1);
                load(primitive.root, sources[0]);
                for (int leaf : primitive.ranks.members()) store(leaf, to, sources[0]);
                continue;
            }
            const Reduction& how = composition.reductions()[primitive.reduction];
            const auto members = primitive.ranks.members();
            const int divide_by =
                how.operation == Operation::avg ? static_cast<int>(members.size()) : how.divide_by;
            sources.resize(members.size());
            for (std::size_t k = 0; k < members.size(); ++k) load(members[k], sources[k]);
            symbols.combine(symbols.operation(how, reproducible), divide_by, sources, bytes, combined);
            store(primitive.root, to, combined);
        }
    }
    return e;
}

std::uint64_t label_of_buffer(int rank, int buffer) {
    return mixed(static_cast<std::uint64_t>(rank) + 1, static_cast<std::uint64_t>(buffer) + 1);
}

ExportedValues::ExportedValues(const Composition& composition, symbolic::Symbols& symbols, bool reproducible,
                               std::vector<CombiningOperation>& operations, std::vector<Value>& values)
    : symbols_(symbols), values_(values) {
    for (const Reduction& r : composition.reductions()) {
        const auto how = static_cast<std::size_t>(symbols.operation(r, reproducible));
        if (hows_.size() <= how) hows_.resize(how + 1);
        hows_[how] = number_of(operations, {r.type, r.operation, reproducible, r.user.get()});
    }
}

std::int32_t ExportedValues::number(int symbol) {
    if (const auto found = numbers_.find(symbol); found != numbers_.end()) return found->second;
    const symbolic::Symbol& of = symbols_[symbol];
    Value value{of.how < 0 ? -1 : hows_[of.how], of.divide_by, {}};
    for (const symbolic::Term& t : of.terms) {
        if (t.rank < 0) {
            value.terms.push_back({0, number(t.buffer), t.times, t.offset});
        } else {
            value.terms.push_back({label_of_buffer(t.rank, t.buffer), -1, t.times, t.offset});
        }
    }
    values_.push_back(std::move(value));
    return numbers_[symbol] = static_cast<std::int32_t>(values_.size()) - 1;
}

} // namespace jali
