#include "halo/storage.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace jali {

namespace {

std::atomic<std::int64_t> process_exchanged, process_avoided, process_messages, process_bytes;

void for_range(ThreadPool* pool, std::int64_t end, std::int64_t grain, const ThreadPool::Body& body) {
    if (pool != nullptr) {
        pool->parallel_for(0, end, grain, body);
    } else if (end > 0) {
        body(0, 0, end);
    }
}

// One box array element per lane and real: array[site(block, lane) * reals + r] <-> data[(block *
// reals + r) * W + lane].
template <int W, class Store, class T>
void import_blocks(Store* data, const T* array, int reals, const Layout& layout, std::int64_t begin,
                   std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
        const T* from[W];
        for (int l = 0; l < W; ++l) from[l] = array + layout.box_site(block, l) * reals;
        Store* to = data + block * reals * W;
        for (int r = 0; r < reals; ++r) {
            for (int l = 0; l < W; ++l) to[r * W + l] = static_cast<Store>(from[l][r]);
        }
    }
}

template <int W, class Store, class T>
void export_blocks(const Store* data, T* array, int reals, const Layout& layout, std::int64_t begin,
                   std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
        T* to[W];
        for (int l = 0; l < W; ++l) to[l] = array + layout.box_site(block, l) * reals;
        const Store* from = data + block * reals * W;
        for (int r = 0; r < reals; ++r) {
            for (int l = 0; l < W; ++l) to[l][r] = static_cast<T>(from[r * W + l]);
        }
    }
}

// Calls f.template operator()<W>() with W = lanes, so that the loops over lanes have constant bounds.
template <class F>
void with_lanes(int lanes, F f) {
    switch (lanes) {
    case 1:
        return f.template operator()<1>();
    case 2:
        return f.template operator()<2>();
    case 4:
        return f.template operator()<4>();
    case 8:
        return f.template operator()<8>();
    case 16:
        return f.template operator()<16>();
    case 32:
        return f.template operator()<32>();
    default:
        return f.template operator()<64>();
    }
}

// Calls f(pointer) with the scalar type that the storage holds.
template <class F>
void with_scalar(const FieldStorage& storage, F f) {
    if (storage.scalar_bytes() == 4) {
        f(reinterpret_cast<float*>(storage.data()));
    } else {
        f(reinterpret_cast<double*>(storage.data()));
    }
}

// Calls f(block, lane, index) for every site of a part of the local box; index counts them, direction 0
// fastest.
template <class F>
void for_each_site_of_part(const Layout& layout, const Extents& origin, const Extents& extents, F f) {
    const int n = layout.ndim();
    if (static_cast<int>(origin.size()) != n || static_cast<int>(extents.size()) != n) {
        throw LayoutError("a part of a box needs " + std::to_string(n) + " origins and extents; got " +
                          std::to_string(origin.size()) + " and " + std::to_string(extents.size()));
    }
    for (int d = 0; d < n; ++d) {
        if (origin[d] < 0 || extents[d] < 0 || origin[d] + extents[d] > layout.extents()[d]) {
            throw LayoutError("direction " + std::to_string(d) + ": sites " + std::to_string(origin[d]) +
                              " to " + std::to_string(origin[d] + extents[d] - 1) +
                              " are not inside the local extent " + std::to_string(layout.extents()[d]));
        }
        if (extents[d] == 0) return;
    }
    Extents site = origin;
    std::int64_t index = 0;
    while (true) {
        const auto [block, lane] = layout.locate_inside(site);
        f(block, lane, index++);
        int d = 0;
        while (d < n && ++site[d] == origin[d] + extents[d]) {
            site[d] = origin[d];
            ++d;
        }
        if (d == n) return;
    }
}

constexpr std::int64_t box_grain = 512; // blocks: a few hundred kilobytes

} // namespace

HaloCounters process_halo_counters() {
    return {process_exchanged.load(), process_avoided.load(), process_messages.load(), process_bytes.load()};
}

