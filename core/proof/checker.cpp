#include "proof/checker.hpp"

#include "composition/evaluation.hpp"
#include "messaging/communicator.hpp"
#include "schedule/scheduled_events.hpp"
#include "settings/counted.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace jali {

namespace {

class Checker : public ProofWords {
  public:
    Checker(const Composition& composition, std::span<const Schedule* const> of_ranks,
            const CheckOptions& options)
        : composition_(composition), of_ranks_(of_ranks), options_(options),
          ranks_(static_cast<int>(of_ranks.size())), size_(size_of(composition.type())),
          buffers_(static_cast<int>(composition.buffers().size())), step_of_(of_ranks.size()) {}

    void check() {
        if (ranks_ != composition_.ranks())
            throw CheckError(Fault::structure, -1, -1,
                             std::to_string(ranks_) + " schedules for a composition of " +
                                 counted(composition_.ranks(), "rank"));
        if (options_.hierarchy && options_.hierarchy->ranks() != ranks_)
            throw CheckError(Fault::hierarchy, -1, -1,
                             "a hierarchy of " + counted(options_.hierarchy->ranks(), "rank") +
                                 " for a plan of " + std::to_string(ranks_));
        symbolic::Symbols symbols;
        const Evaluation meaning =
            evaluate(composition_, symbols, options_.reproducible, [&](int rank, const Region& hole) {
                fail(Fault::structure, rank, -1,
                     "the composition reads " +
                         location_text(hole.buffer, hole.offset, hole.offset + hole.bytes) +
                         ", which it did not write and which is no input");
            });
        std::vector<RankEvents> events;
        for (int rank = 0; rank < ranks_; ++rank) {
            check_buffers(rank);
            try {
                of_ranks_[rank]->check_form();
                for (int s = 0; s < static_cast<int>(of_ranks_[rank]->steps().size()); ++s)
                    check_step(rank, s, meaning);
                events.push_back(events_of(rank));
            } catch (const ScheduleError& error) {
                throw CheckError(error.kind, rank, error.at,
                                 "rank " + std::to_string(rank) + ": " + error.what());
            }
            record_meaning(events.back(), meaning, symbols);
        }
        try {
            prove(events, *this);
        } catch (const ScheduleError& error) {
            throw CheckError(error.kind, error.rank, error.at < 0 ? -1 : step_of_[error.rank][error.at],
                             error.what());
        }
    }

  private:
    // ---- words ---------------------------------------------------------------------------------------

    std::string event(const RankEvents& of, int event) const override {
        const int s = step_of_[of.rank][event];
        return s >= 0 ? say_step(of.rank, s) : "rank " + std::to_string(of.rank) + " in the end";
    }
    std::string location(const Stretch& where) const override {
        return location_text(buffer_of(where.space), where.begin, where.end);
    }
    std::string held(const RankEvents& of, int event, int n, std::int64_t number) const override {
        const auto begin = static_cast<std::size_t>(number);
        const bool whole = begin % size_ == 0;
        return "rank " + std::to_string(of.rank) + "'s " +
               say_buffer(buffer_of(of.events[event].holds[n].where.space)) + "[" + (whole ? "" : "byte ") +
               std::to_string(whole ? begin / size_ : begin) + "]";
    }

    std::string say_step(int rank, int s) const {
        const Step& step = of_ranks_[rank]->steps()[s];
        std::string marks;
        const auto add = [&](const char* what, int value) {
            if (value >= 0) marks += (marks.empty() ? "" : ", ") + std::string(what) + std::to_string(value);
        };
        add("stage ", step.mark.stage);
        add("chunk ", step.mark.chunk);
        add("level ", step.mark.level);
        return "rank " + std::to_string(rank) + ", step " + std::to_string(s) + " '" + step.name + "'" +
               (marks.empty() ? "" : " (" + marks + ")");
    }
    std::string say_buffer(int buffer) const {
        return "'" + (buffer < buffers_ ? composition_.buffers()[buffer].name : std::string("scratch")) + "'";
    }
    std::string say_range(std::size_t begin, std::size_t end) const { // bytes where elements are cut
        const std::size_t unit = begin % size_ == 0 && end % size_ == 0 ? size_ : 1;
        const std::string word = unit == size_ ? "element" : "byte";
        begin /= unit, end /= unit;
        return word + (end == begin + 1 ? " " + std::to_string(begin)
                                        : "s " + std::to_string(begin) + " to " + std::to_string(end - 1));
    }
    std::string location_text(int buffer, std::size_t begin, std::size_t end) const {
        return say_range(begin, end) + " of " + say_buffer(buffer);
    }
    [[noreturn]] void fail(Fault kind, int rank, int s, const std::string& what) const {
        throw CheckError(kind, rank, s,
                         (s >= 0 ? say_step(rank, s) : "rank " + std::to_string(rank)) + ": " + what);
    }

    // ---- schedules of this composition ---------------------------------------------------------------

    void check_buffers(int rank) const {
        const auto& buffers = of_ranks_[rank]->buffers();
        if (static_cast<int>(buffers.size()) != buffers_ + 1)
            fail(Fault::structure, rank, -1,
                 counted(buffers.size(), "buffer") + "; the composition has " + std::to_string(buffers_) +
                     ", and the last of the schedule is scratch");
        for (int b = 0; b < buffers_; ++b)
            if (const std::size_t expected = composition_.buffers()[b].count(rank) * size_;
                buffers[b].bytes != expected)
                fail(Fault::structure, rank, -1,
                     "buffer " + say_buffer(b) + " has " + std::to_string(buffers[b].bytes) +
                         " bytes instead of " + std::to_string(expected));
        if (buffers.back().bytes > options_.scratch_limit)
            fail(Fault::scratch, rank, -1,
                 std::to_string(buffers.back().bytes) + " bytes of scratch, more than the " +
                     std::to_string(options_.scratch_limit) + " allowed");
    }

