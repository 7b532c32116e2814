// core/schedule in Python: graphs of steps that are built, checked, described and run on arrays.
#include "schedule/adversarial_scheduler.hpp"
#include "schedule/executor.hpp"
#include "schedule/scheduled_events.hpp"
#include "settings/counted.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using RegionTuple = std::tuple<int, std::size_t, std::size_t>;
using PortPair = std::pair<int, int>;

Region region(const RegionTuple& r) {
    return {std::get<0>(r), std::get<1>(r), std::get<2>(r)};
}

std::vector<Port> ports(const std::vector<PortPair>& pairs) {
    std::vector<Port> result;
    for (const auto& [step, part] : pairs) result.push_back({step, part});
    return result;
}

std::vector<std::vector<Region>> regions(const std::vector<std::vector<RegionTuple>>& of_parts) {
    std::vector<std::vector<Region>> result;
    for (const auto& part : of_parts) {
        result.emplace_back();
        for (const auto& r : part) result.back().push_back(region(r));
    }
    return result;
}

std::vector<std::byte*> addresses(const Schedule& schedule, const std::vector<Array>& arrays) {
    const auto& buffers = schedule.buffers();
    if (arrays.size() != buffers.size()) {
        throw ScheduleError(std::to_string(arrays.size()) + " arrays for " +
                            counted(buffers.size(), "buffer"));
    }
    std::vector<std::byte*> result;
    for (std::size_t k = 0; k < arrays.size(); ++k) {
        if (arrays[k].nbytes() < buffers[k].bytes) {
            throw ScheduleError("buffer '" + buffers[k].name + "' has " + std::to_string(buffers[k].bytes) +
                                " bytes, its array " + std::to_string(arrays[k].nbytes()));
        }
        result.push_back(static_cast<std::byte*>(arrays[k].data()));
    }
    return result;
}

// An executor and the objects that must outlive its run.
class BoundExecutor {
  public:
    BoundExecutor(std::shared_ptr<Schedule> schedule, std::string what)
        : executor_(std::move(schedule), std::move(what)) {}

    void start(std::vector<Array> arrays, std::vector<std::shared_ptr<Communicator>> transports,
               int first_tag) {
        const auto memory = addresses(executor_.schedule(), arrays);
        std::vector<Communicator*> communicators;
        for (const auto& transport : transports) communicators.push_back(transport.get());
        if (!executor_.running()) {
            arrays_ = std::move(arrays);
            transports_ = std::move(transports);
        }
        nb::gil_scoped_release released;
        executor_.start(memory, communicators, first_tag);
    }

    bool test() {
        bool ended;
        {
            nb::gil_scoped_release released;
            ended = executor_.test();
        }
        if (ended) let_go();
        return ended;
    }

    void wait() {
        {
            nb::gil_scoped_release released;
            executor_.wait();
        }
        let_go();
    }

    bool running() const { return executor_.running(); }

  private:
    void let_go() {
        arrays_.clear();
        transports_.clear();
    }

    // Destroyed last: messages under way refer to them.
    std::vector<Array> arrays_;
    std::vector<std::shared_ptr<Communicator>> transports_;
    Executor executor_;
};

// All ranks' schedules, kept alive.
struct BoundRanks {
    explicit BoundRanks(std::vector<std::shared_ptr<Schedule>> of_ranks)
        : schedules(std::move(of_ranks)), ranks(pointers(schedules)) {}

    static std::vector<const Schedule*> pointers(const std::vector<std::shared_ptr<Schedule>>& all) {
        std::vector<const Schedule*> result;
        for (const auto& schedule : all) result.push_back(schedule.get());
        return result;
    }

    void run(const std::vector<std::vector<Array>>& memory, const std::string& order, std::uint64_t seed,
             int starved, bool buffered) {
        if (memory.size() != schedules.size())
            throw ScheduleError("memory of " + counted(memory.size(), "rank") + " for " +
                                std::to_string(schedules.size()));
        std::vector<std::vector<std::byte*>> all;
        for (std::size_t r = 0; r < memory.size(); ++r) all.push_back(addresses(*schedules[r], memory[r]));
        const AdversarialScheduler scheduler{order_of(order), seed, starved, buffered};
        nb::gil_scoped_release released;
        ranks.run(all, scheduler);
    }

