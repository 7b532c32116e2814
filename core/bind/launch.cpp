// Launches and reproducible sums in Python.
#include "halo/launch.hpp"
#include "device/scalar_block.hpp"
#include "halo/footprint.hpp"
#include "halo/host_launch.hpp"
#include "halo/launch_trial.hpp"
#include "sum/binned.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A launch and the Python objects whose memory it reads.
struct BoundLaunch {
    std::unique_ptr<Launch> launch;
    nb::object parameters;
};

} // namespace

void bind_launch(nb::module_& m) {
    nb::class_<LaunchCounters>(
        m, "LaunchCounters",
        "What the kernel of a launch, or of what is sent for it, counts, on this rank; "
        "outlives the launch.")
        .def(nb::init<std::shared_ptr<Gpu>, int>(), "gpu"_a.none(), "count"_a,
             nb::call_guard<nb::gil_scoped_release>(), // the device may be waited for
             "For halo_item(counters=...): all 0, on the host if there is no gpu.")
        .def_prop_ro("address", &LaunchCounters::address, "Where the kernel counts.")
        .def_prop_ro(
            "values",
            [](const LaunchCounters& self) {
                nb::gil_scoped_release released;
                return self.values();
            },
            "Of all runs together; on a device, waits for its work so far.")
        .def_static(
            "values_of",
            [](const std::vector<const LaunchCounters*>& several) {
                nb::gil_scoped_release released;
                return LaunchCounters::values_of(several);
            },
            "several"_a, "`values` of several, for which devices are waited for once.")
        .def("clear", &LaunchCounters::clear, "number"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Makes one of them 0.")
        .def_prop_ro("final", &LaunchCounters::final, "The launch is gone, and counts no more.");
    nb::class_<BoundLaunch>(m, "Launch", "A kernel bound to fields, a domain and its halos.")
        .def(
            "__init__",
            [](BoundLaunch* self, std::shared_ptr<LocalLayout> layout,
               std::shared_ptr<Communicator> communicator, std::shared_ptr<ThreadPool> pool,
               std::uintptr_t kernel,
               nb::ndarray<std::uint64_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu> parameters,
               std::vector<std::pair<int, std::shared_ptr<FieldStorage>>> patches,
               std::vector<std::tuple<std::shared_ptr<FieldStorage>, Offset, int>> reads,
               std::vector<std::pair<std::shared_ptr<FieldStorage>, int>> writes, std::int64_t begin,
               std::int64_t end, std::optional<Vector<std::int32_t>> blocks,
               std::optional<Vector<std::uint32_t>> masks, int nsums,
               std::optional<nb::ndarray<const std::int32_t, nb::c_contig, nb::device::cpu>> slices,
               int nslices, bool fast, int ncounters, const std::string& policy,
               const GpuFunction* gpu_kernel, int threads, bool in_kernel_reduction, const std::string& name,
               std::tuple<std::int64_t, std::int64_t, std::int64_t, std::uint8_t> cost,
               std::shared_ptr<RowBlocks> rows,
               std::vector<std::pair<std::shared_ptr<FieldStorage>, std::vector<Offset>>> indirect,
               std::vector<std::pair<int, std::shared_ptr<FieldStorage>>> away,
               const std::vector<std::string>& reductions,
               const std::vector<std::tuple<int, int, int, int>>& terms, int nlabels, int members) {
                LaunchDefinition d;
                d.domain.begin = begin;
                d.domain.end = end < 0 ? layout->nblocks() : end;
                d.rows = std::move(rows);
                for (auto& [field, offsets] : indirect)
                    d.indirect.push_back({std::move(field), std::move(offsets)});
                d.away = std::move(away);
                if (blocks) {
                    d.domain.blocks.assign(blocks->data(), blocks->data() + blocks->size());
                    d.domain.begin = d.domain.end = 0;
                }
                if (masks) d.domain.masks.assign(masks->data(), masks->data() + masks->size());
                const GpuVendor* const vendor = layout->vendor();
                d.layout = std::move(layout);
                d.communicator = std::move(communicator);
                d.pool = std::move(pool);
                d.kernel = reinterpret_cast<KernelFunction>(kernel);
                if (gpu_kernel != nullptr) d.gpu_kernel = *gpu_kernel;
                d.threads = threads;
                d.members = members;
                d.parameters = parameters.data();
                d.nparameters = static_cast<int>(parameters.size());
                d.patches = std::move(patches);
                for (auto& [field, offset, parities] : reads)
                    d.reads.push_back({std::move(field), std::move(offset), parities});
                d.writes = std::move(writes);
                d.sums.count = nsums;
                for (const auto& how : reductions) d.sums.how.push_back(site_reduction_of(how));
                for (const auto& [first, entries, label, group] : terms)
                    d.sums.terms.push_back({first, entries, label, group});
                d.sums.labels = nlabels;
                if (slices) d.sums.slice.assign(slices->data(), slices->data() + slices->size());
                d.sums.nslices = nslices;
                d.sums.fast = fast;
                d.sums.in_kernel_reduction = in_kernel_reduction;
                d.ncounters = ncounters;
                d.cost = {name, std::get<0>(cost), std::get<1>(cost), std::get<2>(cost), std::get<3>(cost)};
                d.policy = &halo_policy(policy, vendor);
                d.any_policy = any_halo_policy(policy);
                nb::object kept = nb::cast(parameters);
                std::unique_ptr<Launch> made;
                {
                    nb::gil_scoped_release released; // a device may be waited for
                    made = Launch::make(std::move(d));
                }
                new (self) BoundLaunch{std::move(made), std::move(kept)};
            },
            "layout"_a, "communicator"_a, "pool"_a, "kernel"_a, "parameters"_a.noconvert(), "patches"_a,
            "reads"_a, "writes"_a, "begin"_a = 0, "end"_a = -1, "blocks"_a = nb::none(),
            "masks"_a = nb::none(), "nsums"_a = 0, "slices"_a = nb::none(), "nslices"_a = 1, "fast"_a = false,
            "ncounters"_a = 0, "policy"_a = "", "gpu_kernel"_a.none() = nb::none(), "threads"_a = 0,
            "in_kernel_reduction"_a = false, "name"_a = "kernel", "cost"_a = std::make_tuple(0, 0, 0, 0),
            "rows"_a.none() = nb::none(),
            "indirect"_a = std::vector<std::pair<std::shared_ptr<FieldStorage>, std::vector<Offset>>>(),
            "away"_a = std::vector<std::pair<int, std::shared_ptr<FieldStorage>>>(),
            "reductions"_a = std::vector<std::string>(),
            "terms"_a = std::vector<std::tuple<int, int, int, int>>(), "nlabels"_a = 0, "members"_a = 1,
            "parameters (uint64) is kept and read at every run: change scalars in place. patches: "
            "[(parameter, "
            "field)]; reads: "
            "[(field, offset, parities)]; writes: [(field, parities)]. Runs over blocks begin..end-1 or a "
            "list, of the layout or of rows of arrays. cost: bytes that must be moved, bytes moved without "
            "caches, operations, all per site, and place of the arithmetic. indirect: [(field, offsets)] "
            "that tables "
            "of "
            "sites find; away: [(parameter, field)], how far its ghosts are away. reductions: sum, max, min, "
            "max_whole or min_whole for each result; none: all are summed. terms: (first result, entries, "
            "label, "
            "group) of each of the nsums, label and group -1 where there is one entry; nlabels: whole "
            "numbers "
            "behind them, which say of what entry a site is.")
        .def(
            "run",
            [](BoundLaunch& self) -> nb::object {
                const auto& sums = self.launch->definition().sums;
                if (sums.count == 0) {
                    {
                        nb::gil_scoped_release released;
                        self.launch->run(nullptr);
                    }
                    return nb::none(); // counted, so only with the lock
                }
                const auto n = static_cast<std::size_t>(sums.results()),
                           slices = static_cast<std::size_t>(sums.nslices);
                std::unique_ptr<double[]> result(new double[n * slices]);
                {
                    nb::gil_scoped_release released;
                    self.launch->run(result.get());
                }
                double* data = result.get();
                nb::capsule owner(result.release(),
                                  [](void* p) noexcept { delete[] static_cast<double*>(p); });
                if (sums.slice.empty()) return nb::cast(nb::ndarray<nb::numpy, double>(data, {n}, owner));
                return nb::cast(nb::ndarray<nb::numpy, double>(data, {slices, n}, owner));
            },
            nb::sig("def run(self) -> numpy.typing.NDArray[numpy.float64] | None"),
            "Halos, kernel, sums. Returns None, or float64 [results] or [nslices][results], the same on all "
            "ranks; the bits of an int64 where whole numbers were compared.")
        .def(
            "run_into",
            [](BoundLaunch& self, ScalarBlock& numbers) {
                const auto& sums = self.launch->definition().sums;
                if (sums.count == 0 || numbers.count() != sums.results() * sums.nslices)
                    throw LayoutError("launch: " + std::to_string(sums.results() * sums.nslices) +
                                      " sums into " + std::to_string(numbers.count()) + " numbers");
                if (self.launch->definition().layout->gpu() != nullptr)
                    throw LayoutError("launch: numbers of a device are set by its kernels");
                nb::gil_scoped_release released;
                double* results = reinterpret_cast<double*>(numbers.address());
                self.launch->run(results);
                self.launch->as_doubles(results);
            },
            "numbers"_a, "As run, on the host; the sums go there, as float64.")
        .def(
            "run_leaving_sums", [](BoundLaunch& self) { self.launch->run_leaving_sums(); },
            nb::call_guard<nb::gil_scoped_release>(),
            "As run, on a device, without waiting: the words of this rank's sums stay at words_of_sums until "
            "a kernel has taken their values and left zeros, which sums_taken() says.")
        .def_prop_ro("words_of_sums", [](const BoundLaunch& self) { return self.launch->words_of_sums(); })
        .def_prop_ro(
            "left_out", [](const BoundLaunch& self) { return self.launch->left_out(); },
            "Of the last run on all ranks, for each group of terms: sites whose label is of no entry.")
        .def("sums_taken", [](BoundLaunch& self) { self.launch->sums_taken(); })
        .def(
            "make_ready", [](BoundLaunch& self) { self.launch->make_ready(); },
            nb::call_guard<nb::gil_scoped_release>(),
            "What a run does only if need be (room for ghosts, zeros for sums), before it is recorded in a "
            "graph.")
        .def(
            "warm_up", [](BoundLaunch& self) { self.launch->warm_up(); },
            nb::call_guard<nb::gil_scoped_release>(),
            "What a run needs of the host and of other ranks, before it is recorded in a graph; it counts as "
            "done. Collective.")
        .def(
            "refresh_ghosts",
            [](BoundLaunch& self,
               const std::vector<std::pair<std::shared_ptr<FieldStorage>, int>>& changing) {
                nb::gil_scoped_release released;
                self.launch->refresh_ghosts(changing);
            },
            "changing"_a,
            "Fills stale ghosts that a run reads, but those of these (field, parities), or of borrowed ones. "
            "Collective.")
        .def(
            "mark_written", [](BoundLaunch& self) { self.launch->mark_written(); },
            "What a run says of the fields that it writes, for one that a graph repeats.")
        .def_prop_ro(
            "counters", [](const BoundLaunch& self) { return self.launch->counters(); },
            "What its kernel counts.")
        .def_prop_ro("policy", [](const BoundLaunch& self) { return self.launch->definition().policy->name; })
        .def(
            "set_policy",
            [](BoundLaunch& self, const std::string& name) {
                nb::gil_scoped_release released; // a device may be waited for
                self.launch->set_policy(halo_policy(name, self.launch->definition().layout->vendor()));
            },
            "name"_a,
            "Another policy for halos, on all ranks alike. Graphs keep the policy that they were recorded "
            "with.")
        .def(
            "set_kernel",
            [](BoundLaunch& self, const GpuFunction& kernel, int threads, int waves, int sites) {
                self.launch->set_kernel(kernel, threads, waves, sites);
            },
            "kernel"_a, "threads"_a, "waves"_a = 0, "sites"_a = 1,
            "The same kernel compiled or started otherwise; waves: blocks at most, in units of what the "
            "device holds at once, 0 for any number; sites: of a thread, at a time, as it was compiled.")
        .def(
            "set_kernel_with_halos",
            [](BoundLaunch& self, nb::callable compile) {
                self.launch->set_kernel_with_halos([compile = std::move(compile)] {
                    nb::gil_scoped_acquire acquired;
                    const auto [function, threads, sites] =
                        nb::cast<std::tuple<GpuFunction, int, int>>(compile());
                    return KernelWithHalos{function, threads, sites};
                });
            },
            "compile"_a,
            "compile() -> (function, threads of a block, sites of a thread) of the kernel that exchanges "
            "halos as "
            "well; called when a halo policy first asks for it.")
        .def_prop_ro(
            "halos_stale", [](const BoundLaunch& self) { return self.launch->halos_stale(); },
            "Whether a run would exchange halos now; the same on all ranks.")
        .def_prop_ro(
            "capturing",
            [](const BoundLaunch& self) {
                const auto& gpu = self.launch->definition().layout->gpu();
                return gpu != nullptr && gpu->is_capturing(gpu->stream());
            },
            "Whether a run would become part of a graph.")
        .def(
            "describe", [](BoundLaunch& self) { return self.launch->describe(); },
            nb::call_guard<nb::gil_scoped_release>(),
            "What is done by a run in which every ghost that is read is stale; on a device, what the driver "
            "is "
            "given for a few such runs, which is collective.")
        .def(
            "schedule", [](BoundLaunch& self) { return std::make_shared<Schedule>(self.launch->schedule()); },
            nb::call_guard<nb::gil_scoped_release>(), "The steps of such a run, around a kernel. Collective.")
        .def(
            "check", [](BoundLaunch& self) { self.launch->check(); },
            nb::call_guard<nb::gil_scoped_release>(),
            "Proves that it is in order; RuntimeError says what is wrong. Collective on devices, where all "
            "ranks are looked at together.")
        .def(
            "footprint",
            [](const BoundLaunch& self) {
                const Launch& launch = *self.launch;
                const LaunchDefinition& d = launch.definition();
                const auto requests = launch.requests();
                std::vector<std::int32_t> positions = d.domain.blocks;
                for (std::int64_t p = d.domain.begin; p < d.domain.end; ++p)
                    positions.push_back(static_cast<std::int32_t>(p));
                const SiteFootprint touched = footprint_at(d, requests, positions);
                std::map<GpuAddress, std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>> sites;
                const auto add = [&](const FieldStorage* field, const std::vector<char>* there, bool writes) {
                    auto& of_field = sites[field->address()];
                    for (std::int64_t block = 0; block < field->layout()->nblocks(); ++block)
                        if (there == nullptr || (*there)[static_cast<std::size_t>(block)])
                            (writes ? of_field.second : of_field.first)
                                .push_back(field->layout()->box_site(block, 0));
                };
                for (const auto& [field, there] : touched.reads) add(field, &there, false);
                for (const FieldStorage* field : touched.all_read) add(field, nullptr, false);
                for (const auto& [field, there] : touched.writes) add(field, &there, true);
                for (const FieldStorage* field : touched.all_written) add(field, nullptr, true);
                std::vector<std::pair<GpuAddress, std::size_t>> ghosts;
                for (const auto& [request, parity] : touched.ghosts) {
                    const Layout& layout = *request->field->layout();
                    const Slab& slab = layout.slabs()[request->slab];
                    if (slab.count[parity] > 0 && (request->parities >> parity & 1))
                        ghosts.emplace_back(
                            request->field->address_of_ghost(layout.first_ghost() + slab.first[parity]),
                            static_cast<std::size_t>(slab.count[parity]) * request->field->block_bytes());
                }
                return std::pair(sites, ghosts);
            },
            "What its kernel touches by its compiler's word, on a device: {address of a field: (sites read, "
            "sites written)}, by their numbers in the rank's box; and the ghosts that it reads, [(address, "
            "bytes)].")
        .def(
            "recorded",
            [](BoundLaunch& self, bool in_graph) { return LaunchTrial(*self.launch).record(in_graph); },
            "in_graph"_a = false, nb::keep_alive<0, 1>(), nb::call_guard<nb::gil_scoped_release>(),
            "What the driver is given for a few runs in which every ghost that is read is stale, perhaps "
            "repetitions of a graph. Collective.");
    nb::class_<LaunchTrial>(
        m, "LaunchTrial",
        "A launch run for the clock; what it changes is put back by finish(), at the latest "
        "when this goes.")
        .def(
            "__init__",
            [](LaunchTrial* self, BoundLaunch& bound) {
                nb::gil_scoped_release released;
                new (self) LaunchTrial(*bound.launch);
            },
            "launch"_a, nb::keep_alive<1, 2>(), "MemoryError: no room for a copy of what is written.")
        .def("kernel", &LaunchTrial::kernel, "repetitions"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Seconds of each of so many runs of the kernel alone; needs no other rank.")
        .def("prepare_exchange", &LaunchTrial::prepare_exchange, nb::call_guard<nb::gil_scoped_release>(),
             "Collective; DeviceError where the launch's policy is not possible.")
        .def("exchange", &LaunchTrial::exchange, "series"_a, "runs"_a,
             nb::call_guard<nb::gil_scoped_release>(),
             "Seconds per run of each of so many series of runs with halos. Collective.")
        .def("finish", &LaunchTrial::finish, nb::call_guard<nb::gil_scoped_release>());
}

void bind_sum(nb::module_& m) {
    m.attr("sum_words") = static_cast<int>(BinnedSum::words); // whole numbers of 64 bits that a sum is
    nb::class_<BinnedSum>(m, "BinnedSum", "A sum of doubles that does not depend on their order.")
        .def(nb::init<>())
        .def(
            "deposit",
            [](BinnedSum& s, nb::ndarray<const double, nb::c_contig, nb::device::cpu> values) {
                s.deposit(values.data(), static_cast<std::int64_t>(values.size()));
            },
            "values"_a)
        .def("merge", &BinnedSum::merge, "other"_a)
        .def("value", &BinnedSum::value)
        .def(
            "words",
            [](const BinnedSum& s) {
                auto* data = new std::int64_t[BinnedSum::words];
                nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::int64_t*>(p); });
                s.write_words({data, BinnedSum::words});
                return nb::ndarray<nb::numpy, std::int64_t>(
                    data, {static_cast<std::size_t>(BinnedSum::words)}, owner);
            },
            "int64: add them over ranks, then value_of_words.")
        .def_static(
            "value_of_words",
            [](nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> words) {
                if (words.size() != BinnedSum::words) {
                    throw LayoutError("value_of_words: " + std::to_string(words.size()) +
                                      " words, expected " + std::to_string(BinnedSum::words));
                }
                return BinnedSum::value_of_words({words.data(), words.size()});
            },
            "words"_a);
}