void count_in_process(const HaloCounters& more) {
    process_exchanged.fetch_add(more.exchanged, std::memory_order_relaxed);
    process_avoided.fetch_add(more.avoided, std::memory_order_relaxed);
    process_messages.fetch_add(more.messages, std::memory_order_relaxed);
    process_bytes.fetch_add(more.bytes, std::memory_order_relaxed);
}

FieldStorage::FieldStorage(std::shared_ptr<Layout> layout, int reals_per_site, int scalar_bytes,
                           std::string label, ThreadPool* pool)
    : layout_(std::move(layout)), reals_(reals_per_site), scalar_bytes_(scalar_bytes),
      label_(std::move(label)) {
    if (reals_ < 1)
        throw LayoutError("field '" + label_ + "': " + std::to_string(reals_) + " reals per site");
    if (scalar_bytes_ != 4 && scalar_bytes_ != 8) {
        throw LayoutError("field '" + label_ + "': scalars of " + std::to_string(scalar_bytes_) +
                          " bytes; use 4 (float) or 8 (double)");
    }
    block_bytes_ = static_cast<std::size_t>(reals_) * scalar_bytes_ * layout_->lanes();
    owned_ = layout_->first_ghost();
    allocate(pool);
}

FieldStorage::FieldStorage(std::shared_ptr<Layout> layout, int reals_per_site, int scalar_bytes,
                           std::string label, HaloProducer producer)
    : layout_(std::move(layout)), reals_(reals_per_site), scalar_bytes_(scalar_bytes),
      label_(std::move(label)), producer_(std::make_unique<HaloProducer>(std::move(producer))) {
    const int nwords = static_cast<int>(producer_->words.size());
    auto fits = [&](int word) { return word >= 8 && word < nwords; };
    const bool lacks_kernel =
        layout_->gpu() ? producer_->gpu_kernel.handle == nullptr : producer_->kernel == nullptr;
    if (lacks_kernel || !fits(producer_->output_word) ||
        !std::all_of(producer_->sources.begin(), producer_->sources.end(),
                     [&](auto& s) { return fits(s.first); })) {
        throw LayoutError("halo item '" + label_ + "': needs a kernel, and addresses in words 8 to " +
                          std::to_string(nwords - 1));
    }
    for (auto& [word, source] : producer_->sources) {
        if (source->layout() != layout_)
            throw LayoutError("halo item '" + label_ + "': a source field has another layout");
    }
    block_bytes_ = static_cast<std::size_t>(reals_) * scalar_bytes_ * layout_->lanes();
    allocate(nullptr);
}

FieldStorage::~FieldStorage() {
    try {
        if (mapping_) drop_later(layout_->gpu(), std::move(mapping_)); // messages may still be under way
    } catch (...) {
        return; // the device is lost, and said so
    }
}

void FieldStorage::allocate(ThreadPool* pool) {
    if (layout_->gpu()) return allocate_on_device();
    const auto ghosts = layout_->ghost_blocks();
    Memory bigger = Arena::host().allocate(static_cast<std::size_t>(owned_ + ghosts) * block_bytes_, label_);
    const auto kept = static_cast<std::size_t>(owned_ + ghosts_) * block_bytes_;
    for_range(pool, owned_ + ghosts, box_grain, [&](int, std::int64_t b, std::int64_t e) {
        const auto begin = b * block_bytes_, end = e * block_bytes_;
        const auto copied = memory_.data() == nullptr ? begin : std::clamp(kept, begin, end);
        if (copied > begin) std::memcpy(bigger.data() + begin, memory_.data() + begin, copied - begin);
        std::memset(bigger.data() + copied, 0, end - copied);
    });
    memory_ = std::move(bigger);
    ghosts_ = ghosts;
    base_ = memory_.data() - (layout_->first_ghost() - owned_) * static_cast<std::int64_t>(block_bytes_);
}

