#include "proof/launched_program.hpp"

#include <cstring>
#include <span>
#include <tuple>
#include <type_traits>

namespace jali {

namespace {

using std::to_string;

constexpr auto check = check_collective;

template <class Entry>
constexpr std::int64_t words_of = sizeof(Entry) / sizeof(std::int64_t);

} // namespace

LaunchedProgram::LaunchedProgram(CallDecoder& decoder, const RecordedPlan& plan, const DriverCall& call)
    : plan(&plan), a(CallDecoder::arguments_of<CollectiveArguments>(call)), threads(call.threads) {
    read_table(decoder);
    check(a.channels > 0 && a.channels <= static_cast<std::int64_t>(call.blocks),
          "has " + to_string(a.channels) + " channels and " + to_string(call.blocks) + " blocks");
    check(a.iterations > 0, "has " + to_string(a.iterations) + " iterations");
    check(threads > 0 && threads % plan.warp == 0,
          "has blocks of " + to_string(threads) + " threads, of which a warp has " + to_string(plan.warp));
    if (a.ranks > 0) {
        check(a.rank == decoder.rank(), "takes itself for rank " + to_string(a.rank));
        memories = decoder.entries<GpuAddress>(a.memories, a.ranks);
        check(a.slots > 0 && (a.slots & (a.slots - 1)) == 0 && a.slot_bytes > 0,
              "has queues of " + to_string(a.slots) + " slots");
        const std::int64_t pairs = a.channels * a.ranks;
        const auto inside = [&](std::int64_t begin, std::int64_t bytes) {
            check(begin >= 0 && begin + bytes <= static_cast<std::int64_t>(plan.queue_bytes),
                  "uses memory behind that of its queues");
        };
        inside(a.freed, pairs * 8);
        if (plan.wire == Wire::slotted) inside(a.arrived, pairs * a.slots * 8);
        inside(a.queues, pairs * a.slots * a.slot_bytes);
    }
    for (const DeviceInstruction& i : instructions) check_instruction(i);
    check_regions();
    check_messages();
}

void LaunchedProgram::read_table(CallDecoder& decoder) {
    for (const std::int64_t count : {a.instructions, a.sources, a.actions, a.waits, a.ranks})
        check(count >= 0 && count <= a.table_words, "has " + to_string(count) +
                                                        " entries of a kind in a table of " +
                                                        to_string(a.table_words) + " words");
    const std::int64_t words = a.instructions * words_of<DeviceInstruction> +
                               a.sources * words_of<DeviceOperand> + a.actions * words_of<DeviceAction> +
                               a.waits * words_of<DeviceWait> + a.ranks;
    check(words == a.table_words,
          "has a table of " + to_string(a.table_words) + " words, and reads " + to_string(words));
    std::vector<std::int64_t> table;
    if (words <= small_table_words) {
        table.assign(a.small_table, a.small_table + words);
    } else {
        table = decoder.entries<std::int64_t>(a.table, words);
    }
    std::span<const std::int64_t> rest = table;
    const auto take = [&](auto& entries, std::int64_t count) {
        using Entry = typename std::remove_reference_t<decltype(entries)>::value_type;
        entries.resize(static_cast<std::size_t>(count));
        const std::size_t bytes = entries.size() * sizeof(Entry);
        if (bytes > 0) std::memcpy(static_cast<void*>(entries.data()), rest.data(), bytes);
        rest = rest.subspan(bytes / sizeof(std::int64_t));
    };
    take(instructions, a.instructions);
    take(sources, a.sources);
    take(actions, a.actions);
    take(waits, a.waits);
    take(per_iteration, 2 * a.ranks);
}

void LaunchedProgram::check_operand(const DeviceOperand& o, const DeviceInstruction& i, bool target) const {
    if (o.where >= 0) {
        const auto b = static_cast<std::size_t>(o.where);
        check(b < plan->buffers.size(), "uses buffer " + to_string(o.where));
        const RecordedPlan::Buffer& buffer = plan->buffers[b];
        const auto begin =
            static_cast<std::int64_t>(a.buffers[b] - buffer.address) + o.offset; // from its real address
        check(begin >= 0 && static_cast<std::uint64_t>(begin + i.bytes) <= buffer.bytes,
              "uses bytes " + to_string(begin) + " to " + to_string(begin + i.bytes) + " of buffer " +
                  to_string(o.where) + ", which has " + to_string(buffer.bytes));
        return;
    }
    const std::int64_t peer = ~o.where;
    check(peer < a.ranks, "has messages with rank " + to_string(peer));
    const std::int32_t most = per_iteration[static_cast<std::size_t>(2 * peer + (target ? 0 : 1))];
    check(o.packet >= 0 && o.packet < most, "has message " + to_string(o.packet) + " of " + to_string(most) +
                                                (target ? " to rank " : " from rank ") + to_string(peer));
    check((std::min(i.bytes, i.chunk) + 15) / 16 * packet_bytes() <= a.slot_bytes,
          "has slices of " + to_string(i.chunk) + " bytes for slots of " + to_string(a.slot_bytes));
}

void LaunchedProgram::check_instruction(const DeviceInstruction& i) const {
    check(i.bytes > 0 && i.chunk > 0 && i.chunk % 16 == 0,
          "has " + to_string(i.bytes) + " bytes in slices of " + to_string(i.chunk));
    const std::int64_t slices = a.channels * iterations();
    check(i.chunk >= (i.bytes + slices - 1) / slices, "leaves a part of " + to_string(i.bytes) +
                                                          " bytes out, in " + to_string(slices) +
                                                          " slices of " + to_string(i.chunk));
    check(i.sources > 0 && i.first_source >= 0 && i.first_source + i.sources <= a.sources,
          "has an instruction with sources that its table has not");
    check(i.meets == 0 || (i.first_action >= 0 && i.actions >= 0 && i.first_wait >= 0 && i.waits >= 0 &&
                           i.first_action + i.actions <= a.actions && i.first_wait + i.waits <= a.waits),
          "has an instruction with words that its table has not");
    check(plan->combines || (i.sources == 1 && i.divide_by == 1), "that only moves is asked to combine");
    check(i.divide_by >= 1, "divides by " + to_string(i.divide_by));
    check_operand(i.to, i, true);
    for (std::int32_t s = 0; s < i.sources; ++s) check_operand(sources[i.first_source + s], i, false);
}

void LaunchedProgram::check_messages() const {
    std::vector<std::vector<std::int32_t>> made(per_iteration.size()); // [rank][2][message]: how often
    for (std::size_t k = 0; k < made.size(); ++k) {
        check(per_iteration[k] >= 0 && per_iteration[k] <= a.table_words,
              "counts " + to_string(per_iteration[k]) + " messages in an iteration");
        made[k].assign(static_cast<std::size_t>(per_iteration[k]), 0);
    }
    for (const DeviceInstruction& i : instructions) {
        if (i.to.where < 0) ++made[2 * ~i.to.where][i.to.packet];
        for (std::int32_t s = 0; s < i.sources; ++s)
            if (const DeviceOperand& o = sources[i.first_source + s]; o.where < 0)
                ++made[2 * ~o.where + 1][o.packet];
    }
    for (std::size_t k = 0; k < made.size(); ++k)
        for (const std::int32_t times : made[k])
            check(k % 2 == 0 ? times == 1 : times > 0,
                  k % 2 == 0 ? "sends a message " + to_string(times) + " times to rank " + to_string(k / 2)
                             : "counts a message of rank " + to_string(k / 2) + " that it does not read");
}

void LaunchedProgram::check_regions() const {
    struct Use {
        std::uint64_t begin, end;
        std::int64_t chunk;
        bool written;
    };
    std::vector<Use> uses;
    for (const DeviceInstruction& i : instructions) {
        const auto use = [&](const DeviceOperand& o, bool written) {
            if (o.where < 0) return;
            const std::uint64_t begin = a.buffers[o.where] + static_cast<std::uint64_t>(o.offset);
            uses.push_back({begin, begin + static_cast<std::uint64_t>(i.bytes), i.chunk, written});
        };
        use(i.to, true);
        for (std::int32_t s = 0; s < i.sources; ++s) use(sources[i.first_source + s], false);
    }
    std::sort(uses.begin(), uses.end(),
              [](const Use& x, const Use& y) { return std::tie(x.begin, x.end) < std::tie(y.begin, y.end); });
    for (std::size_t i = 0; i < uses.size(); ++i)
        for (std::size_t j = i + 1; j < uses.size() && uses[j].begin < uses[i].end; ++j)
            check((!uses[i].written && !uses[j].written) ||
                      (uses[i].begin == uses[j].begin && uses[i].end == uses[j].end &&
                       uses[i].chunk == uses[j].chunk),
                  "uses bytes that overlap in part, or in other slices, and writes some of them");
}

} // namespace jali
