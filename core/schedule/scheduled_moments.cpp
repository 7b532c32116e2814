#include "schedule/scheduled_moments.hpp"
#include "schedule/graph.hpp"

#include <string>
#include <string_view>

namespace jali {

namespace {

Stretch place_of(const Region& region, std::span<const Stretch> places) {
    const Stretch& buffer = places[region.buffer];
    return {buffer.space, buffer.begin + region.offset, buffer.begin + region.offset + region.bytes};
}

// The signals of one rank to another with one tag, counted by a word of the receiver.
SignalWord word_of(int from, int to, int tag, int run) {
    return {static_cast<std::uint64_t>(to),
            static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(tag), run + 1};
}

class Writer {
  public:
    Writer(const Schedule& schedule, int rank, std::span<const Stretch> places)
        : schedule_(schedule), places_(places), graph_(schedule) {
        moments_.rank = rank;
        Moment start;
        start.name = "start";
        moments_.moments.push_back(std::move(start));
        for (std::size_t b = 0; b < places.size(); ++b) // others say where theirs end
            if (schedule.buffers()[b].rank < 0)
                moments_.memory.push_back({places[b], true, schedule.buffers()[b].name});
    }

    RankMoments run(int runs) {
        std::vector<std::int32_t> before{0}; // all of the run before
        for (int run = 0; run < runs; ++run) {
            std::vector<std::int32_t> ends(graph_.size()), all;
            std::vector<std::vector<std::int32_t>> needs(graph_.size());
            for (const int part : graph_.order()) {
                auto after = before;
                after.insert(after.end(), needs[part].begin(), needs[part].end());
                ends[part] = add(part, run, std::move(after));
                all.push_back(ends[part]);
                for (const int follower : graph_.followers(part)) needs[follower].push_back(ends[part]);
            }
            if (!all.empty()) before = {moment("end", run, all)};
        }
        return std::move(moments_);
    }

  private:
    int moment(const std::string& name, int run, std::vector<std::int32_t> after) {
        Moment m;
        m.name = name + " (run " + std::to_string(run + 1) + ")";
        m.after = std::move(after);
        moments_.moments.push_back(std::move(m));
        return static_cast<int>(moments_.moments.size()) - 1;
    }
    Moment& at(int number) { return moments_.moments[number]; }
    std::int32_t footprint(const Stretch& stretch) {
        moments_.footprints.push_back({stretch});
        return static_cast<std::int32_t>(moments_.footprints.size()) - 1;
    }
    void touch(std::vector<std::int32_t>& footprints, const Region& region) {
        if (region.bytes > 0) footprints.push_back(footprint(place_of(region, places_)));
    }

    // The moment that followers of a part follow.
    int add(int part, int run, std::vector<std::int32_t> after) {
        const Port& port = graph_.port(part);
        const Step& step = schedule_.steps()[port.step];
        const std::string& part_name = step.parts[port.part].name;
        const int number =
            moment(step.name + (part_name.empty() ? "" : "/" + part_name), run, std::move(after));
        if (const auto* a = std::get_if<Copy>(&step.action)) {
            for (const auto& row : a->rows) {
                touch(at(number).reads, row.from);
                touch(at(number).writes, row.to);
            }
        } else if (const auto* a = std::get_if<Reduce>(&step.action)) {
            for (const auto& row : a->rows) {
                for (const Region& from : row.from) touch(at(number).reads, from);
                touch(at(number).writes, row.into);
            }
        } else if (const auto* a = std::get_if<Kernel>(&step.action)) {
            for (const Region& r : a->reads[port.part]) touch(at(number).reads, r);
            for (const Region& w : a->writes[port.part]) touch(at(number).writes, w);
        } else {
            return add_envelope(number, step, run);
        }
        return number;
    }

    int add_envelope(int number, const Step& step, int run) {
        const auto [sends, signals, peer, tag, library] = *envelope_of(step);
        if (signals) {
            if (sends)
                at(number).signals.push_back(word_of(moments_.rank, peer, tag, run));
            else
                at(number).waits.push_back(word_of(peer, moments_.rank, tag, run));
            return number;
        }
        const Region where = region_of_message(step);
        touch(sends ? at(number).reads : at(number).writes, where);
        const int closed = moment("end of " + step.name, run, {number});
        // A send may end before its receive begins: who receives promises no more than that it has started.
        moments_.passages.push_back({sends, peer, library, tag, number, 0, closed,
                                     static_cast<std::int64_t>(where.bytes), place_of(where, places_)});
        return closed;
    }

    const Schedule& schedule_;
    std::span<const Stretch> places_;
    Graph graph_;
    RankMoments moments_;
};

} // namespace

RankMoments moments_of(const Schedule& schedule, int rank, std::span<const Stretch> places, int runs) {
    schedule.check();
    if (places.size() != schedule.buffers().size())
        throw ScheduleError(std::to_string(places.size()) + " places for " +
                            std::to_string(schedule.buffers().size()) + " buffers");
    return Writer(schedule, rank, places).run(runs);
}

std::vector<std::byte> told_moments(const std::function<RankMoments()>& make) {
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

void prove_told(const std::map<int, std::vector<std::byte>>& by_rank) {
    std::vector<RankMoments> all;
    for (const auto& [rank, bytes] : by_rank) {
        const auto told = std::span(bytes).first(bytes.size() - 1);
        if (bytes.back() == std::byte{false})
            throw ScheduleError("rank " + std::to_string(rank) + ": " +
                                std::string(reinterpret_cast<const char*>(told.data()), told.size()));
        all.push_back(RankMoments::from_bytes(told));
    }
    prove(all);
}

void prove_together(Communicator& communicator, const std::function<RankMoments()>& make) {
    std::map<int, std::vector<std::byte>> by_rank;
    for (auto& told : communicator.all_gather(told_moments(make), "checking what ranks do"))
        by_rank.emplace(static_cast<int>(by_rank.size()), std::move(told));
    prove_told(by_rank);
}

} // namespace jali
