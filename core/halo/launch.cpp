#include "halo/launch.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace jali {

namespace {

constexpr std::int64_t largest_piece = 256;       // positions between two looks at the messages
constexpr std::int64_t contribution_reals = 4096; // per thread: 32 KiB, which stay in its first caches

std::string read_name(const LaunchRead& read) {
    std::string text = "'" + read.field->label() + "' at offset (";
    for (std::size_t d = 0; d < read.offset.size(); ++d)
        text += (d ? ", " : "") + std::to_string(read.offset[d]);
    return text + ")";
}

// Eight sums side by side, since each addition would wait for the one before.
double plain_sum(const double* values, std::int64_t n) {
    double parts[8] = {}, rest = 0;
    const std::int64_t whole = n & ~std::int64_t{7};
    for (std::int64_t i = 0; i < whole; i += 8) {
        for (int k = 0; k < 8; ++k) parts[k] += values[i + k];
    }
    for (auto i = whole; i < n; ++i) rest += values[i];
    return ((parts[0] + parts[4]) + (parts[1] + parts[5])) + ((parts[2] + parts[6]) + (parts[3] + parts[7])) +
           rest;
}

std::int32_t block_at(const LaunchDomain& domain, std::int64_t position) {
    return domain.blocks.empty() ? static_cast<std::int32_t>(domain.begin + position)
                                 : domain.blocks[position];
}

} // namespace

Launch::Launch(LaunchDefinition definition) : definition_(std::move(definition)) {
    auto& d = definition_;
    const Layout& layout = *d.layout;
    auto refuse = [](const std::string& what) { throw LayoutError("launch: " + what); };
    if (d.kernel == nullptr) refuse("no kernel");
    if (d.nwords < 8 || d.words == nullptr)
        refuse(std::to_string(d.nwords) + " words; the ABI has at least 8");
    if (d.policy == nullptr) d.policy = &halo_policy("");
    if (d.domain.blocks.empty()) {
        if (d.domain.begin < 0 || d.domain.end < d.domain.begin || d.domain.end > layout.nblocks()) {
            refuse("blocks " + std::to_string(d.domain.begin) + " to " + std::to_string(d.domain.end) +
                   " of " + std::to_string(layout.nblocks()));
        }
    } else {
        for (auto block : d.domain.blocks) {
            if (block < 0 || block >= layout.nblocks()) {
                refuse("block " + std::to_string(block) + " of " + std::to_string(layout.nblocks()) +
                       " in the block list");
            }
        }
    }
    if (!d.domain.masks.empty()) {
        if (static_cast<std::int64_t>(d.domain.masks.size()) != d.domain.size()) {
            refuse(std::to_string(d.domain.masks.size()) + " lane masks for " +
                   std::to_string(d.domain.size()) + " blocks");
        }
        if (layout.lanes() > 32)
            refuse("lane masks have 32 bits, the layout has " + std::to_string(layout.lanes()) + " lanes");
    }
    auto add_touched = [&](FieldStorage* field) {
        if (field->layout() != d.layout) refuse("field '" + field->label() + "' has another layout");
        if (std::find(touched_.begin(), touched_.end(), field) == touched_.end()) touched_.push_back(field);
    };
    for (auto& [word, field] : d.patches) {
        if (word < 8 || word >= d.nwords) {
            refuse("field '" + field->label() + "' in word " + std::to_string(word) + " of " +
                   std::to_string(d.nwords));
        }
        add_touched(field.get());
    }
    for (auto& [field, parities] : d.writes) {
        if (field->producer() != nullptr) refuse("writes halo item '" + field->label() + "'");
        add_touched(field.get());
    }
    add_requests();
    for (const auto& request : requests_) {
        add_touched(request.field.get());
        if (const auto* producer = request.field->producer()) {
            for (auto& [word, source] : producer->sources) add_touched(source.get());
        }
    }
    workers_.resize(d.pool->threads());
    for (auto& worker : workers_) {
        worker.words.resize(d.nwords);
        worker.counters.resize(d.ncounters);
    }
    counters_.resize(d.ncounters);
    prepare_sums();
    body_ = [this](int thread, std::int64_t begin, std::int64_t end) { run_piece(thread, begin, end); };
}