void FieldStorage::reserve_ghosts(ThreadPool* pool) {
    if (lacks_ghosts()) allocate(pool);
}

std::vector<std::int32_t> FieldStorage::blocks_of_part(const Extents& origin, const Extents& extents) const {
    std::vector<std::int32_t> blocks;
    for_each_site_of_part(*layout_, origin, extents, [&](std::int64_t block, std::int64_t, std::int64_t) {
        blocks.push_back(static_cast<std::int32_t>(block));
    });
    return blocks;
}

void FieldStorage::set_producer_words(const std::vector<std::uint64_t>& words) {
    if (!producer_ || words.size() != producer_->words.size()) {
        throw LayoutError("halo item '" + label_ + "': " + std::to_string(words.size()) + " words given, " +
                          std::to_string(producer_ ? producer_->words.size() : 0) + " expected");
    }
    if (words != producer_->words) {
        producer_->words = words;
        mark_written(3);
    }
}

void FieldStorage::mark_written(int parities) {
    version_[0] += parities & 1;
    version_[1] += (parities >> 1) & 1;
}

std::uint64_t FieldStorage::version(int parity) const {
    std::uint64_t version = version_[parity];
    // Every count only grows, so the sum is unchanged only if all are.
    if (producer_) {
        for (const auto& [word, source] : producer_->sources) version += source->version(parity);
    }
    return version;
}

void FieldStorage::set_held(int slab, int parity, std::uint64_t version) {
    const auto index = static_cast<std::size_t>(2 * slab + parity);
    if (index >= held_.size()) held_.resize(2 * layout_->slabs().size(), 0);
    held_[index] = version;
}

void FieldStorage::require_sites(const char* what) const {
    if (producer_) throw LayoutError(std::string(what) + ": halo item '" + label_ + "' owns no sites");
}

template <class T>
void FieldStorage::import_box(const T* array, ThreadPool* pool) {
    require_sites("import_box");
    if (layout_->gpu()) {
        box_to_device(array, nullptr, layout_->sites());
        return mark_written(3);
    }
    with_scalar(*this, [&](auto* data) {
        with_lanes(layout_->lanes(), [&]<int W>() {
            for_range(pool, layout_->nblocks(), box_grain, [&](int, std::int64_t b, std::int64_t e) {
                import_blocks<W>(data, array, reals_, *layout_, b, e);
            });
        });
    });
    mark_written(3);
}

template <class T>
void FieldStorage::export_box(T* array, ThreadPool* pool) const {
    require_sites("export_box");
    if (layout_->gpu()) return box_from_device(array, nullptr, layout_->sites());
    with_scalar(*this, [&](const auto* data) {
        with_lanes(layout_->lanes(), [&]<int W>() {
            for_range(pool, layout_->nblocks(), box_grain, [&](int, std::int64_t b, std::int64_t e) {
                export_blocks<W>(data, array, reals_, *layout_, b, e);
            });
        });
    });
}

template <class T>
void FieldStorage::import_part(const Extents& origin, const Extents& extents, const T* array) {
    require_sites("import_part");
    if (layout_->gpu()) {
        const auto blocks = blocks_of_part(origin, extents);
        return box_to_device(array, blocks.data(), static_cast<std::int64_t>(blocks.size()));
    }
    const auto lanes = layout_->lanes();
    with_scalar(*this, [&]<class Store>(Store* data) {
        for_each_site_of_part(
            *layout_, origin, extents, [&](std::int64_t block, std::int64_t lane, std::int64_t i) {
                for (int r = 0; r < reals_; ++r) {
                    data[(block * reals_ + r) * lanes + lane] = static_cast<Store>(array[i * reals_ + r]);
                }
            });
    });
}

