#include "schedule/builder.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <memory_resource>

namespace jali {

namespace {

// Calls visit(region, writes) for every region of a step.
template <class Action, class Visit>
void for_each_region(Action& action, Visit visit) {
    std::visit(
        [&](auto& a) {
            using A = std::remove_cvref_t<decltype(a)>;
            if constexpr (std::is_same_v<A, Receive>) {
                visit(a.into, true);
            } else if constexpr (std::is_same_v<A, Send>) {
                visit(a.from, false);
            } else if constexpr (std::is_same_v<A, LibraryCollective>) {
                for (auto& region : a.reads) visit(region, false);
                for (auto& region : a.writes) visit(region, true);
            } else if constexpr (std::is_same_v<A, Copy>) {
                for (auto& spec : a.specs) {
                    visit(spec.from, false);
                    visit(spec.to, true);
                }
            } else if constexpr (std::is_same_v<A, Reduce>) {
                for (auto& spec : a.specs) {
                    for (auto& from : spec.from) visit(from, false);
                    visit(spec.into, true);
                }
            } else if constexpr (std::is_same_v<A, Kernel>) {
                for (auto& part : a.reads)
                    for (auto& region : part) visit(region, false);
                for (auto& part : a.writes)
                    for (auto& region : part) visit(region, true);
            }
        },
        action);
}

// The last writer and the readers since, by intervals of one buffer.
class History {
  public:
    // Puts the steps that `step` must follow into `needs`.
    void read(std::size_t begin, std::size_t end, int step, std::vector<int>& needs) {
        if (begin == end) return;
        auto at = cut(begin);
        std::size_t covered = begin;
        while (covered < end) {
            if (at == parts_.end() || at->first >= end) { // the rest is untouched
                parts_.emplace_hint(at, covered, Part{end, -1, step, {}});
                return;
            }
            if (at->first > covered) {
                parts_.emplace_hint(at, covered, Part{at->first, -1, step, {}});
                covered = at->first;
                continue;
            }
            if (at->second.end > end) split(at, end);
            Part& part = at->second;
            if (part.writer >= 0 && part.writer != step) needs.push_back(part.writer);
            part.add_reader(step);
            covered = part.end;
            ++at;
        }
    }

    void write(std::size_t begin, std::size_t end, int step, std::vector<int>& needs) {
        if (begin == end) return;
        auto at = cut(begin);
        const auto first = at;
        while (at != parts_.end() && at->first < end) {
            if (at->second.end > end) split(at, end);
            const Part& part = at->second;
            // Readers ran after the writer.
            if (part.writer >= 0 && part.writer != step && (part.reader < 0 || part.reader == step))
                needs.push_back(part.writer);
            if (part.reader >= 0 && part.reader != step) needs.push_back(part.reader);
            for (int reader : part.more_readers)
                if (reader != step) needs.push_back(reader);
            ++at;
        }
        if (first != at && first->first == begin) {
            first->second = Part{end, step, -1, {}};
            parts_.erase(std::next(first), at);
        } else {
            const auto hint = parts_.erase(first, at);
            parts_.emplace_hint(hint, begin, Part{end, step, -1, {}});
        }
    }

  private:
    struct Part {
        std::size_t end;
        int writer; // -1: nobody yet
        int reader; // the first since then, -1: none
        std::vector<int> more_readers;

        void add_reader(int step) {
            if (reader < 0)
                reader = step;
            else if (reader != step && (more_readers.empty() || more_readers.back() != step))
                more_readers.push_back(step);
        }
    };
    using Parts = std::pmr::map<std::size_t, Part>;

    void split(Parts::iterator at, std::size_t where) {
        Part rest = at->second;
        at->second.end = where;
        parts_.emplace_hint(std::next(at), where, std::move(rest));
    }

    // The first part that reaches beyond `begin`, cut so that it does not begin before it.
    Parts::iterator cut(std::size_t begin) {
        auto at = parts_.upper_bound(begin);
        if (at == parts_.begin()) return at;
        auto before = std::prev(at);
        if (before->second.end <= begin) return at;
        if (before->first == begin) return before;
        split(before, begin);
        return std::next(before);
    }

    // Plans for thousands of ranks touch hundreds of thousands of intervals.
    std::unique_ptr<std::pmr::unsynchronized_pool_resource> memory_ =
        std::make_unique<std::pmr::unsynchronized_pool_resource>();
    Parts parts_{memory_.get()};
};

struct Life {
    int temporary, first, last; // steps
};

// Free ranges of the scratch, by address.
class FreeRanges {
  public:
    explicit FreeRanges(std::size_t limit) { ranges_[0] = limit; }

    // Searches from the end of the last search, so that a place stays unused as long as possible; or,
    // `lowest`, from the beginning. Returns false if no place is large enough.
    bool take(std::size_t bytes, bool lowest, std::size_t& offset) {
        auto start = lowest ? ranges_.begin() : ranges_.lower_bound(next_);
        for (auto at = start; at != ranges_.end(); ++at)
            if (fits(at, bytes, offset)) return true;
        for (auto at = ranges_.begin(); at != start; ++at)
            if (fits(at, bytes, offset)) return true;
        return false;
    }

    void give(std::size_t offset, std::size_t bytes) {
        if (bytes == 0) return;
        auto at = ranges_.emplace(offset, bytes).first;
        if (auto after = std::next(at); after != ranges_.end() && offset + bytes == after->first) {
            at->second += after->second;
            ranges_.erase(after);
        }
        if (at != ranges_.begin()) {
            auto before = std::prev(at);
            if (before->first + before->second == offset) {
                before->second += at->second;
                ranges_.erase(at);
            }
        }
    }