void Launch::add_requests() {
    auto& d = definition_;
    for (auto& read : d.reads) {
        if (read.field->layout() != d.layout)
            throw LayoutError("launch: " + read_name(read) + " has another layout");
        const auto table = d.layout->neighbours(read.offset);
        for (int slab : table->slabs) {
            auto same = [&](const HaloRequest& r) { return r.field == read.field && r.slab == slab; };
            auto found = std::find_if(requests_.begin(), requests_.end(), same);
            if (found == requests_.end()) found = requests_.insert(requests_.end(), {read.field, slab, 0});
            found->parities |= read.parities;
        }
        if (table->slabs.empty()) continue;
        for (std::int64_t p = 0; p < d.domain.size(); ++p) {
            const std::int64_t ghost =
                (table->entries[block_at(d.domain, p)] & block_mask) - d.layout->nblocks();
            if (ghost < 0) continue;
            const Slab& slab = d.layout->slabs()[d.layout->slab_of_ghost(ghost)];
            const int parity = ghost - slab.first >= slab.count[0];
            if ((read.parities >> parity & 1) == 0) {
                throw LayoutError("launch: " + read_name(read) + " is said to read " +
                                  (read.parities == 1   ? "even"
                                   : read.parities == 2 ? "odd"
                                                        : "no") +
                                  " sites only, but reads " + (parity ? "odd" : "even") +
                                  " ones; give the parities that the domain can reach");
            }
        }
    }
    stale_.assign(2 * requests_.size(), 0);
}

void Launch::prepare_sums() {
    const auto& d = definition_;
    const auto& sums = d.sums;
    if (sums.count == 0) return;
    if (!sums.slice.empty()) {
        if (static_cast<std::int64_t>(sums.slice.size()) != d.layout->sites()) {
            throw LayoutError("launch: " + std::to_string(sums.slice.size()) + " slice numbers for " +
                              std::to_string(d.layout->sites()) + " sites");
        }
        for (auto slice : sums.slice) {
            if (slice < 0 || slice >= sums.nslices) {
                throw LayoutError("launch: slice " + std::to_string(slice) + " of " +
                                  std::to_string(sums.nslices));
            }
        }
    } else if (sums.nslices != 1) {
        throw LayoutError("launch: " + std::to_string(sums.nslices) + " slices without slice numbers");
    }
    const std::int64_t lanes = d.layout->lanes();
    chunk_ = std::max<std::int64_t>(contribution_reals / (sums.count * lanes), 8);
    const auto accumulators = static_cast<std::size_t>(sums.nslices) * sums.count;
    for (auto& worker : workers_) {
        worker.contributions = Arena::host().allocate(sums.count * chunk_ * lanes * sizeof(double), "sums");
        if (sums.fast) {
            worker.plain.resize(accumulators);
        } else {
            worker.binned.resize(accumulators);
        }
        if (!sums.slice.empty()) {
            worker.sorted.resize(chunk_ * lanes);
            worker.place.resize(chunk_ * lanes);
            worker.ends.resize(sums.nslices);
        }
    }
    if (!sums.fast) reduced_.resize(accumulators * BinnedSum::words);
}

bool Launch::find_stale() {
    bool any = false;
    std::int64_t avoided = 0;
    for (std::size_t k = 0; k < requests_.size(); ++k) {
        const auto& request = requests_[k];
        for (int parity = 0; parity < 2; ++parity) {
            const bool read = request.parities >> parity & 1;
            const bool stale = read && request.field->stale(request.slab, parity);
            stale_[2 * k + parity] = stale;
            any |= stale;
            avoided += read && !stale;
            request.field->counters.avoided += read && !stale;
        }
    }
    if (avoided > 0) {
        definition_.layout->counters.avoided += avoided;
        count_in_process({0, avoided, 0, 0});
    }
    return any;
}

Launch::Plan& Launch::plan_for(const std::vector<char>& stale) {
    auto [found, fresh] = plans_.try_emplace(stale);
    Plan& plan = found->second;
    if (!fresh) return plan;
    const auto& d = definition_;
    const Layout& layout = *d.layout;
    const auto& domain = d.domain;
    if (d.policy->overlap) {
        std::vector<char> late(domain.size(), 0);
        for (const auto& read : d.reads) {
            const auto table = d.layout->neighbours(read.offset);
            std::vector<char> stale_part(2 * layout.slabs().size(), 0);
            for (std::size_t k = 0; k < requests_.size(); ++k) {
                if (requests_[k].field != read.field) continue;
                for (int parity = 0; parity < 2; ++parity)
                    stale_part[2 * requests_[k].slab + parity] |= stale[2 * k + parity];
            }
            if (table->slabs.empty()) continue;
            for (std::int64_t p = 0; p < domain.size(); ++p) {
                const std::int64_t ghost =
                    (table->entries[block_at(domain, p)] & block_mask) - layout.nblocks();
                if (ghost < 0) continue;
                const Slab& slab = layout.slabs()[layout.slab_of_ghost(ghost)];
                late[p] |= stale_part[2 * slab.number + (ghost - slab.first >= slab.count[0])];
            }
        }
        for (std::int64_t p = 0; p < domain.size(); ++p) {
            auto& part = plan.parts[late[p] ? 1 : 0];
            part.blocks.push_back(block_at(domain, p));
            if (!domain.masks.empty()) part.masks.push_back(domain.masks[p]);
        }
    } else {
        plan.parts[0] = domain;
    }
    std::vector<FieldStorage*> written;
    for (const auto& [field, parities] : d.writes) written.push_back(field.get());
    plan.exchange = std::make_unique<HaloExchange>(
        d.layout, requests_, stale, d.policy->overlap, std::move(written),
        [this, &plan](int part, const Progress* progress) { run_domain(plan.parts[part], progress); });
    return plan;
}

