#include "halo/site_table.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace jali {

RowBlocks::RowBlocks(const Geometry& geometry, int lanes)
    : lanes_(lanes), row_(geometry.extents().back()), pieces_((row_ + lanes - 1) / lanes) {
    if (lanes < 1) throw LayoutError("rows of " + std::to_string(lanes) + " lanes");
    const int n = geometry.ndim();
    Extents box = geometry.extents();
    box.back() = pieces_;
    nblocks_ = product(box);
    coordinates_.resize(static_cast<std::size_t>((n + 1) * nblocks_));
    Extents c(n);
    for (std::int64_t block = 0; block < nblocks_; ++block) {
        c_site(block, box, c);
        c.back() *= lanes_;
        for (int d = 0; d < n; ++d)
            coordinates_[d * nblocks_ + block] = static_cast<std::int32_t>(geometry.origin()[d] + c[d]);
    }
    lane_offsets_.resize(static_cast<std::size_t>(n * lanes_));
    for (int lane = 0; lane < lanes_; ++lane) lane_offsets_[(n - 1) * lanes_ + lane] = lane;
}

namespace {

using Coordinates = std::array<std::int64_t, max_dimensions>;

[[noreturn]] void too_large(const Layout& layout) {
    throw LayoutError("a rank's box of " + format_extents(layout.extents()) +
                      " sites is too large to be read site by site; use more ranks");
}

struct Found {
    std::uint32_t site;
    std::uint16_t kind;
};

// Finds sites of a layout, and numbers the ways around the lattice that lead to them.
class Finder {
  public:
    Finder(const VisitedBlocks& visited, Layout& layout, const LatticeRatio& ratio, const Offset& offset,
           bool windings, SiteTable& table)
        : visited_(visited), layout_(layout), ratio_(ratio), offset_(offset), windings_(windings),
          table_(table), n_(layout.ndim()) {
        table_.windings.assign(windings ? n_ : 0, 0);
    }

    Found operator()(std::int64_t block, int lane) {
        Coordinates site, crossed;
        for (int d = 0; d < n_; ++d) {
            const std::int64_t here = visited_.coordinate(d, n_, block, lane);
            const std::int64_t home = here / ratio_.coarser[d] * ratio_.finer[d] - layout_.origin()[d];
            if (home < 0 || home >= layout_.extents()[d]) elsewhere(d, here);
            site[d] = home + offset_[d];
        }
        const auto n = static_cast<std::size_t>(n_);
        std::int64_t found = layout_.find({site.data(), n}, {crossed.data(), n});
        if (found >= SiteTable::scattered) too_large(layout_);
        if (layout_.checkerboard() && found < layout_.nblocks()) found = of_parity(found, site);
        return {static_cast<std::uint32_t>(found), class_of(crossed)};
    }

  private:
    [[noreturn]] void elsewhere(int d, std::int64_t here) const {
        throw LayoutError(
            "site " + std::to_string(here) + " in direction " + std::to_string(d) +
            " belongs with a site of the other lattice on another rank: lattices meet where each "
            "rank's box of one is a multiple of its box of the other; give both the same grid=, "
            "of which every extent is a multiple");
    }
    // A site of the parity that the offset leads to. Where an extent is odd, a step around the lattice leads
    // to one of the other, which has no memory: what is loaded behind an open edge is discarded.
    std::int64_t of_parity(std::int64_t found, const Coordinates& site) const {
        std::int64_t sum = 0;
        for (int d = 0; d < n_; ++d) sum += layout_.origin()[d] + site[d];
        const bool odd = floor_mod(sum, 2) != 0, found_odd = found >= layout_.even_blocks();
        return odd == found_odd ? found : odd ? layout_.even_blocks() : 0;
    }
    std::uint16_t class_of(const Coordinates& crossed) {
        if (!windings_) return 0;
        const std::vector<std::int32_t> key(crossed.begin(), crossed.begin() + n_);
        if (std::all_of(key.begin(), key.end(), [](auto c) { return c == 0; })) return 0;
        auto [found, fresh] = classes_.try_emplace(key, table_.classes);
        if (fresh) {
            if (++table_.classes > 1 << 16)
                throw LayoutError("offset " + format_offset(offset_) +
                                  " leads around the lattice in more than 65536 ways");
            table_.windings.insert(table_.windings.end(), key.begin(), key.end());
        }
        return static_cast<std::uint16_t>(found->second);
    }

    const VisitedBlocks& visited_;
    Layout& layout_;
    const LatticeRatio& ratio_;
    const Offset& offset_;
    bool windings_;
    SiteTable& table_;
    int n_;
    std::map<std::vector<std::int32_t>, int> classes_;
};

} // namespace

std::shared_ptr<SiteTable> make_site_table(const VisitedBlocks& visited, Layout& layout,
                                           const LatticeRatio& ratio, const Offset& offset, bool windings) {
    layout.slabs_at(offset);
    auto table = std::make_shared<SiteTable>();
    table->entries.resize(static_cast<std::size_t>(visited.count));
    Finder find(visited, layout, ratio, offset, windings, *table);
    const auto lanes = static_cast<std::uint32_t>(visited.lanes);
    for (std::int64_t block = 0; block < visited.count; ++block) {
        const auto inside = static_cast<std::uint32_t>(visited.inside(block));
        const Found first = find(block, 0);
        // Sites of a row follow each other, unless the end of the lattice or of the box lies between them;
        // what is loaded in one piece must be there.
        if (visited.rows != nullptr && layout.c_order() && first.kind == 0 &&
            first.site + lanes <= layout.sites()) {
            const Found last = find(block, static_cast<int>(inside) - 1);
            if (last.site == first.site + inside - 1 && last.kind == 0) {
                table->entries[block] = first.site;
                continue;
            }
        }
        const auto row = static_cast<std::uint32_t>(table->lists.size() / (lanes + SiteTable::run_words));
        table->entries[block] = SiteTable::scattered | row;
        if (row == SiteTable::paired) too_large(layout);
        std::vector<std::uint32_t> sites(lanes);
        bool around = false;
        for (std::uint32_t lane = 0; lane < lanes; ++lane) {
            const Found found = lane < inside ? find(block, static_cast<int>(lane)) : first;
            sites[lane] = found.site;
            around |= found.kind != 0;
            if (windings) table->list_classes.push_back(found.kind);
        }
        std::uint32_t split = 1;
        while (split < inside && sites[split] == sites[0] + split) ++split;
        std::uint32_t end = split;
        while (end < inside && sites[end] == sites[split] + (end - split)) ++end;
        std::array<std::uint32_t, SiteTable::run_words> runs = {sites[0], 0, lanes};
        if (split < inside) runs = {sites[0], sites[split] - split, split};
        const bool there = sites[0] + lanes <= layout.sites() &&
                           (split >= inside || (sites[split] >= split && runs[1] + lanes <= layout.sites()));
        if (visited.rows != nullptr && layout.c_order() && end >= inside && there && !around)
            table->entries[block] |= SiteTable::paired;
        table->lists.insert(table->lists.end(), sites.begin(), sites.end());
        table->lists.insert(table->lists.end(), runs.begin(), runs.end());
    }
    return table;
}

} // namespace jali