    std::vector<std::shared_ptr<Schedule>> schedules;
    VirtualRanks ranks;
};

} // namespace

void bind_schedule(nb::module_& m) {
    nb::class_<Schedule>(
        m, "Schedule",
        "A graph of steps over named buffers. Regions are (buffer, offset, bytes); needs are (step, part).")
        .def(nb::init<>())
        .def("add_buffer", &Schedule::add_buffer, "name"_a, "bytes"_a, "holds_data"_a = false, "rank"_a = -1,
             "Of another rank if `rank` is not negative: it is only written.")
        .def(
            "add_signal",
            [](Schedule& s, std::string name, int to, int tag, const std::vector<PortPair>& needs) {
                return s.add(std::move(name), Signal{to, tag}, ports(needs));
            },
            "name"_a, "to"_a, "tag"_a, "needs"_a = std::vector<PortPair>{})
        .def(
            "add_wait",
            [](Schedule& s, std::string name, int source, int tag, const std::vector<PortPair>& needs) {
                return s.add(std::move(name), Wait{source, tag}, ports(needs));
            },
            "name"_a, "source"_a, "tag"_a, "needs"_a = std::vector<PortPair>{})
        .def(
            "add_receive",
            [](Schedule& s, std::string name, const RegionTuple& into, int source, int tag,
               const std::vector<PortPair>& needs, int library) {
                return s.add(std::move(name), Receive{region(into), source, tag, library}, ports(needs));
            },
            "name"_a, "into"_a, "source"_a, "tag"_a, "needs"_a = std::vector<PortPair>{}, "library"_a = 0)
        .def(
            "add_send",
            [](Schedule& s, std::string name, const RegionTuple& data, int to, int tag,
               const std::vector<PortPair>& needs, int library) {
                return s.add(std::move(name), Send{region(data), to, tag, library}, ports(needs));
            },
            "name"_a, "data"_a, "to"_a, "tag"_a, "needs"_a = std::vector<PortPair>{}, "library"_a = 0)
        .def(
            "add_copy",
            [](Schedule& s, std::string name, const RegionTuple& data, const RegionTuple& to,
               std::size_t row_bytes, const std::vector<std::int32_t>& rows,
               const std::vector<PortPair>& needs) {
                auto list = rows.empty() ? nullptr : std::make_shared<const std::vector<std::int32_t>>(rows);
                return s.add(std::move(name), Copy{{{region(data), region(to), row_bytes, list, 0}}},
                             ports(needs));
            },
            "name"_a, "data"_a, "to"_a, "row_bytes"_a, "rows"_a = std::vector<std::int32_t>{},
            "needs"_a = std::vector<PortPair>{})
        .def(
            "add_reduce",
            [](Schedule& s, std::string name, const std::vector<RegionTuple>& sources,
               const RegionTuple& into, const std::string& type, const std::string& operation,
               const std::vector<PortPair>& needs, int divide_by) {
                Reduce step{{data_type_of(type), operation_of(operation), divide_by, nullptr},
                            {{region(into), {}}}};
                for (const auto& source : sources) step.specs[0].from.push_back(region(source));
                return s.add(std::move(name), std::move(step), ports(needs));
            },
            "name"_a, "sources"_a, "into"_a, "type"_a, "operation"_a = "sum",
            "needs"_a = std::vector<PortPair>{}, "divide_by"_a = 1,
            "into = sources[0] op sources[1] op ...; ValueError lists the types and operations there are.")
        .def(
            "add_kernel",
            [](Schedule& s, std::string name, nb::callable body,
               const std::vector<std::vector<RegionTuple>>& reads,
               const std::vector<std::vector<RegionTuple>>& writes,
               const std::vector<std::vector<PortPair>>& needs, bool progress) {
                Kernel kernel;
                auto shared =
                    std::shared_ptr<nb::callable>(new nb::callable(std::move(body)), [](nb::callable* p) {
                        nb::gil_scoped_acquire acquired;
                        delete p;
                    });
                kernel.body = [shared, progress](int part, std::span<std::byte* const>,
                                                 const Progress* poll) {
                    nb::gil_scoped_acquire acquired;
                    if (!progress)
                        (*shared)(part);
                    else
                        (*shared)(part, nb::cpp_function([poll] {
                                      nb::gil_scoped_release released;
                                      if (poll) (*poll)();
                                  }));
                };
                kernel.reads = regions(reads);
                kernel.writes = regions(writes);
                std::vector<Part> parts;
                for (std::size_t k = 0; k < needs.size(); ++k)
                    parts.push_back({std::to_string(k), ports(needs[k])});
                return s.add_kernel(std::move(name), std::move(kernel), std::move(parts));
            },
            "name"_a, "body"_a, "reads"_a, "writes"_a, "needs"_a, "progress"_a = false,
            "body(part); reads, writes and needs are given per part. With `progress`, body(part, progress): "
            "the kernel calls progress() between its blocks of work.")
        .def_prop_rw("libraries", &Schedule::libraries, &Schedule::set_libraries,
                     "Names of what carries messages; steps refer to them by index.")
        .def_prop_ro("steps", [](const Schedule& s) { return s.steps().size(); })
        .def_prop_ro(
            "buffers",
            [](const Schedule& s) {
                std::vector<std::pair<std::string, std::size_t>> all;
                for (const auto& buffer : s.buffers()) all.emplace_back(buffer.name, buffer.bytes);
                return all;
            },
            "(name, bytes) of each.")
        .def("check", &Schedule::check, "RuntimeError says which step reads, writes or needs wrongly.")
        .def_static(
            "check_messages",
            [](const std::vector<std::shared_ptr<Schedule>>& of_ranks) {
                check_messages(BoundRanks::pointers(of_ranks));
            },
            "of_ranks"_a, "RuntimeError names messages that do not meet in size, peer, tag and order.")
        .def_static(
            "prove",
            [](const std::vector<std::shared_ptr<Schedule>>& of_ranks,
               const std::vector<std::vector<std::pair<int, std::uint64_t>>>& locations) {
                std::vector<RankEvents> all;
                for (std::size_t r = 0; r < of_ranks.size(); ++r) {
                    std::vector<Stretch> stretches;
                    const auto& buffers = of_ranks[r]->buffers();
                    for (std::size_t k = 0; k < locations.at(r).size(); ++k) {
                        const auto [rank, begin] = locations[r][k];
                        stretches.push_back({static_cast<std::uint64_t>(rank), begin,
                                             begin + (k < buffers.size() ? buffers[k].bytes : 0)});
                    }
                    all.push_back(events_of(*of_ranks[r], static_cast<int>(r), stretches));
                }
                nb::gil_scoped_release released;
                prove(all);
            },
            "of_ranks"_a, "locations"_a,
            "locations: [rank][buffer]: (whose memory, where it begins there). RuntimeError names what some "
            "runs "
            "of all ranks have in disorder.")
        .def("describe", &Schedule::describe)
        .def(
            "run",
            [](std::shared_ptr<Schedule> self, const std::vector<Array>& buffers,
               Communicator& communicator) {
                const auto memory = addresses(*self, buffers);
                Executor executor(self);
                nb::gil_scoped_release released;
                executor.run(memory, communicator);
            },
            "buffers"_a, "communicator"_a, "Runs once on the host; one array per buffer.");

    nb::class_<BoundExecutor>(m, "Executor",
                              "Runs a schedule again and again: start, then test now and then, or wait.")
        .def(nb::init<std::shared_ptr<Schedule>, std::string>(), "schedule"_a, "what"_a = "")
        .def("start", &BoundExecutor::start, "buffers"_a, "transports"_a, "first_tag"_a = 0,
             "One array per buffer; one transport for all libraries, or one for each.")
        .def("test", &BoundExecutor::test, "Makes progress; True when all steps have ended.")
        .def("wait", &BoundExecutor::wait)
        .def_prop_ro("running", &BoundExecutor::running);

    nb::class_<BoundRanks>(
        m, "VirtualRanks",
        "Runs the schedules of all ranks in this thread, in orders that nobody would choose.")
        .def(nb::init<std::vector<std::shared_ptr<Schedule>>>(), "schedules"_a)
        .def("run", &BoundRanks::run, "memory"_a, "order"_a = "random", "seed"_a = 0, "starved"_a = -1,
             "buffered"_a = false,
             "memory[rank][buffer]; order: random, oldest, newest; starved: a rank that moves only when no "
             "other can; buffered: sends may end before they are received. RuntimeError: a deadlock.");
}
