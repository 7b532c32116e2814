// Stages of one rank become steps, chunk by chunk. The sink determines the form of steps: a schedule
// (ScheduleBuilder), or nodes of a transfer graph (plan_graph.cpp). Private to these two.
#pragma once

#include "composition/plan_steps.hpp"
#include "messaging/communicator.hpp"
#include "schedule/schedule.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <string>

namespace jali {

// Writes the stages of one rank into a sink, in the global order: step of the composition, stage plus
// chunk, stage. A sink has add_buffer, add_temporary, add and add_need of a ScheduleBuilder; `Sink::named`:
// whether it uses names of steps.
template <class Sink>
class PlanWriter {
  public:
    PlanWriter(const Composition& composition, const PlanParameters& parameters, const Routes& routes,
               int rank, Sink& sink)
        : composition_(composition), parameters_(parameters), routes_(routes), rank_(rank),
          size_(static_cast<std::int64_t>(size_of(composition.type()))), sink_(sink) {
        for (const auto& buffer : composition.buffers())
            sink_.add_buffer(buffer.name, buffer.count(rank) * size_, buffer.input);
    }

    // All chunks. `parts`: step_of_rank of each step of the composition.
    void write(const std::vector<StepOfRank>& parts) {
        const int stages = routes_.stages(), depth = parameters_.depth;
        for (std::size_t k = 0; k < parts.size(); ++k) {
            begin_step(k, parts[k]);
            for (int chunk = 0; chunk < depth; ++chunk) begin_chunk(chunk);
            for (int column = 0; column < stages + depth - 1; ++column) {
                const int last = std::min(column, stages - 1);
                for (int stage = std::max(0, column - depth + 1); stage <= last; ++stage)
                    add(stage, column - stage);
            }
        }
    }

    // One chunk alone.
    void write_chunk(const std::vector<StepOfRank>& parts, int chunk) {
        for (std::size_t k = 0; k < parts.size(); ++k) {
            begin_step(k, parts[k]);
            begin_chunk(chunk);
            for (int stage = 0; stage < routes_.stages(); ++stage) add(stage, chunk);
        }
    }

  private:
    // Where a temporary slot lies in one chunk, and the message that brought it (a step).
    struct Location {
        Region region{};
        int arrival = -1;
        bool known = false;
    };

    std::pair<std::int64_t, std::int64_t> elements(PieceId piece, int chunk) const {
        return routes_.piece((*step_)[piece.primitive].count, chunk, piece.origin, piece.stripe);
    }

    std::size_t bytes_of(PieceId piece, int chunk) const {
        const auto [begin, end] = elements(piece, chunk);
        return static_cast<std::size_t>((end - begin) * size_);
    }

    Region region(const Slot& slot, PieceId piece, int chunk) {
        const auto [begin, end] = elements(piece, chunk);
        const auto bytes = static_cast<std::size_t>((end - begin) * size_);
        if (slot.temporary < 0)
            return {slot.buffer, static_cast<std::size_t>((slot.offset + begin) * size_), bytes};
        const PieceId& held = part_->temporaries[slot.temporary];
        Location& location = locations_[chunk][slot.temporary];
        if (!location.known) {
            const std::size_t held_bytes = bytes_of(held, chunk);
            location = {{sink_.add_temporary(held_bytes), 0, held_bytes}, -1, true};
        }
        const auto inside = static_cast<std::size_t>((begin - elements(held, chunk).first) * size_);
        return {location.region.buffer, location.region.offset + inside, bytes};
    }

    void begin_step(std::size_t k, const StepOfRank& part) {
        number_ = static_cast<int>(k);
        step_ = &composition_.steps()[k];
        part_ = &part;
        locations_.resize(parameters_.depth);
    }

    void begin_chunk(int chunk) { locations_[chunk].assign(part_->temporaries.size(), {}); }

    void add(int stage_number, int chunk) {
        mark_ = {number_ * routes_.stages() + stage_number, chunk, -1};
        const StageOfRank& stage = part_->stages[stage_number];
        Copy own;
        for (const CopyOfRank& copy : stage.copies) {
            const Region from = region(copy.from, copy.piece, chunk);
            const Region to = region(copy.to, copy.piece, chunk);
            if (from.bytes > 0) own.specs.push_back({from, to, from.bytes, nullptr, 0});
        }
        if (!own.specs.empty()) sink_.add(name("copy"), std::move(own), mark_);
        for (std::size_t begin = 0, end; begin < stage.hops.size(); begin = end) {
            end = begin + 1;
            while (end < stage.hops.size() && stage.hops[end].peer == stage.hops[begin].peer &&
                   stage.hops[end].sending == stage.hops[begin].sending)
                ++end;
            add_messages(std::span(stage.hops).subspan(begin, end - begin), chunk);
        }
        add_reduces(stage.reduces, chunk);
    }

    // Small pieces for one rank travel together, in the same order on both sides; large ones alone.
    void add_messages(std::span<const HopOfRank> hops, int chunk) {
        std::vector<const HopOfRank*> together;
        for (const HopOfRank& hop : hops) {
            const std::size_t bytes = bytes_of(hop.piece, chunk);
            if (bytes == 0) continue;
            if (bytes < parameters_.pack_below) {
                together.push_back(&hop);
            } else {
                const HopOfRank* alone = &hop;
                add_message({&alone, 1}, chunk);
            }
        }
        if (!together.empty()) add_message(together, chunk);
    }

