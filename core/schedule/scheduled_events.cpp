#include "schedule/scheduled_events.hpp"
#include "schedule/graph.hpp"

#include <string>
#include <string_view>

namespace jali {

namespace {

Stretch location_of(const Region& region, std::span<const Stretch> locations) {
    const Stretch& buffer = locations[region.buffer];
    return {buffer.space, buffer.begin + region.offset, buffer.begin + region.offset + region.bytes};
}

// The signals of one rank to another with one tag, counted by a word of the receiver.
SignalWord word_of(int from, int to, int tag, int run) {
    return {static_cast<std::uint64_t>(to),
            static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(tag), run + 1};
}

// The runs of consecutive bytes of a gather, as run(to, from).
template <class Run>
void for_runs(const CopySpec& copy, Run run) {
    const auto one = [&](std::size_t from, std::size_t to, std::size_t bytes) {
        run(Region{copy.to.buffer, to, bytes}, Region{copy.from.buffer, from, bytes});
    };
    if (copy.to.bytes == 0) return;
    if (!copy.rows) return one(copy.from.offset, copy.to.offset, copy.to.bytes);
    const std::size_t count = copy.to.bytes / copy.row_bytes;
    const auto* rows = copy.rows->data() + copy.first_row;
    for (std::size_t k = 0, next = 0; k < count; k = next) {
        for (next = k + 1; next < count && rows[next] == rows[next - 1] + 1;) ++next;
        one(copy.from.offset + rows[k] * copy.row_bytes, copy.to.offset + k * copy.row_bytes,
            (next - k) * copy.row_bytes);
    }
}

class Writer {
  public:
    // `step_of`: moves and combinations are reported, too, and the step of each event.
    Writer(const Schedule& schedule, int rank, std::span<const Stretch> locations, std::vector<int>* step_of,
           bool reproducible)
        : schedule_(schedule), locations_(locations), graph_(schedule), step_of_(step_of),
          reproducible_(reproducible) {
        ordered_events_.rank = rank;
        ordered_events_.filled = step_of != nullptr;
        ordered_events_.events.reserve(2 * static_cast<std::size_t>(graph_.size()) + 2);
        event(-1, "", "start", 0, {});
        for (std::size_t b = 0; b < locations.size(); ++b) // other ranks report the ends of theirs
            if (schedule.buffers()[b].rank < 0)
                ordered_events_.memory.push_back({locations[b], true, schedule.buffers()[b].name});
    }

    RankEvents run(int runs) {
        std::vector<std::int32_t> before{0}; // all of the run before
        for (int run = 0; run < runs; ++run) {
            std::vector<std::int32_t> all;
            std::vector<std::vector<std::int32_t>> needs(graph_.size());
            for (const int part : graph_.order()) {
                const int end = add(part, run, needs[part].empty() ? before : std::move(needs[part]));
                all.push_back(end);
                for (const int follower : graph_.followers(part)) needs[follower].push_back(end);
            }
            before = {event(-1, "", "end", run, all.empty() ? before : std::move(all))};
        }
        return std::move(ordered_events_);
    }

  private:
    // Names are for schedules alone: plans name steps.
    int event(int step, std::string_view what, std::string_view name, int run,
              std::vector<std::int32_t> after) {
        OrderedEvent& m = ordered_events_.events.emplace_back();
        if (step_of_ != nullptr) {
            step_of_->push_back(step);
        } else {
            m.name.append(what).append(name).append(" (run " + std::to_string(run + 1) + ")");
        }
        m.after = std::move(after);
        return static_cast<int>(ordered_events_.events.size()) - 1;
    }
    OrderedEvent& at(int number) { return ordered_events_.events[number]; }
    void touch(std::vector<std::int32_t>& footprints, std::vector<Stretch> all) {
        footprints.push_back(static_cast<std::int32_t>(ordered_events_.footprints.size()));
        ordered_events_.footprints.push_back(std::move(all));
    }
    void touch(std::vector<std::int32_t>& footprints, const Region& region) {
        if (region.bytes > 0) touch(footprints, {location_of(region, locations_)});
    }

    // The moment that followers of a part follow.
    int add(int part, int run, std::vector<std::int32_t> after) {
        const Port& port = graph_.port(part);
        const Step& step = schedule_.steps()[port.step];
        const std::string& part_name = step.parts[port.part].name;
        const int number =
            event(port.step, step.name, part_name.empty() ? "" : "/" + part_name, run, std::move(after));
        if (const auto* a = std::get_if<Kernel>(&step.action)) {
            for (const Region& r : a->reads[port.part]) touch(at(number).reads, r);
            for (const Region& w : a->writes[port.part]) touch(at(number).writes, w);
        } else if (const auto* a = std::get_if<LibraryCollective>(&step.action)) {
            for (const Region& r : a->reads) touch(at(number).reads, r);
            for (const Region& w : a->writes) touch(at(number).writes, w);
        } else if (envelope_of(step)) {
            return add_envelope(number, port.step, run);
        } else if (step_of_ != nullptr) {
            add_contents(number, step);
        } else if (const auto* a = std::get_if<Copy>(&step.action)) {
            for (const auto& spec : a->specs) {
                touch(at(number).reads, spec.from);
                touch(at(number).writes, spec.to);
            }
        } else if (const auto* a = std::get_if<Reduce>(&step.action)) {
            for (const auto& spec : a->specs) {
                for (const Region& from : spec.from) touch(at(number).reads, from);
                touch(at(number).writes, spec.into);
            }
        }
        return number;
    }