void Launch::run_domain(const LaunchDomain& domain, const ThreadPool::Progress* progress) {
    const auto size = domain.size();
    if (size == 0) return;
    const bool listed = !domain.blocks.empty();
    for (auto& worker : workers_) {
        worker.words[0] = listed ? reinterpret_cast<std::uint64_t>(domain.blocks.data()) : 0;
        worker.words[1] = domain.masks.empty() ? 0 : reinterpret_cast<std::uint64_t>(domain.masks.data());
    }
    // Masks are per position; for a range of blocks positions are blocks, so the masks start at its first.
    if (!listed && !domain.masks.empty()) {
        for (auto& worker : workers_) worker.words[1] -= domain.begin * sizeof(std::uint32_t);
    }
    running_ = &domain;
    const auto begin = listed ? 0 : domain.begin;
    const auto grain =
        std::clamp<std::int64_t>(size / (8 * static_cast<std::int64_t>(workers_.size())), 16, largest_piece);
    definition_.pool->parallel_for(begin, begin + size, grain, body_, progress);
}

void Launch::run_piece(int thread, std::int64_t begin, std::int64_t end) {
    Worker& worker = workers_[thread];
    if (definition_.sums.count == 0) {
        definition_.kernel(worker.words.data(), begin, end);
        return;
    }
    worker.used = true;
    worker.words[2] = reinterpret_cast<std::uint64_t>(worker.contributions.data());
    worker.words[3] = static_cast<std::uint64_t>(chunk_);
    for (auto b = begin; b < end; b += chunk_) {
        const auto e = std::min(end, b + chunk_);
        definition_.kernel(worker.words.data(), b, e);
        deposit(worker, b, e);
    }
}

void Launch::deposit(Worker& worker, std::int64_t begin, std::int64_t end) {
    const auto& sums = definition_.sums;
    const std::int64_t lanes = definition_.layout->lanes(), n = (end - begin) * lanes;
    if (const auto* masks = reinterpret_cast<const std::uint32_t*>(worker.words[1])) {
        for (int k = 0; k < sums.count; ++k) {
            double* values = worker.contributions.as<double>() + k * chunk_ * lanes;
            for (std::int64_t i = 0; i < n; ++i) {
                if ((masks[begin + i / lanes] >> (i % lanes) & 1) == 0) values[i] = 0;
            }
        }
    }
    auto add = [&](std::size_t accumulator, const double* values, std::int64_t count) {
        if (sums.fast) {
            worker.plain[accumulator] += plain_sum(values, count);
        } else {
            worker.binned[accumulator].deposit(values, count);
        }
    };
    if (sums.slice.empty()) {
        for (int k = 0; k < sums.count; ++k)
            add(k, worker.contributions.as<double>() + k * chunk_ * lanes, n);
        return;
    }
    // Sort the chunk by slice once (counting sort), then every component along it.
    const bool listed = !running_->blocks.empty();
    std::fill(worker.ends.begin(), worker.ends.end(), 0);
    auto slices_of = [&](std::int64_t position) {
        return sums.slice.data() + (listed ? running_->blocks[position] : position) * lanes;
    };
    for (auto p = begin; p < end; ++p) {
        for (std::int64_t l = 0; l < lanes; ++l) ++worker.ends[slices_of(p)[l]];
    }
    std::int32_t start = 0;
    for (auto& slice_end : worker.ends) start += std::exchange(slice_end, start);
    for (auto p = begin; p < end; ++p) {
        for (std::int64_t l = 0; l < lanes; ++l)
            worker.place[(p - begin) * lanes + l] = worker.ends[slices_of(p)[l]]++;
    }
    for (int k = 0; k < sums.count; ++k) {
        const double* values = worker.contributions.as<double>() + k * chunk_ * lanes;
        for (std::int64_t i = 0; i < n; ++i) worker.sorted[worker.place[i]] = values[i];
        std::int32_t first = 0;
        for (int slice = 0; slice < sums.nslices; ++slice) {
            const auto last = worker.ends[slice];
            if (last > first)
                add(static_cast<std::size_t>(slice) * sums.count + k, worker.sorted.data() + first,
                    last - first);
            first = last;
        }
    }
}