    void add_message(std::span<const HopOfRank* const> hops, int chunk) {
        const HopOfRank& first = *hops[0];
        Mark mark = mark_;
        mark.level = first.level;
        std::vector<Region> regions;
        std::size_t bytes = 0;
        bool joined = true; // one after the other in memory
        for (const HopOfRank* hop : hops) {
            const bool lands = hops.size() > 1 && lands_in_message(*hop, chunk);
            const Region one =
                lands ? Region{0, 0, bytes_of(hop->piece, chunk)} : region(hop->slot, hop->piece, chunk);
            joined = joined && !lands &&
                     (regions.empty() || (regions.back().buffer == one.buffer &&
                                          regions.back().offset + regions.back().bytes == one.offset));
            regions.push_back(one);
            bytes += one.bytes;
        }
        const Region whole = joined ? Region{regions[0].buffer, regions[0].offset, bytes}
                                    : Region{sink_.add_temporary(bytes), 0, bytes};
        Tags& tags = tags_[{first.peer, first.sending}];
        const int tag = tags.next(), library = parameters_.libraries.size() > 1 ? first.level : 0;
        Copy moves; // into or out of the message
        std::size_t offset = 0;
        for (std::size_t k = 0; k < hops.size() && !joined; ++k) {
            const Region inside{whole.buffer, offset, regions[k].bytes};
            if (first.sending)
                moves.specs.push_back({regions[k], inside, inside.bytes, nullptr, 0});
            else if (lands_in_message(*hops[k], chunk))
                locations_[chunk][hops[k]->slot.temporary] = {inside, -1, true};
            else
                moves.specs.push_back({inside, regions[k], inside.bytes, nullptr, 0});
            offset += regions[k].bytes;
        }
        int step;
        if (first.sending) {
            if (!moves.specs.empty()) sink_.add(name("pack for", first.peer), std::move(moves), mark_);
            step = sink_.add(name("to", first.peer), Send{whole, first.peer, tag, library}, mark);
        } else {
            step = sink_.add(name("from", first.peer), Receive{whole, first.peer, tag, library}, mark);
            if (!moves.specs.empty()) sink_.add(name("unpack from", first.peer), std::move(moves), mark_);
            for (const HopOfRank* hop : hops)
                if (hop->slot.temporary >= 0) locations_[chunk][hop->slot.temporary].arrival = step;
        }
        // Two messages with one tag must not overtake each other.
        if (const int before = tags.steps[tag]; before >= 0) sink_.add_need(step, before);
        tags.steps[tag] = step;
    }

    // Whether a piece stays in its received message instead of being moved to a place of its own.
    bool lands_in_message(const HopOfRank& hop, int chunk) const {
        return !hop.sending && hop.slot.temporary >= 0 && !locations_[chunk][hop.slot.temporary].known &&
               part_->temporaries[hop.slot.temporary] == hop.piece;
    }

    // Specs whose inputs arrived with the same messages make one step.
    void add_reduces(const std::vector<ReduceOfRank>& reduces, int chunk) {
        Reduce step;
        std::vector<int> arrivals, before;
        int reduction = -1;
        bool divides = false;
        const auto flush = [&] {
            if (!step.specs.empty()) sink_.add(name("reduce"), std::move(step), mark_);
            step = {};
        };
        for (const ReduceOfRank& reduce : reduces) {
            ReduceSpec spec;
            arrivals.clear();
            for (const Slot& slot : reduce.from) {
                spec.from.push_back(region(slot, reduce.piece, chunk));
                if (slot.temporary >= 0) arrivals.push_back(locations_[chunk][slot.temporary].arrival);
            }
            spec.into = region(reduce.to, reduce.piece, chunk);
            if (spec.into.bytes == 0) continue;
            const Reduction& how = composition_.reductions()[(*step_)[reduce.piece.primitive].reduction];
            const int which = (*step_)[reduce.piece.primitive].reduction;
            if (which != reduction || reduce.last != divides || arrivals != before) {
                flush();
                step.how = how;
                if (!reduce.last) step.how.divide_by = 1;
                reduction = which;
                divides = reduce.last;
                before = arrivals;
            }
            if (!step.specs.empty() && extends(step.specs.back(), spec)) {
                ReduceSpec& last = step.specs.back();
                last.into.bytes += spec.into.bytes;
                for (Region& from : last.from) from.bytes += spec.into.bytes;
            } else {
                step.specs.push_back(std::move(spec));
            }
        }
        flush();
    }

    static bool extends(const ReduceSpec& a, const ReduceSpec& b) {
        const auto follows = [](const Region& x, const Region& y) {
            return x.buffer == y.buffer && x.offset + x.bytes == y.offset;
        };
        if (a.from.size() != b.from.size() || !follows(a.into, b.into)) return false;
        for (std::size_t k = 0; k < a.from.size(); ++k)
            if (!follows(a.from[k], b.from[k])) return false;
        return true;
    }

    std::string name(const char* doing, int peer = -1) const {
        if constexpr (!Sink::named) return {};
        std::string text =
            "stage " + std::to_string(mark_.stage) + " chunk " + std::to_string(mark_.chunk) + ": " + doing;
        return peer < 0 ? text : text + " rank " + std::to_string(peer);
    }

    // Tags of the messages from or to one rank: each its own, as far as they go.
    struct Tags {
        int count = 0;
        std::vector<int> steps; // last with each tag, or -1
        int next() {
            const int tag = count++ % (max_tag + 1);
            if (tag == static_cast<int>(steps.size())) steps.push_back(-1);
            return tag;
        }
    };

    const Composition& composition_;
    const PlanParameters& parameters_;
    const Routes& routes_;
    int rank_;
    std::int64_t size_; // of an element
    Sink& sink_;
    const std::vector<Primitive>* step_ = nullptr;
    const StepOfRank* part_ = nullptr;
    int number_ = 0;                               // of the step
    std::vector<std::vector<Location>> locations_; // by chunk and temporary slot
    std::map<std::pair<int, bool>, Tags> tags_;
    Mark mark_;
};

} // namespace jali