  private:
    bool fits(std::map<std::size_t, std::size_t>::iterator at, std::size_t bytes, std::size_t& offset) {
        if (at->second < bytes) return false;
        offset = at->first;
        const std::size_t rest = at->second - bytes;
        ranges_.erase(at);
        if (rest > 0) ranges_[offset + bytes] = rest;
        next_ = offset + bytes;
        return true;
    }

    std::map<std::size_t, std::size_t> ranges_; // offset -> bytes
    std::size_t next_ = 0;
};

} // namespace

int ScheduleBuilder::add_buffer(std::string name, std::size_t bytes, bool holds_data) {
    buffers_.push_back({std::move(name), bytes, holds_data});
    return static_cast<int>(buffers_.size()) - 1;
}

int ScheduleBuilder::add_temporary(std::size_t bytes) {
    temporaries_.push_back((bytes + alignment - 1) / alignment * alignment);
    return -static_cast<int>(temporaries_.size());
}

int ScheduleBuilder::add(std::string name, Action action, Mark mark) {
    steps_.push_back({std::move(name), std::move(action), mark});
    return static_cast<int>(steps_.size()) - 1;
}

std::vector<std::size_t> ScheduleBuilder::allocate_temporaries(std::size_t limit, std::size_t& total) const {
    std::vector<std::size_t> offsets(temporaries_.size(), 0);
    total = 0;
    for (std::size_t k = 0; k < temporaries_.size(); ++k) {
        offsets[k] = total;
        total += temporaries_[k];
    }
    if (total <= limit) return offsets;

    std::vector<Life> lives(temporaries_.size());
    for (std::size_t k = 0; k < lives.size(); ++k) lives[k] = {static_cast<int>(k), -1, -1};
    for (std::size_t s = 0; s < steps_.size(); ++s) {
        for_each_region(steps_[s].action, [&](const Region& region, bool) {
            if (region.buffer >= 0) return;
            Life& life = lives[-1 - region.buffer];
            if (life.first < 0) life.first = static_cast<int>(s);
            life.last = static_cast<int>(s);
        });
    }
    std::erase_if(lives, [](const Life& life) { return life.first < 0; });
    std::vector<Life> ends = lives;
    std::stable_sort(lives.begin(), lives.end(), [](auto& a, auto& b) { return a.first < b.first; });
    std::stable_sort(ends.begin(), ends.end(), [](auto& a, auto& b) { return a.last < b.last; });

    // Longest unused places first; if that leaves too many holes, the lowest place each time.
    for (bool lowest : {false, true}) {
        FreeRanges free(lowest ? std::numeric_limits<std::size_t>::max() / 2 : limit);
        total = 0;
        std::size_t ended = 0;
        bool fits = true;
        for (const Life& life : lives) {
            for (; ended < ends.size() && ends[ended].last < life.first; ++ended)
                free.give(offsets[ends[ended].temporary], temporaries_[ends[ended].temporary]);
            const std::size_t bytes = temporaries_[life.temporary];
            if (bytes == 0) continue;
            if (!free.take(bytes, lowest, offsets[life.temporary])) {
                fits = false;
                break;
            }
            total = std::max(total, offsets[life.temporary] + bytes);
        }
        if (fits && total <= limit) return offsets;
    }
    throw ScratchError("the scratch of " + std::to_string(limit) +
                           " bytes does not suffice: " + std::to_string(total) + " are needed",
                       total);
}

Schedule ScheduleBuilder::finish(std::size_t scratch_limit) {
    std::size_t total = 0;
    const auto offsets = allocate_temporaries(scratch_limit, total);
    Schedule schedule;
    for (const Buffer& buffer : buffers_) schedule.add_buffer(buffer.name, buffer.bytes, buffer.holds_data);
    const int scratch = schedule.add_buffer("scratch", total, false);

    std::vector<History> histories(buffers_.size() + 1);
    std::vector<int> needs;
    std::stable_sort(extra_needs_.begin(), extra_needs_.end());
    auto extra = extra_needs_.begin();
    for (std::size_t s = 0; s < steps_.size(); ++s) {
        Draft& draft = steps_[s];
        const int step = static_cast<int>(s);
        needs.clear();
        for_each_region(draft.action, [&](Region& region, bool) {
            if (region.buffer >= 0) return;
            region.offset += offsets[-1 - region.buffer];
            region.buffer = scratch;
        });
        for (bool writing : {false, true}) {
            for_each_region(draft.action, [&](const Region& region, bool writes) {
                if (writes != writing) return;
                History& history = histories[region.buffer];
                if (writes)
                    history.write(region.offset, region.offset + region.bytes, step, needs);
                else
                    history.read(region.offset, region.offset + region.bytes, step, needs);
            });
        }
        for (; extra != extra_needs_.end() && extra->first == step; ++extra) needs.push_back(extra->second);
        std::sort(needs.begin(), needs.end());
        needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
        std::vector<Port> ports;
        ports.reserve(needs.size());
        for (int need : needs) ports.push_back({need, 0});
        std::visit(
            [&](auto&& action) {
                using A = std::remove_cvref_t<decltype(action)>;
                if constexpr (std::is_same_v<A, Kernel>)
                    schedule.add_kernel(std::move(draft.name), std::move(action),
                                        {Part{"", std::move(ports)}});
                else
                    schedule.add(std::move(draft.name), std::move(action), std::move(ports), draft.mark);
            },
            std::move(draft.action));
    }
    steps_.clear();
    return schedule;
}

} // namespace jali