void Launch::reduce(double* sums) {
    const auto& d = definition_;
    const auto accumulators = static_cast<std::size_t>(d.sums.nslices) * d.sums.count;
    const bool alone = d.communicator->size() == 1;
    if (d.sums.fast) {
        std::fill(sums, sums + accumulators, 0.0);
        for (const auto& worker : workers_) {
            for (std::size_t k = 0; worker.used && k < accumulators; ++k) sums[k] += worker.plain[k];
        }
        if (alone) return;
        const auto parts = d.communicator->all_gather(std::as_bytes(std::span(sums, accumulators)));
        std::fill(sums, sums + accumulators, 0.0);
        for (const auto& part : parts) {
            for (std::size_t k = 0; k < accumulators; ++k) {
                double value;
                std::memcpy(&value, part.data() + k * sizeof value, sizeof value);
                sums[k] += value;
            }
        }
        return;
    }
    auto& total = workers_[0].binned;
    for (std::size_t w = 1; w < workers_.size(); ++w) {
        for (std::size_t k = 0; workers_[w].used && k < accumulators; ++k)
            total[k].merge(workers_[w].binned[k]);
    }
    if (alone) {
        for (std::size_t k = 0; k < accumulators; ++k) sums[k] = total[k].value();
        return;
    }
    auto words_of = [&](std::size_t k) {
        return std::span(reduced_).subspan(k * BinnedSum::words, BinnedSum::words);
    };
    for (std::size_t k = 0; k < accumulators; ++k) total[k].write_words(words_of(k));
    d.communicator->all_reduce_sum(reduced_);
    for (std::size_t k = 0; k < accumulators; ++k) sums[k] = BinnedSum::value_of_words(words_of(k));
}

void Launch::run(double* sums) {
    const auto& d = definition_;
    for (FieldStorage* field : touched_) field->reserve_ghosts(d.pool.get());
    Worker& first = workers_[0];
    std::memcpy(first.words.data(), d.words, d.nwords * sizeof(std::uint64_t));
    fill_standard_words(first.words.data(), *d.layout, nullptr);
    for (const auto& [word, field] : d.patches)
        first.words[word] = reinterpret_cast<std::uint64_t>(field->data());
    for (std::size_t w = 1; w < workers_.size(); ++w) {
        std::memcpy(workers_[w].words.data(), first.words.data(), d.nwords * sizeof(std::uint64_t));
    }
    if (d.ncounters > 0 || d.sums.count > 0) {
        for (auto& worker : workers_) {
            worker.used = false;
            worker.words[6] = reinterpret_cast<std::uint64_t>(worker.counters.data());
            std::fill(worker.counters.begin(), worker.counters.end(), 0);
            std::fill(worker.plain.begin(), worker.plain.end(), 0.0);
            for (auto& sum : worker.binned) sum.clear();
        }
    }
    if (requests_.empty() || !find_stale()) {
        run_domain(d.domain, nullptr);
    } else {
        plan_for(stale_).exchange->run(*d.communicator);
    }
    for (const auto& [field, parities] : d.writes) field->mark_written(parities);
    if (d.ncounters > 0) {
        std::fill(counters_.begin(), counters_.end(), 0);
        for (const auto& worker : workers_) {
            for (int k = 0; k < d.ncounters; ++k) counters_[k] += worker.counters[k];
        }
    }
    if (d.sums.count > 0) reduce(sums);
}

const Schedule* Launch::full_schedule() {
    std::vector<char> all(stale_.size());
    for (std::size_t k = 0; k < requests_.size(); ++k) {
        for (int parity = 0; parity < 2; ++parity) all[2 * k + parity] = requests_[k].parities >> parity & 1;
    }
    if (std::find(all.begin(), all.end(), 1) == all.end()) return nullptr;
    return &plan_for(all).exchange->schedule();
}

std::string Launch::describe() {
    const Schedule* schedule = full_schedule();
    return schedule ? schedule->describe() : "kernel: compute (no halos)\n";
}

} // namespace jali
