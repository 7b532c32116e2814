#include "halo/launch_counters.hpp"

#include <algorithm>
#include <cstring>
#include <map>

namespace jali {

LaunchCounters::LaunchCounters(std::shared_ptr<Gpu> gpu, int count) : gpu_(std::move(gpu)), here_(count) {
    if (gpu_ == nullptr || count == 0) return;
    there_ = gpu_->allocate(count * sizeof(std::int64_t), "counters");
    gpu_->fill(there_.address(), 0, there_.size());
}

std::uint64_t LaunchCounters::address() const {
    return gpu_ ? there_.address() : reinterpret_cast<std::uint64_t>(here_.data());
}

std::vector<std::int64_t> LaunchCounters::values() const {
    std::vector<std::int64_t> found = here_;
    if (there_.size() > 0) {
        gpu_->copy_out(found.data(), there_.address(), there_.size());
        gpu_->synchronize();
    }
    return found;
}

std::vector<std::vector<std::int64_t>>
LaunchCounters::values_of(const std::vector<const LaunchCounters*>& several) {
    std::map<Gpu*, std::size_t> sizes; // of what is copied from each device
    for (const LaunchCounters* one : several)
        if (one->there_.size() > 0) sizes[one->gpu_.get()] += one->there_.size();
    std::map<Gpu*, PinnedMemory> copies;
    for (auto [gpu, size] : sizes) copies.emplace(gpu, gpu->allocate_pinned(size, "counters"));
    std::map<Gpu*, std::size_t> copied;
    for (const LaunchCounters* one : several) {
        if (one->there_.size() == 0) continue;
        Gpu* gpu = one->gpu_.get();
        gpu->copy_out(copies.at(gpu).data() + copied[gpu], one->there_.address(), one->there_.size());
        copied[gpu] += one->there_.size();
    }
    for (auto& [gpu, memory] : copies) gpu->synchronize();
    copied.clear();
    std::vector<std::vector<std::int64_t>> found;
    for (const LaunchCounters* one : several) {
        found.push_back(one->here_);
        if (one->there_.size() == 0) continue;
        Gpu* gpu = one->gpu_.get();
        std::memcpy(found.back().data(), copies.at(gpu).data() + copied[gpu], one->there_.size());
        copied[gpu] += one->there_.size();
    }
    return found;
}

void LaunchCounters::set(const std::vector<std::int64_t>& values) {
    if (there_.size() > 0) {
        gpu_->copy_in(there_.address(), values.data(), there_.size());
        gpu_->synchronize();
    } else {
        here_ = values;
    }
}

void LaunchCounters::add(const std::vector<std::int64_t>& values) {
    for (std::size_t k = 0; k < values.size(); ++k)
        here_[k] = k >= 2 && k % 2 == 1 ? std::max(here_[k], values[k]) : here_[k] + values[k];
}

void LaunchCounters::clear(int k) {
    if (there_.size() > 0) {
        gpu_->fill(there_.address() + k * sizeof(std::int64_t), 0, sizeof(std::int64_t));
    } else {
        here_.at(k) = 0;
    }
}

} // namespace jali
