// The pool of a device's memory: it allocates blocks and keeps freed ones.
//
// Memory consists of the driver's ordinary allocations or, where other processes map it by file descriptors,
// of segments with a handle each: a large block is a segment, small blocks share one. The two are never
// mixed: on all ranks the same allocation yields the same kind of memory, whatever was freed before, since
// libraries of collectives treat them differently and wait for ever if the kinds differ between ranks
// (peers/ccl_operations).
#include "device/gpu.hpp"
#include "device/memory_blocks.hpp"

#include <algorithm>
#include <utility>

namespace jali {

namespace {

constexpr std::size_t small_unit = 512, big_unit = std::size_t{2} << 20;

// Sizes of blocks in the pool: few enough that freed blocks fit again.
std::size_t pool_size(std::size_t bytes) {
    if (bytes >= big_unit) return (bytes + big_unit - 1) / big_unit * big_unit;
    std::size_t size = small_unit;
    while (size < bytes) size *= 2;
    return size;
}

} // namespace

GpuAddress Gpu::plain_from_driver(std::size_t bytes) {
    GpuAddress address = 0;
    const int error = api_.allocate(&address, bytes);
    if (error == gpu_out_of_memory) return 0;
    if (error != gpu_success) api_.fail(error, "allocating " + readable_bytes(bytes) + " on " + name_);
    return address;
}

GpuAddress Gpu::virtual_from_driver(std::size_t bytes) {
    VirtualBlock block;
    try {
        block = make_virtual(api_, device_, std::max(bytes, big_unit), network_reads_virtual_);
    } catch (const GpuError& error) {
        throw GpuError(
            "allocating " + readable_bytes(bytes) + " on " + name_ +
            " that other processes can map by file descriptors" +
            (forced_handle_type_ ? " (JALI_PEER_HANDLES=virtual; auto chooses a type that works)" : "") +
            ": " + error.what());
    }
    if (block.address == 0) return 0;
    std::lock_guard lock(mutex_);
    segments_[block.address] = {block, 1};
    if (bytes < big_unit) // the first one is handed out
        for (std::size_t at = bytes; at + bytes <= block.bytes; at += bytes)
            free_.emplace(bytes, block.address + at);
    return block.address;
}

GpuAddress Gpu::from_driver(std::size_t bytes, bool with_handle) {
    const CurrentGpu current(*this);
    return with_handle ? virtual_from_driver(bytes) : plain_from_driver(bytes);
}

GpuMemory Gpu::allocate(std::size_t bytes, std::string_view label, bool own_pages) {
    return allocate_of_kind(bytes, label, own_pages, handle_type() == HandleType::descriptor);
}

GpuMemory Gpu::allocate_without_handle(std::size_t bytes, std::string_view label) {
    return allocate_of_kind(bytes, label, true, false);
}

GpuMemory Gpu::allocate_of_kind(std::size_t bytes, std::string_view label, bool own_pages, bool with_handle) {
    const std::size_t wanted = pool_size(std::max<std::size_t>(bytes, own_pages ? big_unit : 1));
    GpuMemory memory;
    {
        std::lock_guard lock(mutex_);
        auto found = free_.lower_bound(wanted);
        // symmetric arrays have handles anyway; what was allocated before handles were wanted has none
        while (found != free_.end() && (segment_of(found->second) != nullptr) != with_handle) ++found;
        if (found != free_.end() && found->first <= wanted + wanted / 8) {
            memory.held_ = found->first;
            memory.address_ = found->second;
            free_.erase(found);
            if (Segment* segment = segment_of(memory.address_)) ++segment->in_use;
        }
    }
    if (memory.address_ == 0) take(memory, wanted, bytes, label, with_handle);
    return booked(std::move(memory), bytes, label);
}

std::size_t Gpu::with_handle_size(std::size_t bytes) {
    return pool_size(std::max(bytes, big_unit));
}

GpuMemory Gpu::allocate_with_handle(std::size_t bytes, std::string_view label) {
    const std::size_t wanted = with_handle_size(bytes);
    GpuMemory memory;
    {
        std::lock_guard lock(mutex_);
        const auto [first, last] = free_.equal_range(wanted);
        for (auto found = first; found != last && memory.address_ == 0; ++found) {
            Segment* segment = segment_of(found->second);
            if (segment == nullptr) continue;
            memory.held_ = wanted;
            memory.address_ = found->second;
            ++segment->in_use;
            free_.erase(found);
            break;
        }
    }
    if (memory.address_ == 0) take(memory, wanted, bytes, label, true);
    return booked(std::move(memory), wanted, label);
}

// Allocates from the driver; if it has no memory left, the pool's free memory is returned to it first.
void Gpu::take(GpuMemory& memory, std::size_t wanted, std::size_t bytes, std::string_view label,
               bool with_handle) {
    memory.held_ = wanted;
    memory.address_ = wanted <= total_memory_ ? from_driver(wanted, with_handle) : 0;
    if (memory.address_ == 0 && cached() > 0) {
        trim();
        memory.address_ = from_driver(wanted, with_handle);
    }
    if (memory.address_ == 0)
        ledger_.refuse(bytes, label,
                       "only " + readable_bytes(free_memory()) + " of " + readable_bytes(total_memory_) +
                           " are left on device " + std::to_string(ordinal_) + " (" + name_ + ")",
                       "device");
}

GpuMemory Gpu::booked(GpuMemory memory, std::size_t bytes, std::string_view label) {
    memory.size_ = bytes;
    memory.label_ = ledger_.book(bytes, label);
    book_block(memory.address_, bytes, memory.label_);
    memory.gpu_ = shared_from_this();
    return memory;
}

GpuAddress Gpu::fine_from_driver(std::size_t bytes, std::string& trouble) {
    const CurrentGpu current(*this);
    if (api_.allocate_with == nullptr) {
        const auto name = vendor().functions.find("allocate_with");
        trouble = "the driver lacks " + (name == vendor().functions.end() ? "such memory" : name->second);
        return 0;
    }
    GpuAddress address = 0;
    const int error = api_.allocate_with(&address, bytes, vendor().fine_grained);
    if (error != gpu_success) trouble = api_.text_of(error);
    return error == gpu_success ? address : 0;
}

GpuMemory Gpu::allocate_fine(std::size_t bytes, std::string_view label) {
    if (vendor().fine_grained == 0) return allocate(bytes, label, true);
    GpuMemory memory;
    const std::size_t wanted = pool_size(std::max(bytes, big_unit));
    {
        std::lock_guard lock(mutex_);
        const auto found = free_fine_.lower_bound(wanted);
        if (found != free_fine_.end() && found->first <= wanted + wanted / 8) {
            memory.held_ = found->first;
            memory.address_ = found->second;
            free_fine_.erase(found);
        }
    }
    if (memory.address_ == 0) {
        std::string trouble;
        memory.held_ = wanted;
        memory.address_ = fine_from_driver(wanted, trouble);
        if (memory.address_ == 0)
            throw GpuError("allocating " + readable_bytes(wanted) + " of fine-grained memory on " + name_ +
                           ": " + trouble);
    }
    memory.fine_ = true;
    return booked(std::move(memory), bytes, label);
}

std::string Gpu::why_no_fine_memory() {
    if (vendor().fine_grained == 0) return "";
    std::string trouble;
    {
        std::lock_guard lock(mutex_);
        if (!free_fine_.empty()) return "";
    }
    const GpuAddress address = fine_from_driver(big_unit, trouble);
    if (address == 0) return trouble;
    std::lock_guard lock(mutex_);
    free_fine_.emplace(big_unit, address); // for the next allocation
    return "";
}

void Gpu::free_allocation(GpuMemory& memory) noexcept {
    strike_block(memory.address_);
    ledger_.strike(memory.size_, memory.label_);
    std::lock_guard lock(mutex_);
    if (memory.fine_) {
        free_fine_.emplace(memory.held_, memory.address_);
        return;
    }
    free_.emplace(memory.held_, memory.address_);
    if (Segment* segment = segment_of(memory.address_)) --segment->in_use;
}

std::size_t Gpu::cached() const {
    std::lock_guard lock(mutex_);
    std::size_t bytes = 0;
    for (const auto* free : {&free_, &free_fine_})
        for (const auto& [size, address] : *free) bytes += size;
    return bytes;
}

void Gpu::trim() {
    const CurrentGpu current(*this);
    drop_done();
    listen_unless_recording();
    drop_done();
    std::lock_guard lock(mutex_);
    if (!segments_.empty()) // the driver waits for the device before it releases what has no handle
        api_.check(api_.context_synchronize(), "waiting for the device");
    std::erase_if(free_, [&](const auto& kept) {
        const Segment* segment = segment_of(kept.second);
        if (segment == nullptr) api_.release(kept.second);
        return segment == nullptr || segment->in_use == 0;
    });
    for (const auto& [size, address] : free_fine_) api_.release(address);
    free_fine_.clear();
    std::erase_if(segments_, [&](const auto& entry) {
        if (entry.second.in_use > 0) return false;
        unmake_virtual(api_, entry.second.block);
        return true;
    });
    for (const auto& [size, data] : free_pinned_) api_.host_release(data);
    free_pinned_.clear();
}

// ---- memory that other processes map -------------------------------------------------------------------

Gpu::Segment* Gpu::segment_of(GpuAddress address) {
    auto found = segments_.upper_bound(address);
    if (found == segments_.begin()) return nullptr;
    --found;
    return address < found->first + found->second.block.bytes ? &found->second : nullptr;
}

bool Gpu::has_handle(GpuAddress address) const {
    if (virtual_block(address) != nullptr) return true;
    if (!api_.lacking.empty()) return false; // the driver does not support such memory
    const CurrentGpu current(*this);
    GpuAddress first = 0;
    std::size_t bytes = 0;
    GpuHandle handle = 0;
    if (api_.address_range(&first, &bytes, address) != gpu_success ||
        api_.virtual_retain(&handle, first) != gpu_success)
        return false;
    api_.virtual_release(handle);
    return true;
}

const VirtualBlock* Gpu::virtual_block(GpuAddress address) const {
    std::lock_guard lock(mutex_);
    const Segment* segment = const_cast<Gpu*>(this)->segment_of(address);
    return segment != nullptr ? &segment->block : nullptr;
}

std::string Gpu::why_not_handle_type(HandleType type) const {
    const CurrentGpu current(*this);
    if (type == HandleType::descriptor) {
        try {
            const VirtualBlock block = make_virtual(api_, device_, 1, false);
            if (block.address == 0) return "the device has no memory left to try it";
            std::string trouble;
            try {
                export_virtual(api_, block);
            } catch (const GpuError& error) {
                trouble = error.what();
            }
            unmake_virtual(api_, block);
            return trouble;
        } catch (const GpuError& error) {
            return error.what();
        }
    }
    GpuAddress address = 0;
    int error = api_.allocate(&address, small_unit);
    if (error == gpu_out_of_memory) return "the device has no memory left to try it";
    if (error == gpu_success) {
        IpcHandle handle;
        error = api_.ipc_export(&handle, address);
        api_.release(address);
    }
    return error == gpu_success ? "" : "exporting memory: " + api_.text_of(error);
}

HandleType Gpu::first_handle_type() const {
    if (forced_handle_type_) return *forced_handle_type_;
    if (!why_not_handle_type(HandleType::ipc).empty() && why_not_handle_type(HandleType::descriptor).empty())
        return HandleType::descriptor;
    return HandleType::ipc; // also where the type is none: ordinary memory
}

} // namespace jali
