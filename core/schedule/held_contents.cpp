#include "schedule/held_contents.hpp"

#include <algorithm>

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
    if (fresh) originals_.push_back({rank, list, label, site_bytes, since, which});
    Original& o = originals_[found->second];
    if (o.since < 0) {
        o.since = since;
        o.which = which;
    }
    return symbols_.original(0, found->second);
}

int HeldContents::operation(int rank, std::int32_t how) {
    const CombiningOperation& o = ranks_[rank].operations[how];
    return symbols_.operation({o.type, o.operation, 1, nullptr}, o.reproducible);
}

const Content& HeldContents::value(int rank, std::int32_t which) {
    const auto& all = ranks_[rank].values;
    auto& known = values_[rank];
    while (known.size() <= static_cast<std::size_t>(which)) { // those that it is made of come first
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

void HeldContents::fail(int n, const Stretch& where, const std::string& what) const {
    throw ScheduleError(name_(n) + " reads " + what + " (" + std::to_string(where.end - where.begin) +
                        " bytes at " + std::to_string(where.begin) + ")");
}

std::string HeldContents::say(const Content& content, std::uint64_t position) const {
    const Symbol& symbol = symbols_[content.symbol];
    std::string text = symbol.how < 0 ? "" : "the " + symbols_.name_of_operation(symbol.how) + " of ";
    constexpr std::size_t most = 4;
    for (std::size_t k = 0; k < symbol.terms.size() && k < most; ++k) {
        const Term& term = symbol.terms[k];
        const std::int64_t byte = number(position) + content.shift + term.offset;
        text += k > 0 ? ", " : "";
        if (term.times > 1) text += std::to_string(term.times) + " times ";
        if (term.rank < 0) {
            text += "(" + say({term.buffer, content.shift + term.offset}, position) + ")";
            continue;
        }
        const Original& o = originals_[term.buffer];
        text += "byte " + std::to_string(byte) + " of " +
                (o.since < 0 ? "what nobody had"
                             : "array " + std::to_string(o.which) + " that " + name_(o.since) + " held");
    }
    if (symbol.terms.size() > most) text += ", ... (" + std::to_string(symbol.terms.size()) + " in all)";
    if (symbol.divide_by != 1) text += ", divided by " + std::to_string(symbol.divide_by);
    return text;
}

void HeldContents::clear(const Stretch& where) {
    if (const auto found = contents_.find(where.space);
        found != contents_.end() && !found->second.all().empty())
        found->second.replace(where.begin, where.end, {});
}

// What a stretch gets, as it is before anything of the moment is written.
Source HeldContents::moved(const Move& m) {
    Source source;
    read(contents_[m.from.space], m.from.begin, m.to.end - m.to.begin, source);
    return source;
}

Source HeldContents::combined(int n, int rank, const Combination& c) {
    const std::uint64_t bytes = c.to.end - c.to.begin;
    sources_.resize(c.from.size());
    for (std::size_t k = 0; k < c.from.size(); ++k)
        if (read(contents_[c.from[k].space], c.from[k].begin, bytes, sources_[k]) < bytes)
            fail(n, c.from[k], "memory that nothing filled, to combine it");
    Source source;
    symbols_.combine(operation(rank, c.how), c.divide_by, sources_, bytes, source);
    return source;
}

template <class F>
void HeldContents::each(int n, const Stretch& where, F f) {
    const auto& all = contents_[where.space];
    std::uint64_t at = where.begin;
    for (std::size_t k = all.find(at); at < where.end; ++k) {
        if (k == all.all().size() || all.all()[k].begin > at)
            fail(n, where, "memory that no exchange filled where it expects others");
        const Range<Content>& range = all.all()[k];
        const std::uint64_t end = std::min<std::uint64_t>(range.end, where.end);
        f(at, end, range.what);
        at = end;
    }
}

void HeldContents::expect(int n, int rank, const Holding& e) {
    each(n, e.where, [&](std::uint64_t begin, std::uint64_t end, const Content& content) {
        const Symbol& symbol = symbols_[content.symbol];
        if (symbol.how >= 0) fail(n, e.where, say(content, begin) + ", which is combined");
        const Original& held = originals_[symbol.terms[0].buffer];
        const auto other = [&](const std::string& what) {
            fail(n, e.where, what + " where it expects others, from " + name_(held.since));
        };
        if (held.label != e.label) other("another field, or older values,");
        const std::int64_t in_list = number(begin) + content.shift;
        const std::int64_t wanted = e.first * e.site_bytes + number(begin - e.where.begin);
        if (held.list < 0 || e.list < 0) {
            if (held.list >= 0 || e.list >= 0 || in_list != wanted) other("other bytes");
            return;
        }
        if (held.site_bytes != e.site_bytes || in_list % e.site_bytes != 0) other("parts of sites");
        const auto& has = ranks_[held.rank].sites[held.list];
        const auto& wants = ranks_[rank].sites[e.list];
        auto k = static_cast<std::size_t>(in_list / e.site_bytes);
        auto w = static_cast<std::size_t>(wanted / e.site_bytes);
        for (std::uint64_t byte = begin; byte < end;
             byte += static_cast<std::uint64_t>(e.site_bytes), ++k, ++w)
            if (k >= has.size() || w >= wants.size() || has[k] != wants[w]) other("other sites");
    });
}

void HeldContents::expect(int n, int rank, const ExpectedValue& e) {
    Content wanted = value(rank, e.value);
    wanted.shift += e.shift - number(e.where.begin);
    each(n, e.where, [&](std::uint64_t begin, std::uint64_t, const Content& content) {
        if (content != wanted) fail(n, e.where, say(content, begin) + " instead of " + say(wanted, begin));
    });
}

void HeldContents::pass(int n, int rank, const Moment& m, const Move* arrived) {
    for (const Holding& e : m.expects) expect(n, rank, e);
    for (const ExpectedValue& e : m.results) expect(n, rank, e);
    std::vector<std::pair<Stretch, Source>> filled;
    for (const Move& one : m.moves) filled.emplace_back(one.to, moved(one));
    for (const Combination& c : m.combinations) filled.emplace_back(c.to, combined(n, rank, c));
    if (arrived != nullptr) filled.emplace_back(arrived->to, moved(*arrived));
    for (std::int32_t footprint : m.writes)
        for (const Stretch& s : ranks_[rank].footprints[footprint]) clear(s);
    for (const auto& [to, source] : filled) write(contents_[to.space], to.begin, to.end - to.begin, source);
    for (const Holding& h : m.holds) {
        Content content =
            original(rank, h.list, h.label, h.site_bytes, n, static_cast<int>(&h - m.holds.data()));
        content.shift += h.first * h.site_bytes - number(h.where.begin);
        const Range<Content> range{h.where.begin, h.where.end, content};
        contents_[h.where.space].replace(h.where.begin, h.where.end, {&range, 1});
    }
}

} // namespace jali
