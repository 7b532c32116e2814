#include "schedule/held_contents.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace jali {

using symbolic::Content;
using symbolic::Range;
using symbolic::Source;
using symbolic::Symbol;
using symbolic::Term;

namespace {

std::int64_t number(std::uint64_t address) {
    return static_cast<std::int64_t>(address);
}

} // namespace

Content HeldContents::original(int rank, std::int32_t list, std::uint64_t label, std::int64_t site_bytes,
                               int since, int which) {
    const std::tuple key(list < 0 ? -1 : rank, list, label, site_bytes);
    const auto [found, fresh] = numbers_.emplace(key, static_cast<int>(originals_.size()));
    if (fresh) originals_.push_back({rank, list, label, site_bytes, rank, since, which});
    Original& o = originals_[found->second];
    if (o.since < 0) {
        o.of_rank = rank;
        o.since = since;
        o.which = which;
    }
    return symbols_.original(0, found->second);
}

int HeldContents::operation(int rank, std::int32_t how) {
    const CombiningOperation& o = ranks_[rank].operations[how];
    return symbols_.operation({o.type, o.operation, 1, {std::shared_ptr<void>(), o.user}}, o.reproducible);
}

const Content& HeldContents::value(int rank, std::int32_t which) {
    const auto& all = ranks_[rank].values;
    auto& known = values_[rank];
    while (known.size() <= static_cast<std::size_t>(which)) { // its operands come first
        const Value& v = all[known.size()];
        std::vector<Content> terms;
        for (const ValueTerm& t : v.terms) {
            Content term = t.value >= 0 ? known[t.value] : original(rank, -1, t.label, 1, -1, 0);
            term.shift += t.offset;
            terms.insert(terms.end(), static_cast<std::size_t>(t.times), term);
        }
        known.push_back(v.how < 0 ? terms[0] : symbols_.combine(operation(rank, v.how), v.divide_by, terms));
    }
    return known[which];
}

void HeldContents::fail(Fault kind, const std::string& what) const {
    throw ScheduleError(words_.event(ranks_[rank_], ordered_event_) + what, kind, ranks_[rank_].rank,
                        ordered_event_);
}

void HeldContents::fail_unwritten(const Stretch& where, std::uint64_t hole) const {
    fail(Fault::unwritten, " reads " + words_.location(where) + ", but nothing filled " +
                               words_.location({where.space, hole, where.end}));
}

std::string HeldContents::say(const Term& term, std::int64_t position) const {
    const std::int64_t byte = position + term.offset;
    const std::string times = term.times == 1 ? "" : std::to_string(term.times) + " times ";
    if (term.rank < 0) return times + "(" + say(Content{term.buffer, byte}, 0) + ")";
    const Original& o = originals_[term.buffer];
    return times + (o.since < 0 ? "byte " + std::to_string(byte) + " of what nobody had"
                                : words_.held(ranks_[o.of_rank], o.since, o.which, byte));
}

std::string HeldContents::say(const Content& content, std::uint64_t position) const {
    if (content.symbol == 0) return "nothing";
    const Symbol& symbol = symbols_[content.symbol];
    std::string text = symbol.how < 0 ? "" : "the " + symbols_.name_of_operation(symbol.how) + " of ";
    constexpr std::size_t most = 6;
    for (std::size_t k = 0; k < symbol.terms.size() && k < most; ++k)
        text += (k > 0 ? ", " : "") + say(symbol.terms[k], number(position) + content.shift);
    if (symbol.terms.size() > most) text += ", ... (" + std::to_string(symbol.terms.size()) + " in all)";
    if (symbol.divide_by != 1) text += ", divided by " + std::to_string(symbol.divide_by);
    return text;
}

// The terms of `expected` that are missing in `found`, and the reverse.
std::string HeldContents::say_difference(const Content& expected, const Content& found,
                                         std::uint64_t position) const {
    const Symbol &left = symbols_[expected.symbol], &right = symbols_[found.symbol];
    if (left.how != right.how || left.how < 0 || left.divide_by != right.divide_by) return "";
    std::map<std::tuple<int, int, std::int64_t>, int> difference;
    for (const Term& t : left.terms) difference[{t.rank, t.buffer, t.offset + expected.shift}] += t.times;
    for (const Term& t : right.terms) difference[{t.rank, t.buffer, t.offset + found.shift}] -= t.times;
    std::string missing, extra;
    for (const auto& [term, times] : difference) {
        if (times == 0) continue;
        const auto& [rank, buffer, offset] = term;
        std::string& list = times > 0 ? missing : extra;
        if (list.size() < 200)
            list += (list.empty() ? "" : ", ") +
                    say(Term{rank, buffer, offset, std::abs(times)}, number(position));
    }
    std::string text;
    if (!missing.empty()) text += "; missing: " + missing;
    if (!extra.empty()) text += "; too much: " + extra;
    return text.empty() ? "; the same terms, in another order or combined otherwise" : text;
}

void HeldContents::clear(const Stretch& where) {
    if (const auto found = contents_.find(where.space);
        found != contents_.end() && !found->second.all().empty())
        found->second.replace(where.begin, where.end, {});
}

void HeldContents::read(const Stretch& from, Source& source) {
    const std::uint64_t bytes = from.end - from.begin;
    const std::size_t hole = symbolic::read(contents_[from.space], from.begin, bytes, source);
    if (hole < bytes && ranks_[rank_].filled) fail_unwritten(from, from.begin + hole);
}

