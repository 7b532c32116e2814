#include "halo/gpu_launch.hpp"
#include "sum/binned.hpp"

#include <algorithm>
#include <cstring>

namespace jali {

namespace {

constexpr unsigned deposit_threads = 256;
constexpr std::int64_t values_per_thread = 16; // of a deposit, at least, where there are enough

// What the kit's deposit takes; see prelude/kit.hpp.
struct DepositArguments {
    GpuAddress values;
    std::int64_t stride;
    GpuAddress order, starts;
    std::int64_t slices, components, blocks;
    GpuAddress words;
};

} // namespace

GpuLaunch::GpuLaunch(LaunchDefinition definition)
    : Launch(std::move(definition)), gpu_(definition_.layout->gpu()) {
    auto& d = definition_;
    if (!d.domain.masks.empty()) throw LayoutError("launch: lane masks on a device, which has no lanes");
    arguments_.resize(2 + d.nwords);
    if (d.domain.blocks.empty()) {
        whole_.begin = d.domain.begin;
        whole_.end = d.domain.end;
    } else {
        whole_ = positions_of(d.domain.blocks);
    }
    counters_.resize(d.ncounters);
    if (d.ncounters > 0) {
        device_counters_ = gpu_->allocate(d.ncounters * sizeof(std::int64_t), "counters");
        gpu_->fill(device_counters_.address(), 0, device_counters_.size());
    }
    prepare_sums();
}

GpuLaunch::Positions GpuLaunch::positions_of(const std::vector<std::int32_t>& blocks) const {
    Positions positions;
    positions.end = static_cast<std::int64_t>(blocks.size());
    if (!blocks.empty())
        positions.blocks = gpu_->upload(blocks.data(), blocks.size() * sizeof blocks[0], "site lists");
    return positions;
}

void GpuLaunch::prepare_sums() {
    const auto& sums = definition_.sums;
    if (sums.count == 0) return;
    const std::int64_t n = whole_.size();
    std::vector<std::int64_t> starts(static_cast<std::size_t>(sums.nslices) + 1, 0);
    starts.back() = n;
    if (!sums.slice.empty()) {
        // positions slice by slice, in their own order within each
        std::vector<std::int32_t> order(static_cast<std::size_t>(n));
        for (std::int64_t p = 0; p < n; ++p) ++starts[sums.slice[block_at(p)] + 1];
        starts.back() -= n;
        for (int s = 0; s < sums.nslices; ++s) starts[s + 1] += starts[s];
        auto next = starts;
        for (std::int64_t p = 0; p < n; ++p)
            order[next[sums.slice[block_at(p)]]++] = static_cast<std::int32_t>(p);
        order_ = gpu_->upload(order.data(), order.size() * sizeof order[0], "site lists");
    }
    starts_ = gpu_->upload(starts.data(), starts.size() * sizeof starts[0], "site lists");
    contributions_ = gpu_->allocate(static_cast<std::size_t>(sums.count) * n * sizeof(double), "sums");
    const auto words = static_cast<std::size_t>(sums.nslices) * sums.count * BinnedSum::words;
    totals_ = gpu_->allocate(words * sizeof(std::int64_t), "sums");
    totals_here_ = gpu_->allocate_pinned(words * sizeof(std::int64_t), "sums");
    reduced_.resize(words);
    const std::int64_t per_block = values_per_thread * deposit_threads;
    const std::int64_t most = std::max<std::int64_t>(1, 4 * gpu_->multiprocessors() / sums.nslices);
    deposit_blocks_ = std::clamp<std::int64_t>((n / sums.nslices + per_block - 1) / per_block, 1, most);
}

void GpuLaunch::fill_words() {
    const auto& d = definition_;
    const auto& tables = d.layout->on_device();
    std::uint64_t* words = arguments_.data() + 2;
    std::memcpy(words, d.words, d.nwords * sizeof(std::uint64_t));
    words[1] = words[2] = words[3] = 0;
    words[4] = tables.coordinates.address();
    words[5] = tables.lane_offsets.address();
    words[6] = device_counters_.address();
    words[7] = tables.extents.address();
    for (const auto& [word, field] : d.patches) words[word] = field->address();
}

void GpuLaunch::enqueue(const Positions& positions, std::int64_t first_contribution, void* stream) {
    if (positions.size() == 0) return;
    const auto& d = definition_;
    arguments_[0] = static_cast<std::uint64_t>(positions.begin);
    arguments_[1] = static_cast<std::uint64_t>(positions.end);
    std::uint64_t* words = arguments_.data() + 2;
    words[0] = positions.blocks.address();
    if (d.sums.count > 0) {
        words[2] = contributions_.address() + first_contribution * sizeof(double);
        words[3] = static_cast<std::uint64_t>(whole_.size());
    }
    void* parameters[] = {arguments_.data()};
    const std::int64_t blocks = (positions.size() + d.threads - 1) / d.threads;
    gpu_->launch(d.gpu_kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(d.threads), parameters,
                 stream);
}

void GpuLaunch::run(double* sums) {
    const auto& d = definition_;
    gpu_->make_current();
    for (FieldStorage* field : touched_) field->reserve_ghosts();
    fill_words();
    if (requests_.empty() || !find_stale()) {
        enqueue(whole_, 0, gpu_->stream());
    } else {
        throw LayoutError("launch: halos between devices are not there yet");
    }
    for (const auto& [field, parities] : d.writes) field->mark_written(parities);
    if (d.sums.count > 0) reduce(sums);
}

void GpuLaunch::reduce(double* sums) {
    const auto& d = definition_;
    const auto accumulators = static_cast<std::size_t>(d.sums.nslices) * d.sums.count;
    gpu_->fill(totals_.address(), 0, totals_.size());
    DepositArguments arguments{contributions_.address(), whole_.size(), order_.address(), starts_.address(),
                               d.sums.nslices,           d.sums.count,  deposit_blocks_,  totals_.address()};
    const std::int64_t jobs = static_cast<std::int64_t>(accumulators) * deposit_blocks_;
    void* parameters[] = {&arguments};
    gpu_->launch(gpu_->kit("deposit"), static_cast<unsigned>(std::min<std::int64_t>(jobs, 1 << 20)),
                 deposit_threads, parameters, gpu_->stream());
    gpu_->copy_out(totals_here_.data(), totals_.address(), totals_.size());
    gpu_->synchronize();
    std::memcpy(reduced_.data(), totals_here_.data(), totals_.size());
    if (d.communicator->size() > 1) d.communicator->all_reduce_sum(reduced_);
    for (std::size_t k = 0; k < accumulators; ++k)
        sums[k] =
            BinnedSum::value_of_words(std::span(reduced_).subspan(k * BinnedSum::words, BinnedSum::words));
}

const std::vector<std::int64_t>& GpuLaunch::counters() {
    if (!counters_.empty()) {
        gpu_->copy_out(counters_.data(), device_counters_.address(), device_counters_.size());
        gpu_->synchronize();
    }
    return counters_;
}

const Schedule* GpuLaunch::schedule_for(const std::vector<char>&) {
    throw LayoutError("launch: halos between devices are not there yet");
}

} // namespace jali