template <class T>
void FieldStorage::export_part(const Extents& origin, const Extents& extents, T* array) const {
    require_sites("export_part");
    if (layout_->gpu()) {
        const auto blocks = blocks_of_part(origin, extents);
        return box_from_device(array, blocks.data(), static_cast<std::int64_t>(blocks.size()));
    }
    const auto lanes = layout_->lanes();
    with_scalar(*this, [&](const auto* data) {
        for_each_site_of_part(
            *layout_, origin, extents, [&](std::int64_t block, std::int64_t lane, std::int64_t i) {
                for (int r = 0; r < reals_; ++r) {
                    array[i * reals_ + r] = static_cast<T>(data[(block * reals_ + r) * lanes + lane]);
                }
            });
    });
}

void FieldStorage::fill_zero(ThreadPool* pool) {
    require_sites("fill_zero");
    if (const auto& gpu = layout_->gpu()) {
        gpu->fill(address(), 0, static_cast<std::size_t>(owned_) * block_bytes_);
        return mark_written(3);
    }
    for_range(pool, layout_->nblocks(), box_grain, [&](int, std::int64_t b, std::int64_t e) {
        std::memset(base_ + b * block_bytes_, 0, (e - b) * block_bytes_);
    });
    mark_written(3);
}

void FieldStorage::copy_from(const FieldStorage& other, ThreadPool* pool) {
    require_sites("copy_from");
    other.require_sites("copy_from");
    const Layout &to = *layout_, &from = *other.layout_;
    if (to.extents() != from.extents() || to.origin() != from.origin() || reals_ != other.reals_) {
        throw LayoutError("copy_from: '" + other.label_ + "' has local box " +
                          format_extents(from.extents()) + " and " + std::to_string(other.reals_) +
                          " reals per site, '" + label_ + "' has " + format_extents(to.extents()) + " and " +
                          std::to_string(reals_));
    }
    if (to.gpu() || from.gpu()) {
        copy_on_device(other);
        return mark_written(3);
    }
    const bool same_order =
        layout_ == other.layout_ || (to.box_index() == from.box_index() && to.lanes() == from.lanes());
    // Where the source holds each site of the box.
    std::vector<std::int64_t> place;
    if (!same_order) {
        place.resize(from.sites());
        for (std::int64_t block = 0; block < from.nblocks(); ++block) {
            for (int lane = 0; lane < from.lanes(); ++lane) {
                place[from.box_site(block, lane)] = block * reals_ * from.lanes() + lane;
            }
        }
    }
    with_scalar(*this, [&]<class To>(To* data) {
        with_scalar(other, [&](const auto* source) {
            for_range(pool, layout_->nblocks(), box_grain, [&](int, std::int64_t b, std::int64_t e) {
                if (same_order) {
                    const std::int64_t begin = b * reals_ * to.lanes(), end = e * reals_ * to.lanes();
                    for (std::int64_t i = begin; i < end; ++i) data[i] = static_cast<To>(source[i]);
                    return;
                }
                for (std::int64_t block = b; block < e; ++block) {
                    for (int lane = 0; lane < to.lanes(); ++lane) {
                        const auto first = place[to.box_site(block, lane)];
                        for (int r = 0; r < reals_; ++r) {
                            data[(block * reals_ + r) * to.lanes() + lane] =
                                static_cast<To>(source[first + r * from.lanes()]);
                        }
                    }
                }
            });
        });
    });
    mark_written(3);
}

template void FieldStorage::import_box(const float*, ThreadPool*);
template void FieldStorage::import_box(const double*, ThreadPool*);
template void FieldStorage::export_box(float*, ThreadPool*) const;
template void FieldStorage::export_box(double*, ThreadPool*) const;
template void FieldStorage::import_part(const Extents&, const Extents&, const float*);
template void FieldStorage::import_part(const Extents&, const Extents&, const double*);
template void FieldStorage::export_part(const Extents&, const Extents&, float*) const;
template void FieldStorage::export_part(const Extents&, const Extents&, double*) const;

} // namespace jali