    void add_contents(int number, const Step& step) {
        OrderedEvent& m = at(number);
        std::vector<Stretch> reads, writes;
        if (const auto* a = std::get_if<Copy>(&step.action)) {
            for (const CopySpec& spec : a->specs)
                for_runs(spec, [&](const Region& to, const Region& from) {
                    m.moves.push_back({location_of(to, locations_), location_of(from, locations_)});
                    reads.push_back(m.moves.back().from);
                    writes.push_back(m.moves.back().to);
                });
        } else if (const auto* a = std::get_if<Reduce>(&step.action)) {
            const std::int32_t which =
                number_of(ordered_events_.operations,
                          {a->how.type, a->how.operation, reproducible_, a->how.user.get()});
            for (const ReduceSpec& spec : a->specs) {
                if (spec.into.bytes == 0) continue;
                Combination c{location_of(spec.into, locations_), {}, which, a->how.divide_by};
                for (const Region& from : spec.from) c.from.push_back(location_of(from, locations_));
                reads.insert(reads.end(), c.from.begin(), c.from.end());
                writes.push_back(c.to);
                m.combinations.push_back(std::move(c));
            }
        }
        touch(m.reads, std::move(reads));
        touch(m.writes, std::move(writes));
    }

    int add_envelope(int number, int step_number, int run) {
        const Step& step = schedule_.steps()[step_number];
        const auto [sends, signals, peer, tag, library] = *envelope_of(step);
        if (signals) {
            if (sends)
                at(number).signals.push_back(word_of(ordered_events_.rank, peer, tag, run));
            else
                at(number).waits.push_back(word_of(peer, ordered_events_.rank, tag, run));
            return number;
        }
        const Region where = region_of_message(step);
        const int closed = event(step_number, "end of ", step.name, run, {number});
        ordered_events_.passages.push_back({sends, peer, channel(library), tag, sends ? number : closed,
                                            number, closed, static_cast<std::int64_t>(where.bytes),
                                            location_of(where, locations_)});
        return closed;
    }

    // Ranks may number libraries differently.
    std::int32_t channel(int library) const {
        std::uint32_t hash = 0;
        for (const char c : schedule_.libraries()[library]) hash = 31 * hash + static_cast<unsigned char>(c);
        return static_cast<std::int32_t>(hash);
    }

    const Schedule& schedule_;
    std::span<const Stretch> locations_;
    Graph graph_;
    std::vector<int>* step_of_;
    bool reproducible_;
    RankEvents ordered_events_;
};

} // namespace

RankEvents events_of(const Schedule& schedule, int rank, std::span<const Stretch> locations, int runs) {
    schedule.check();
    if (locations.size() != schedule.buffers().size())
        throw ScheduleError(std::to_string(locations.size()) + " places for " +
                            std::to_string(schedule.buffers().size()) + " buffers");
    return Writer(schedule, rank, locations, nullptr, false).run(runs);
}

RankEvents events_with_contents(const Schedule& schedule, int rank, std::span<const Stretch> locations,
                                bool reproducible, std::vector<int>& step_of) {
    return Writer(schedule, rank, locations, &step_of, reproducible).run(1);
}

std::vector<std::byte> reported_events(const std::function<RankEvents()>& make) {
    std::vector<std::byte> bytes;
    bool made = true;
    try {
        bytes = make().to_bytes();
    } catch (const ScheduleError& error) {
        made = false;
        const auto text = std::as_bytes(std::span(std::string_view(error.what())));
        bytes.assign(text.begin(), text.end());
    }
    bytes.push_back(std::byte{made});
    return bytes;
}

void prove_reported(const std::map<int, std::vector<std::byte>>& by_rank) {
    std::vector<RankEvents> all;
    for (const auto& [rank, bytes] : by_rank) {
        const auto reported = std::span(bytes).first(bytes.size() - 1);
        if (bytes.back() == std::byte{false})
            throw ScheduleError("rank " + std::to_string(rank) + ": " +
                                std::string(reinterpret_cast<const char*>(reported.data()), reported.size()));
        all.push_back(RankEvents::from_bytes(reported));
    }
    prove(all);
}

void prove_together(Communicator& communicator, const std::function<RankEvents()>& make) {
    std::map<int, std::vector<std::byte>> by_rank;
    for (auto& reported : communicator.all_gather(reported_events(make), "checking what ranks do"))
        by_rank.emplace(static_cast<int>(by_rank.size()), std::move(reported));
    prove_reported(by_rank);
}

} // namespace jali
