#include "collective/plan_words.hpp"

#include <cstdlib>
#include <map>
#include <tuple>

namespace jali {

using symbolic::Content;
using symbolic::Symbol;
using symbolic::Term;

std::string_view name_of(Fault fault) {
    constexpr std::string_view names[faults] = {"structure", "bounds",    "message",     "deadlock",
                                                "race",      "unwritten", "overwritten", "contribution",
                                                "scratch",   "hierarchy"};
    return names[static_cast<int>(fault)];
}

std::string PlanWords::say_step(int rank, int s) const {
    const Step& here = step(rank, s);
    std::string text =
        "rank " + std::to_string(rank) + ", step " + std::to_string(s) + " '" + here.name + "'";
    const Mark& mark = here.mark;
    std::string marks;
    auto add = [&](const char* what, int value) {
        if (value >= 0) marks += (marks.empty() ? "" : ", ") + std::string(what) + std::to_string(value);
    };
    add("stage ", mark.stage);
    add("chunk ", mark.chunk);
    add("level ", mark.level);
    return marks.empty() ? text : text + " (" + marks + ")";
}

std::string PlanWords::say_buffer(int buffer) const {
    return "'" + (buffer < buffers_ ? composition_.buffers()[buffer].name : std::string("scratch")) + "'";
}

std::string PlanWords::say_range(std::size_t begin, std::size_t end) const {
    if (begin % size_ == 0 && end % size_ == 0) {
        begin /= size_, end /= size_;
        return end == begin + 1 ? "element " + std::to_string(begin)
                                : "elements " + std::to_string(begin) + " to " + std::to_string(end - 1);
    }
    return "bytes " + std::to_string(begin) + " to " + std::to_string(end - 1);
}

std::string PlanWords::say_place(int buffer, std::size_t begin, std::size_t end) const {
    return say_range(begin, end) + " of " + say_buffer(buffer);
}

std::string PlanWords::say_term(const Term& term, std::int64_t position) const {
    const std::int64_t byte = position + term.offset;
    std::string text;
    if (term.rank < 0) {
        text = "(" + say_content({term.buffer, term.offset}, position) + ")";
    } else {
        text = "rank " + std::to_string(term.rank) + "'s " + say_buffer(term.buffer) + "[" +
               (byte % static_cast<std::int64_t>(size_) == 0
                    ? std::to_string(byte / static_cast<std::int64_t>(size_))
                    : "byte " + std::to_string(byte)) +
               "]";
    }
    return term.times == 1 ? text : std::to_string(term.times) + " times " + text;
}

std::string PlanWords::say_content(const Content& content, std::int64_t position) const {
    if (content.symbol == 0) return "undefined";
    const Symbol& symbol = symbols_[content.symbol];
    std::string text = symbol.how < 0 ? "" : "the " + symbols_.name_of_operation(symbol.how) + " of ";
    constexpr std::size_t most = 6;
    for (std::size_t k = 0; k < symbol.terms.size() && k < most; ++k) {
        text += (k ? ", " : "") + say_term(symbol.terms[k], position + content.shift);
    }
    if (symbol.terms.size() > most) text += ", ... (" + std::to_string(symbol.terms.size()) + " in all)";
    if (symbol.divide_by != 1) text += ", divided by " + std::to_string(symbol.divide_by);
    return text;
}

std::string PlanWords::say_difference(const Content& expected, const Content& found,
                                      std::int64_t position) const {
    const Symbol& left = symbols_[expected.symbol];
    const Symbol& right = symbols_[found.symbol];
    std::map<std::tuple<int, int, std::int64_t>, int> difference;
    for (const Term& t : left.terms) difference[{t.rank, t.buffer, t.offset + expected.shift}] += t.times;
    for (const Term& t : right.terms) difference[{t.rank, t.buffer, t.offset + found.shift}] -= t.times;
    std::string missing, extra;
    for (const auto& [term, times] : difference) {
        if (times == 0) continue;
        const auto& [rank, buffer, offset] = term;
        std::string& list = times > 0 ? missing : extra;
        if (list.size() < 200)
            list += (list.empty() ? "" : ", ") + say_term({rank, buffer, offset, std::abs(times)}, position);
    }
    std::string text;
    if (!missing.empty()) text += "; missing: " + missing;
    if (!extra.empty()) text += "; too much: " + extra;
    if (text.empty()) text = "; the same terms, in another order or combined otherwise";
    return text;
}

void PlanWords::fail(Fault kind, int rank, int s, const std::string& what) const {
    throw CheckError(kind, rank, s,
                     (s >= 0 ? say_step(rank, s) : "rank " + std::to_string(rank)) + ": " + what);
}

} // namespace jali
