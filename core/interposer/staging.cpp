#include "interposer/staging.hpp"
#include "messaging/mpi_devices.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <utility>

namespace jali::interposer {

namespace {

// Blocking streams of a context wait for it, and it for them.
void* const the_default_stream = nullptr;

// In order; those that touch become one.
void join(std::vector<ByteRange>& ranges) {
    std::ranges::sort(ranges, {}, &ByteRange::begin);
    std::size_t kept = 0;
    for (const ByteRange& range : ranges)
        if (kept > 0 && range.begin <= ranges[kept - 1].end)
            ranges[kept - 1].end = std::max(ranges[kept - 1].end, range.end);
        else
            ranges[kept++] = range;
    ranges.resize(kept);
}

} // namespace

bool mpi_takes_memory_of(const GpuVendor& vendor) {
    static std::mutex mutex;
    static std::map<const GpuVendor*, bool> known;
    std::lock_guard lock(mutex);
    const auto found = known.find(&vendor);
    if (found != known.end()) return found->second;
    const bool takes = why_mpi_takes_no_devices(MpiAbi::find(""), mpi().world, vendor.name).empty();
    return known.emplace(&vendor, takes).first->second;
}

namespace {

// Null: there are none.
const void* first_byte(const void* address, const std::vector<Elements>& elements) {
    for (const Elements& each : elements) {
        if (each.count <= 0) continue;
        const auto layout = layout_of(each.type);
        if (layout->size > 0)
            return static_cast<const std::byte*>(address) + each.offset +
                   bounds_of(*layout, each.count).begin;
    }
    return nullptr;
}

// From MPI_BOTTOM a type may lead anywhere.
void refuse_mixtures(const std::vector<Elements>& elements, bool on_devices) {
    for (const Elements& each : elements) {
        if (each.count <= 0) continue;
        for (const ByteRange& range : layout_of(each.type)->ranges)
            if (on_device(reinterpret_cast<const void*>(each.offset + range.begin)) != on_devices)
                throw std::invalid_argument(
                    "a type with parts on the host and parts on devices; send them apart");
    }
}

} // namespace

bool may_be_on_device(const void* address, const std::vector<Elements>& elements) {
    const void* const first = first_byte(address, elements);
    return first != nullptr && (address == nullptr || on_device(first));
}

void* Staging::give(const void* address, const std::vector<Elements>& elements, Use use) {
    // The address itself may be none: MPI_BOTTOM.
    const void* const first = first_byte(address, elements);
    if (first == nullptr) return const_cast<void*>(address);
    const bool is_host = !on_device(first);
    if (address == nullptr) refuse_mixtures(elements, !is_host);
    if (is_host) return const_cast<void*>(address);
    Argument argument;
    argument.address = reinterpret_cast<GpuAddress>(address);
    argument.use = use;
    argument.all_dense = true;
    argument.memory = device_memory(first);
    if (mpi_takes_memory_of(argument.memory.gpu->vendor())) return const_cast<void*>(address);
    std::int64_t begin = std::numeric_limits<std::int64_t>::max(),
                 end = std::numeric_limits<std::int64_t>::min();
    for (const Elements& each : elements) {
        std::shared_ptr<const TypeLayout> layout = layout_of(each.type);
        if (each.count <= 0 || layout->size == 0) continue;
        const ByteRange bounds = bounds_of(*layout, each.count);
        begin = std::min(begin, each.offset + bounds.begin);
        end = std::max(end, each.offset + bounds.end);
        argument.all_dense = argument.all_dense && layout->dense;
        argument.groups.push_back({each.offset, each.count, std::move(layout)});
    }
    argument.begin = begin;
    const InContextOf current(argument.memory);
    argument.pinned =
        argument.memory.gpu->allocate_pinned(static_cast<std::size_t>(end - begin), "messages of MPI");
    // Of a message that may be shorter than its type, the missing rest must be preserved.
    if (use == Use::read || use == Use::both || (use == Use::received && !argument.all_dense))
        copy_in(argument);
    arguments_.push_back(std::move(argument));
    return arguments_.back().pinned.data() - begin;
}

void Staging::read() {
    for (Argument& argument : arguments_) {
        if (argument.use == Use::written || (argument.use == Use::received && argument.all_dense)) continue;
        const InContextOf current(argument.memory);
        copy_in(argument);
    }
}

void Staging::copy_in(Argument& argument) {
    const GpuApi& api = argument.memory.gpu->api();
    const auto copied = [&](const std::vector<ByteRange>& ranges) {
        int error = gpu_success;
        for (const ByteRange& range : ranges) {
            error = api.copy_out(argument.pinned.data() + (range.begin - argument.begin),
                                 argument.address + range.begin,
                                 static_cast<std::size_t>(range.end - range.begin), the_default_stream);
            if (error != gpu_success) return error;
            bytes_ += range.end - range.begin;
        }
        return error;
    };
    std::vector<ByteRange> whole, parts;
    for (const Group& group : argument.groups) {
        const ByteRange bounds = bounds_of(*group.layout, group.count);
        whole.push_back({group.offset + bounds.begin, group.offset + bounds.end});
    }
    join(whole);
    // Gaps may be large, or no memory at all.
    std::int64_t data = 0, spanned = 0;
    for (const Group& group : argument.groups) data += group.count * group.layout->size;
    for (const ByteRange& range : whole) spanned += range.end - range.begin;
    constexpr std::int64_t little = std::int64_t{1} << 22;
    int error = argument.all_dense || spanned < std::max(little, 4 * data) ? copied(whole) : gpu_not_ready;
    if (error != gpu_success && !argument.all_dense) {
        for (const Group& group : argument.groups)
            for (std::int64_t k = 0; k < group.count; ++k)
                for (const ByteRange& range : group.layout->ranges)
                    parts.push_back({group.offset + k * group.layout->extent + range.begin,
                                     group.offset + k * group.layout->extent + range.end});
        join(parts);
        error = copied(parts);
    }
    api.check(error, "copying what MPI sends to the host");
    api.check(api.stream_synchronize(the_default_stream), "copying what MPI sends to the host");
}

void Staging::write_back(std::int64_t received) {
    for (Argument& argument : arguments_)
        if (argument.use != Use::read) {
            const InContextOf current(argument.memory);
            copy_back(argument, argument.use == Use::received ? received : -1);
        }
}

void Staging::copy_back(Argument& argument, std::int64_t received) {
    const GpuApi& api = argument.memory.gpu->api();
    ByteRange next{0, 0};
    const auto flush = [&] {
        if (next.end == next.begin) return;
        api.check(api.copy_in(argument.address + next.begin,
                              argument.pinned.data() + (next.begin - argument.begin),
                              static_cast<std::size_t>(next.end - next.begin), the_default_stream),
                  "copying what MPI has received to the device");
        bytes_ += next.end - next.begin;
    };
    const auto add = [&](std::int64_t begin, std::int64_t end) { // adjacent ranges are merged
        if (begin == next.end && next.end != next.begin) {
            next.end = end;
            return;
        }
        flush();
        next = {begin, end};
    };
    for (const Group& group : argument.groups) {
        const TypeLayout& layout = *group.layout;
        if (layout.dense) {
            const std::int64_t bytes = group.count * layout.size;
            add(group.offset, group.offset + (received < 0 ? bytes : std::min(bytes, received)));
            continue;
        }
        for (std::int64_t k = 0; k < group.count; ++k)
            for (const ByteRange& range : layout.ranges)
                add(group.offset + k * layout.extent + range.begin,
                    group.offset + k * layout.extent + range.end);
    }
    flush();
    api.check(api.stream_synchronize(the_default_stream), "copying what MPI has received to the device");
}

} // namespace jali::interposer
