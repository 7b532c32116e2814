#include "device/scalar_block.hpp"

#include <bit>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace jali {

namespace {

constexpr std::size_t page_numbers = 512;

// Of one device; it lives as long as the process, as devices do.
struct Pages {
    struct Page {
        GpuMemory memory;
        PinnedMemory mirror;
    };
    std::vector<Page> pages;
    std::size_t used = page_numbers;                        // of the last page
    std::map<int, std::vector<ScalarBlock::Location>> free; // by size
};

std::mutex guard;

std::map<const Gpu*, Pages>& all_pages() {
    static auto* const pages = new std::map<const Gpu*, Pages>; // devices may outlive statics
    return *pages;
}

ScalarBlock::Location take(Gpu& gpu, int held) {
    std::lock_guard lock(guard);
    Pages& pages = all_pages()[&gpu];
    auto& free = pages.free[held];
    if (!free.empty()) {
        const ScalarBlock::Location location = free.back();
        free.pop_back();
        return location;
    }
    const auto page_of = [&](std::size_t numbers) {
        const std::size_t bytes = numbers * sizeof(double);
        return Pages::Page{gpu.allocate(bytes, "numbers"), gpu.allocate_pinned(bytes, "numbers")};
    };
    const auto wanted = static_cast<std::size_t>(held);
    if (wanted > page_numbers) { // a page of its own, in front: the last is cut further
        const Pages::Page& own = *pages.pages.insert(pages.pages.begin(), page_of(wanted));
        return {own.memory.address(), reinterpret_cast<std::uint64_t>(own.mirror.data())};
    }
    if (pages.used + wanted > page_numbers) {
        pages.pages.push_back(page_of(page_numbers));
        pages.used = 0;
    }
    const Pages::Page& page = pages.pages.back();
    const std::uint64_t offset = pages.used * sizeof(double);
    pages.used += wanted;
    return {page.memory.address() + offset, reinterpret_cast<std::uint64_t>(page.mirror.data()) + offset};
}

} // namespace

ScalarBlock::ScalarBlock(std::shared_ptr<Gpu> gpu, int count) : gpu_(std::move(gpu)), count_(count) {
    if (count < 1 || count > most)
        throw std::invalid_argument("a block holds 1 to " + std::to_string(most) + " numbers, not " +
                                    std::to_string(count));
    held_ = static_cast<int>(std::bit_ceil(static_cast<unsigned>(count)));
    if (gpu_) {
        location_ = take(*gpu_, held_);
    } else {
        here_ = std::make_unique<double[]>(static_cast<std::size_t>(count));
        location_.address = location_.mirror = reinterpret_cast<std::uint64_t>(here_.get());
    }
}

ScalarBlock::~ScalarBlock() {
    if (!gpu_) return;
    std::lock_guard lock(guard);
    all_pages()[gpu_.get()].free[held_].push_back(location_);
}

void ScalarBlock::check(int k) const {
    if (k < 0 || k >= count_)
        throw std::out_of_range("number " + std::to_string(k) + " of a block of " + std::to_string(count_));
}

std::uint64_t ScalarBlock::address(int k) const {
    check(k);
    return location_.address + static_cast<std::uint64_t>(k) * sizeof(double);
}

std::uint64_t ScalarBlock::mirror(int k) const {
    check(k);
    return location_.mirror + static_cast<std::uint64_t>(k) * sizeof(double);
}

double ScalarBlock::value(int k) const {
    return *reinterpret_cast<const volatile double*>(mirror(k));
}

void ScalarBlock::set(int k, double value) {
    if (gpu_) throw std::logic_error("numbers of a device are set by its kernels");
    check(k);
    here_[static_cast<std::size_t>(k)] = value;
}

} // namespace jali