void HeldContents::combine(const Combination& c, Source& source) {
    const std::uint64_t bytes = c.to.end - c.to.begin;
    const auto element = static_cast<std::int64_t>(size_of(ranks_[rank_].operations[c.how].type));
    if (sources_.size() < c.from.size()) sources_.resize(c.from.size());
    for (std::size_t k = 0; k < c.from.size(); ++k) {
        const Stretch& from = c.from[k];
        const std::size_t hole = symbolic::read(contents_[from.space], from.begin, bytes, sources_[k]);
        if (hole < bytes) fail_unwritten(from, from.begin + hole);
        for (const auto& range : sources_[k]) {
            const std::int64_t begin = number(range.begin);
            if (begin % element != 0 || (begin + range.what.shift) % element != 0)
                fail(Fault::bounds, " combines " + words_.location(from) +
                                        ", where no element begins at byte " +
                                        std::to_string(from.begin + range.begin));
        }
    }
    symbols_.combine(operation(rank_, c.how), c.divide_by, std::span(sources_).first(c.from.size()), bytes,
                     source);
}

template <class F>
void HeldContents::each(const Stretch& where, F f) {
    const auto& all = contents_[where.space].all();
    std::size_t k = contents_[where.space].find(where.begin);
    for (std::uint64_t at = where.begin, end = 0; at < where.end; at = end) {
        const bool there = k < all.size() && all[k].begin <= at;
        end = there ? all[k].end : k < all.size() ? all[k].begin : where.end;
        end = std::min(end, where.end);
        f(at, end, there ? all[k++].what : Content{});
    }
}

void HeldContents::expect(const Holding& e) {
    each(e.where, [&](std::uint64_t begin, std::uint64_t end, const Content& content) {
        if (content.symbol == 0) fail_unwritten(e.where, begin);
        const auto other = [&](const std::string& what) {
            fail(Fault::contribution, " reads " + what + " (" + words_.location(e.where) + ")");
        };
        const Symbol& symbol = symbols_[content.symbol];
        if (symbol.how >= 0) other(say(content, begin) + ", which is combined");
        const Original& held = originals_[symbol.terms[0].buffer];
        const auto others = [&](const std::string& what) {
            other(what + " where it expects others, from " + words_.event(ranks_[held.of_rank], held.since));
        };
        if (held.label != e.label) others("another field, or older values,");
        const std::int64_t in_list = number(begin) + content.shift;
        const std::int64_t wanted = e.first * e.site_bytes + number(begin - e.where.begin);
        if (held.list < 0 || e.list < 0) {
            if (held.list >= 0 || e.list >= 0 || in_list != wanted) others("other bytes");
            return;
        }
        if (held.site_bytes != e.site_bytes || in_list % e.site_bytes != 0) others("parts of sites");
        const auto& has = ranks_[held.rank].sites[held.list];
        const auto& wants = ranks_[rank_].sites[e.list];
        auto k = static_cast<std::size_t>(in_list / e.site_bytes);
        auto w = static_cast<std::size_t>(wanted / e.site_bytes);
        for (std::uint64_t byte = begin; byte < end;
             byte += static_cast<std::uint64_t>(e.site_bytes), ++k, ++w)
            if (k >= has.size() || w >= wants.size() || has[k] != wants[w]) others("other sites");
    });
}

void HeldContents::expect(const ExpectedValue& e) {
    Content wanted = value(rank_, e.value);
    wanted.shift += e.shift - number(e.where.begin);
    each(e.where, [&](std::uint64_t begin, std::uint64_t end, const Content& content) {
        if (content != wanted)
            fail(Fault::contribution, " finds in " + words_.location({e.where.space, begin, end}) +
                                          " (from the first on) " + say(content, begin) + " instead of " +
                                          say(wanted, begin) + say_difference(wanted, content, begin));
    });
}

void HeldContents::pass(int rank, int event, Transfer* sends, Transfer* receives) {
    rank_ = rank;
    ordered_event_ = event;
    const OrderedEvent& m = ranks_[rank].events[event];
    for (const Holding& e : m.expects) expect(e);
    for (const ExpectedValue& e : m.results) expect(e);
    if (sends != nullptr) read(sends->from, sends->sent_values);
    // the content before any write
    std::size_t filled = 0;
    const auto next = [&]() -> Source& {
        if (filled == filled_.size()) filled_.emplace_back();
        return filled_[filled++];
    };
    for (const Move& one : m.moves) read(one.from, next());
    for (const Combination& c : m.combinations) combine(c, next());
    if (!ranks_[rank].filled) // else written bytes equal moved bytes
        for (std::int32_t footprint : m.writes)
            for (const Stretch& s : ranks_[rank].footprints[footprint]) clear(s);
    filled = 0;
    const auto fill = [&](const Stretch& to, const Source& source) {
        write(contents_[to.space], to.begin, to.end - to.begin, source);
    };
    for (const Move& one : m.moves) fill(one.to, filled_[filled++]);
    for (const Combination& c : m.combinations) fill(c.to, filled_[filled++]);
    if (receives != nullptr) {
        fill(receives->to, receives->sent_values);
        receives->sent_values = {};
    }
    for (const Holding& h : m.holds) {
        Content content =
            original(rank, h.list, h.label, h.site_bytes, event, static_cast<int>(&h - m.holds.data()));
        content.shift += h.first * h.site_bytes - number(h.where.begin);
        const Range<Content> range{h.where.begin, h.where.end, content};
        contents_[h.where.space].replace(h.where.begin, h.where.end, {&range, 1});
    }
}

} // namespace jali
