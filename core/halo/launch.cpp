#include "halo/launch.hpp"
#include "halo/gpu_launch.hpp"
#include "halo/host_launch.hpp"

#include <algorithm>
#include <cstring>

namespace jali {

namespace {

std::string read_name(const LaunchRead& read) {
    std::string text = "'" + read.field->label() + "' at offset (";
    for (std::size_t d = 0; d < read.offset.size(); ++d)
        text += (d ? ", " : "") + std::to_string(read.offset[d]);
    return text + ")";
}

// Fills `stale`, [request][parity], and counts what is avoided; false if nothing is stale.
bool find_stale_of(const std::vector<HaloRequest>& requests, std::vector<char>& stale, LocalLayout& layout) {
    bool any = false;
    std::int64_t avoided = 0;
    for (std::size_t k = 0; k < requests.size(); ++k) {
        const auto& request = requests[k];
        for (int parity = 0; parity < 2; ++parity) {
            const bool read = request.parities >> parity & 1;
            stale[2 * k + parity] = read && request.field->stale(request.slab, parity);
            any |= stale[2 * k + parity] != 0;
            const bool valid = read && !stale[2 * k + parity];
            avoided += valid;
            request.field->counters.avoided += valid;
        }
    }
    if (avoided > 0) {
        layout.counters.avoided += avoided;
        count_in_process({0, avoided, 0, 0});
    }
    return any;
}

// The request for a slab of a field, added if need be.
HaloRequest& request_for(std::vector<HaloRequest>& requests, const std::shared_ptr<FieldStorage>& field,
                         int slab) {
    auto same = [&](const HaloRequest& r) { return r.field == field && r.slab == slab; };
    auto found = std::find_if(requests.begin(), requests.end(), same);
    if (found == requests.end()) found = requests.insert(requests.end(), {field, slab, 0});
    return *found;
}

} // namespace

std::unique_ptr<Launch> Launch::make(LaunchDefinition definition) {
    if (definition.layout->gpu()) return std::make_unique<GpuLaunch>(std::move(definition));
    return std::make_unique<HostLaunch>(std::move(definition));
}

Launch::~Launch() {
    for (LaunchCounters* counters : all_counters()) counters->finish();
}

std::vector<LaunchCounters*> Launch::all_counters() const {
    std::vector<LaunchCounters*> all{counters_.get()};
    for (const auto& request : requests_) {
        const HaloProducer* producer = request.field->producer();
        if (producer == nullptr || producer->counters == nullptr) continue;
        if (std::find(all.begin(), all.end(), producer->counters.get()) == all.end())
            all.push_back(producer->counters.get());
    }
    return all;
}

Launch::Launch(LaunchDefinition definition) : definition_(std::move(definition)) {
    auto& d = definition_;
    const LocalLayout& layout = *d.layout;
    auto refuse = [](const std::string& what) { throw LayoutError("launch: " + what); };
    if (layout.gpu() ? d.gpu_kernel.handle == nullptr || d.threads < 1 : d.kernel == nullptr)
        refuse("no kernel");
    if (d.nparameters < 8 || d.parameters == nullptr)
        refuse(std::to_string(d.nparameters) + " parameters; the ABI has at least 8");
    if (d.policy == nullptr) d.policy = &halo_policy("", layout.vendor());
    const VisitedBlocks blocks = visited();
    if (d.domain.blocks.empty()) {
        if (d.domain.begin < 0 || d.domain.end < d.domain.begin || d.domain.end > blocks.count) {
            refuse("blocks " + std::to_string(d.domain.begin) + " to " + std::to_string(d.domain.end) +
                   " of " + std::to_string(blocks.count));
        }
    } else {
        for (auto block : d.domain.blocks) {
            if (block < 0 || block >= blocks.count) {
                refuse("block " + std::to_string(block) + " of " + std::to_string(blocks.count) +
                       " in the block list");
            }
        }
    }
    if (!d.domain.masks.empty()) {
        if (static_cast<std::int64_t>(d.domain.masks.size()) != d.domain.size()) {
            refuse(std::to_string(d.domain.masks.size()) + " lane masks for " +
                   std::to_string(d.domain.size()) + " blocks");
        }
        if (blocks.lanes > 32)
            refuse("lane masks have 32 bits, the blocks " + std::to_string(blocks.lanes) + " lanes");
    }
    auto add_touched = [&](FieldStorage* field) {
        const bool indirect = std::any_of(d.indirect.begin(), d.indirect.end(),
                                          [&](const IndirectAccess& a) { return a.field.get() == field; });
        if (!indirect && (field->layout() != d.layout || d.rows))
            refuse("field '" + field->label() + "' has another layout");
        if (std::find(touched_.begin(), touched_.end(), field) == touched_.end()) touched_.push_back(field);
    };
    for (auto& [index, field] : d.patches) {
        if (index < 8 || index >= d.nparameters) {
            refuse("field '" + field->label() + "' in parameter " + std::to_string(index) + " of " +
                   std::to_string(d.nparameters));
        }
        add_touched(field.get());
    }
    for (auto& [field, parities] : d.writes) {
        if (field->producer() != nullptr) refuse("writes halo item '" + field->label() + "'");
        add_touched(field.get());
    }
    for (const auto& [field, reads] : d.indirect) add_touched(field.get());
    add_requests();
    add_indirect();
    for (const auto& request : requests_) {
        add_touched(request.field.get());
        if (const auto* producer = request.field->producer()) {
            for (auto& [index, source] : producer->sources) add_touched(source.get());
        }
    }
    check_sums();
    counters_ = std::make_shared<LaunchCounters>(layout.gpu(), d.ncounters);
}

void Launch::add_requests() {
    auto& d = definition_;
    for (auto& read : d.reads) {
        if (read.field->layout() != d.layout)
            throw LayoutError("launch: " + read_name(read) + " has another layout");
        const auto table = d.layout->neighbours(read.offset);
        for (int slab : table->slabs) request_for(requests_, read.field, slab).parities |= read.parities;
        if (table->slabs.empty()) continue;
        for (std::int64_t p = 0; p < d.domain.size(); ++p) {
            const std::int64_t ghost =
                d.layout->block_of_entry(table->entries[block_at(p)]) - d.layout->first_ghost();
            if (ghost < 0) continue;
            const Slab& slab = d.layout->slabs()[d.layout->slab_of_ghost(ghost)];
            const int parity = slab.parity_of(ghost);
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

void Launch::add_indirect() {
    for (const auto& [field, reads] : definition_.indirect) {
        const auto& layout = field->layout();
        if (layout->gpu() != definition_.layout->gpu())
            throw LayoutError("launch: field '" + field->label() + "' is not where the kernel runs");
        std::vector<int> slabs;
        for (const Offset& offset : reads) {
            const auto at = layout->slabs_at(offset);
            slabs.insert(slabs.end(), at.begin(), at.end());
        }
        if (slabs.empty()) continue;
        auto same = [&](const IndirectHalos& halos) { return halos.layout == layout; };
        auto found = std::find_if(indirect_.begin(), indirect_.end(), same);
        if (found == indirect_.end()) found = indirect_.insert(indirect_.end(), {layout, {}, {}});
        for (int slab : slabs) request_for(found->requests, field, slab).parities = field->parities();
        found->stale.assign(2 * found->requests.size(), 0);
    }
}

void Launch::check_sums() const {
    const auto& d = definition_;
    const auto& sums = d.sums;
    if (sums.count == 0) return;
    auto refuse = [](const std::string& what) { throw LayoutError("launch: " + what); };
    const int results = sums.results();
    if (!sums.how.empty() && static_cast<int>(sums.how.size()) != results)
        refuse(std::to_string(sums.how.size()) + " reductions for " + std::to_string(results) + " results");
    if (!sums.terms.empty() && static_cast<int>(sums.terms.size()) != sums.count)
        refuse(std::to_string(sums.terms.size()) + " terms for " + std::to_string(sums.count) +
               " contributions");
    for (const LaunchTerm& term : sums.terms) {
        if (term.first < 0 || term.entries < 1 || term.label >= sums.labels ||
            (term.label < 0) != (term.group < 0) || (term.label < 0 && term.entries > 1))
            refuse("a term that fits no result or label");
        for (int k = 0; term.label >= 0 && k < term.entries; ++k)
            if (sums.reduction(term.first + k) != SiteReduction::sum) refuse("entries that are not sums");
    }
    if (sums.labels > 0 && (!sums.slice.empty() || sums.in_kernel_reduction))
        refuse("labels beside slices, or in a kernel that adds");
    if (!sums.slice.empty()) {
        const std::int64_t sites = visited().count * visited().lanes;
        if (static_cast<std::int64_t>(sums.slice.size()) != sites) {
            throw LayoutError("launch: " + std::to_string(sums.slice.size()) + " slice numbers for " +
                              std::to_string(sites) + " sites");
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
}

void Launch::run_leaving_sums() {
    throw LayoutError("launch: sums stay on a device, where there are some");
}

void Launch::as_doubles(double* sums) const {
    const auto& d = definition_.sums;
    for (std::size_t k = 0; k < static_cast<std::size_t>(d.nslices) * d.results(); ++k) {
        if (Extreme::whole(d.reduction(k)))
            sums[k] = static_cast<double>(std::bit_cast<std::int64_t>(sums[k]));
    }
}

void Launch::meet_extremes(std::span<std::uint64_t> keys) const {
    const auto& d = definition_;
    if (d.communicator->size() == 1) return;
    const auto parts = d.communicator->all_gather(std::as_bytes(keys), d.cost.name);
    for (std::size_t r = 0; r < parts.size(); ++r) {
        check_bytes(parts[r], keys.size_bytes(), static_cast<int>(r), d.cost.name);
        for (std::size_t k = 0; k < keys.size(); ++k) {
            std::uint64_t key;
            std::memcpy(&key, parts[r].data() + k * sizeof key, sizeof key);
            keys[k] = std::max(keys[k], key);
        }
    }
}

void Launch::mark_written() {
    for (const auto& [field, parities] : definition_.writes) field->mark_written(parities);
}

void Launch::set_policy(const HaloPolicy& policy) {
    definition_.any_policy = false;
    if (definition_.policy == &policy) return;
    drop_exchanges();
    definition_.policy = &policy;
}

void Launch::set_kernel(const GpuFunction& kernel, int threads, int waves, int sites) {
    if (definition_.layout->gpu() == nullptr) throw LayoutError("launch: no kernel of a device runs here");
    if (kernel.handle == nullptr || threads < 1 || waves < 0 || sites < 1)
        throw LayoutError("launch: no kernel");
    definition_.gpu_kernel = kernel;
    definition_.threads = threads;
    definition_.waves = waves;
    definition_.sites = sites;
    definition_.with_halos = {}; // compiled alike
    kernel_changed();
}

void Launch::set_kernel_with_halos(std::function<KernelWithHalos()> compile) {
    definition_.compile_with_halos = std::move(compile);
    definition_.with_halos = {};
    kernel_changed();
}

bool Launch::halos_stale() const {
    for (const auto& request : requests_)
        for (int parity = 0; parity < 2; ++parity)
            if ((request.parities >> parity & 1) && request.field->stale(request.slab, parity)) return true;
    return false;
}

bool Launch::find_stale() {
    return find_stale_of(requests_, stale_, *definition_.layout);
}

void Launch::for_each_stale_indirect(const std::function<void(const IndirectHalos&)>& f) {
    for (IndirectHalos& halos : indirect_)
        if (find_stale_of(halos.requests, halos.stale, *halos.layout)) f(halos);
}

void Launch::exchange_indirect() {
    for_each_stale_indirect([this](const IndirectHalos& halos) { exchange_indirect(halos); });
}

void Launch::refresh_ghosts(const std::vector<std::pair<std::shared_ptr<FieldStorage>, int>>& changing) {
    const auto stays = [&](const FieldStorage& field, std::size_t parity) {
        return std::none_of(changing.begin(), changing.end(), [&](const auto& other) {
            return (other.second >> parity & 1) && field.depends_on(*other.first);
        });
    };
    const auto refresh = [&](IndirectHalos& halos) {
        if (!find_stale_of(halos.requests, halos.stale, *halos.layout)) return;
        bool any = false;
        for (std::size_t k = 0; k < halos.stale.size(); ++k) {
            const FieldStorage& field = *halos.requests[k / 2].field;
            halos.stale[k] = halos.stale[k] && !field.changes_unreported() && stays(field, k % 2);
            any |= halos.stale[k] != 0;
        }
        if (any) exchange_indirect(halos);
    };
    refreshed_ = {definition_.layout, requests_, stale_};
    refresh(refreshed_);
    for (IndirectHalos& halos : indirect_) refresh(halos);
}

std::vector<int> Launch::late_directions(const std::vector<char>& stale) const {
    const auto& d = definition_;
    const LocalLayout& layout = *d.layout;
    const auto& domain = d.domain;
    std::vector<int> late(domain.size(), -1);
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
                layout.block_of_entry(table->entries[block_at(p)]) - layout.first_ghost();
            if (ghost < 0) continue;
            const Slab& slab = layout.slabs()[layout.slab_of_ghost(ghost)];
            if (stale_part[2 * slab.number + slab.parity_of(ghost)])
                late[p] = std::max(late[p], slab.highest_direction());
        }
    }
    return late;
}

std::vector<char> Launch::all_of(const std::vector<HaloRequest>& requests) {
    std::vector<char> all;
    for (const HaloRequest& request : requests)
        for (int parity = 0; parity < 2; ++parity) all.push_back(request.parities >> parity & 1);
    return all;
}

} // namespace jali
