#include "schedule/ordered_events.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace jali {

namespace {

// To bytes and back.

template <class Archive>
void members(Archive& archive, Combination& c) {
    archive(c.to, c.from, c.how, c.divide_by);
}
template <class Archive>
void members(Archive& archive, Value& v) {
    archive(v.how, v.divide_by, v.terms);
}
template <class Archive>
void members(Archive& archive, OrderedEvent& m) {
    archive(m.name, m.launch, m.waiting, m.after, m.reads, m.writes, m.words, m.waits, m.signals, m.expects,
            m.holds, m.results, m.moves, m.combinations);
}
template <class Archive>
void members(Archive& archive, MemoryExtent& m) {
    archive(m.where, m.part, m.name);
}
template <class Archive>
void members(Archive& archive, RankEvents& r) {
    archive(r.rank, r.events, r.footprints, r.sites, r.words, r.passages, r.operations, r.values, r.said,
            r.launches, r.filled, r.memory);
}

template <class T>
constexpr bool is_list = false;
template <class T>
constexpr bool is_list<std::vector<T>> = true;
template <>
constexpr bool is_list<std::string> = true;

// One class for both ways, so that they cannot part.
class Archive {
  public:
    Archive() = default; // to bytes
    explicit Archive(std::span<const std::byte> from) : from_(from), reads_(true) {}

    template <class... T>
    void operator()(T&... values) {
        (one(values), ...);
    }
    std::vector<std::byte> out;

  private:
    void raw(void* data, std::size_t bytes) {
        if (bytes == 0) return;
        if (!reads_) {
            const auto* begin = static_cast<const std::byte*>(data);
            out.insert(out.end(), begin, begin + bytes);
            return;
        }
        if (bytes > from_.size()) throw ScheduleError("the events of a rank came incomplete");
        std::memcpy(data, from_.data(), bytes);
        from_ = from_.subspan(bytes);
    }
    template <class T>
    void one(T& value) {
        if constexpr (is_list<T>) {
            std::uint64_t count = value.size();
            raw(&count, sizeof count);
            if (reads_ && count > from_.size()) throw ScheduleError("the events of a rank came incomplete");
            value.resize(count);
            if constexpr (std::is_trivially_copyable_v<typename T::value_type>) {
                raw(value.data(), count * sizeof(typename T::value_type));
            } else {
                for (auto& element : value) one(element);
            }
        } else if constexpr (std::is_trivially_copyable_v<T>) {
            raw(&value, sizeof value);
        } else {
            members(*this, value);
        }
    }
    std::span<const std::byte> from_;
    bool reads_ = false;
};

} // namespace

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
    a ^= b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2);
    return a * 0xff51afd7ed558ccdu;
}

std::int32_t number_of(std::vector<CombiningOperation>& known, const CombiningOperation& operation) {
    const auto found = std::find(known.begin(), known.end(), operation);
    if (found == known.end()) known.push_back(operation);
    return static_cast<std::int32_t>(std::find(known.begin(), known.end(), operation) - known.begin());
}

std::vector<std::byte> RankEvents::to_bytes() const {
    Archive archive;
    archive(const_cast<RankEvents&>(*this)); // only read
    return std::move(archive.out);
}

RankEvents RankEvents::from_bytes(std::span<const std::byte> bytes) {
    RankEvents events;
    Archive archive(bytes);
    archive(events);
    return events;
}

} // namespace jali