    void check_step(int rank, int s, const Evaluation& meaning) const {
        const Step& step = of_ranks_[rank]->steps()[s];
        const auto envelope = envelope_of(step);
        if (std::holds_alternative<Kernel>(step.action) ||
            std::holds_alternative<LibraryCollective>(step.action) || (envelope && envelope->signals))
            fail(Fault::structure, rank, s,
                 "a kernel, a signal or a library's collective: nothing of a plan");
        if (envelope) check_message(rank, s, *envelope, step.mark.level);
        if (const auto* a = std::get_if<Receive>(&step.action)) {
            check_may_write(rank, s, a->into, meaning);
        } else if (const auto* a = std::get_if<Copy>(&step.action)) {
            for (const CopySpec& spec : a->specs) check_may_write(rank, s, spec.to, meaning);
        } else if (const auto* a = std::get_if<Reduce>(&step.action)) {
            if (a->how.type != composition_.type())
                fail(Fault::contribution, rank, s,
                     "combines elements of type " + std::string(name_of(a->how.type)) +
                         "; the composition is of " + std::string(name_of(composition_.type())));
            if (a->how.divide_by < 1)
                fail(Fault::contribution, rank, s, "divides by " + std::to_string(a->how.divide_by));
            for (const ReduceSpec& spec : a->specs) check_may_write(rank, s, spec.into, meaning);
        }
    }

    void check_message(int rank, int s, const Envelope& envelope, int level) const {
        const int peer = envelope.peer;
        if (peer >= ranks_ || peer == rank)
            fail(Fault::message, rank, s,
                 "its peer is rank " + std::to_string(peer) + "; there are " + counted(ranks_, "rank") +
                     ", and none sends to itself");
        if (envelope.tag > max_tag)
            fail(Fault::message, rank, s,
                 "tag " + std::to_string(envelope.tag) + " is not in 0 to " + std::to_string(max_tag));
        if (!options_.hierarchy) return;
        const Hierarchy& hierarchy = *options_.hierarchy;
        const int crossed = hierarchy.level_between(hierarchy.position_of(rank), hierarchy.position_of(peer));
        if (level != crossed)
            fail(Fault::hierarchy, rank, s,
                 "a message between ranks " + std::to_string(rank) + " and " + std::to_string(peer) +
                     " crosses level " + std::to_string(crossed) + " of the hierarchy " +
                     hierarchy.describe() + ", but is marked with level " + std::to_string(level));
    }

    void check_may_write(int rank, int s, const Region& region, const Evaluation& meaning) const {
        if (region.buffer == buffers_ || region.bytes == 0) return;
        const auto& allowed = meaning.written[slot(rank, region.buffer)];
        const std::size_t end = region.offset + region.bytes, k = allowed.find(region.offset);
        std::size_t covered = region.offset;
        for (auto at = allowed.all().begin() + static_cast<std::ptrdiff_t>(k);
             at != allowed.all().end() && at->begin <= covered; ++at)
            covered = std::max(covered, at->end);
        if (covered < end)
            fail(Fault::overwritten, rank, s,
                 "writes " + location_text(region.buffer, region.offset, end) +
                     "; the composition does not write " +
                     say_range(covered, std::min(end, covered + size_)) + " there");
    }

    // ---- as events ----------------------------------------------------------------------------------

    // Each buffer is a space of its own.
    std::uint64_t slot(int rank, int buffer) const {
        return static_cast<std::uint64_t>(rank) * static_cast<std::uint64_t>(buffers_ + 1) + buffer;
    }
    int buffer_of(std::uint64_t space) const {
        return static_cast<int>(space % static_cast<std::uint64_t>(buffers_ + 1));
    }

    RankEvents events_of(int rank) {
        std::vector<Stretch> locations;
        for (int b = 0; b <= buffers_; ++b)
            locations.push_back({slot(rank, b), 0, of_ranks_[rank]->buffers()[b].bytes});
        return events_with_contents(*of_ranks_[rank], rank, locations, options_.reproducible, step_of_[rank]);
    }

    // Records the initial contents and the required final ones.
    void record_meaning(RankEvents& events, const Evaluation& meaning, symbolic::Symbols& symbols) const {
        ExportedValues exported(composition_, symbols, options_.reproducible, events.operations,
                                events.values);
        for (int b = 0; b < buffers_; ++b) {
            const std::uint64_t space = slot(events.rank, b);
            for (const auto& [begin, end, what] : meaning.before[space].all())
                events.events.front().holds.push_back({{space, begin, end},
                                                       label_of_buffer(events.rank, b),
                                                       -1,
                                                       static_cast<std::int64_t>(begin)});
            for (const auto& [begin, end, what] : meaning.after[space].all())
                events.events.back().results.push_back({{space, begin, end},
                                                        exported.number(what.symbol),
                                                        static_cast<std::int64_t>(begin) + what.shift});
        }
    }

    const Composition& composition_;
    const std::span<const Schedule* const> of_ranks_;
    const CheckOptions& options_;
    const int ranks_;
    const std::size_t size_;                // of an element
    const int buffers_;                     // of the composition; scratch is one more
    std::vector<std::vector<int>> step_of_; // [rank][event]
};

} // namespace

void check_plan(const Composition& composition, std::span<const Schedule* const> of_ranks,
                const CheckOptions& options) {
    Checker(composition, of_ranks, options).check();
}

} // namespace jali
