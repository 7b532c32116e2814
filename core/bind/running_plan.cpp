// core/running/running_plan in Python: the result of jali.planner.Plan.on.
//
// Python code handles rare cases: arrays of other libraries, and graphs that record a run
// (jali.planner.running_plan).
#include "running/running_plan.hpp"
#include "bind/ending.hpp"
#include "bind/gpu_array.hpp"
#include "bind/graph_recorder.hpp"
#include "bind/host_arrays.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

// Kept for ever, and not function-local statics, for whose guard other threads would wait during an import.
PyObject *numpy_array = nullptr, *no_elements = nullptr;

struct BoundPlan {
    nb::object plan; // the Python object that owns this one: a cycle that the collector traverses
    std::shared_ptr<RunningPlan> core;
    std::shared_ptr<const Composition> composition;
    std::vector<std::string> names; // of the user's buffers
    std::string what, element;
    nb::object dtype; // the last one of NumPy that was of this element

    BoundPlan(nb::object of, const nb::object& communicator);
};

BoundPlan::BoundPlan(nb::object of, const nb::object& communicator) : plan(std::move(of)) {
    auto whole = nb::cast<std::shared_ptr<Composition>>(plan.attr("composition").attr("core"));
    const nb::object collective = plan.attr("collective");
    auto parameters = nb::cast<PlanParameters>(plan.attr("parameters"));
    composition = whole;
    what = collective.is_none() ? "composition" : nb::cast<std::string>(collective);
    element = name_of(composition->type());
    for (const CompositionBuffer& buffer : composition->buffers())
        if (buffer.name != "work") names.push_back(buffer.name);
    if (numpy_array == nullptr) {
        const nb::object numpy = nb::module_::import_("numpy");
        nb::object array = numpy.attr("ndarray");
        no_elements = numpy.attr("empty")(0, "uint8").release().ptr();
        numpy_array = array.release().ptr();
    }
    refuse_other_ranks(*composition, nb::cast<int>(communicator.attr("size")));
    const nb::object there = is_for_devices(parameters) // may be made where a graph is recorded
                                 ? nb::module_::import_("jali.planner.running_plan")
                                       .attr("collectives_before_graphs")(communicator)
                                 : communicator.attr("collectives");
    auto collectives = nb::cast<std::shared_ptr<Collectives>>(there);
    nb::gil_scoped_release released;
    core = ended_without_lock(
        std::make_shared<RunningPlan>(std::move(collectives), composition, std::move(parameters), what));
}

constexpr const char* stream_key = "stream"; // no name of a buffer

// The array arguments for the buffers, in their order.
class GivenArrays {
  public:
    GivenArrays(BoundPlan& plan, const nb::args& given, const nb::kwargs& named)
        : plan_(plan), stream_(stream_among(named)) {
        const auto& names = plan.names;
        if (named.size() > 0) refuse_unknown(named, given.size());
        for (nb::handle one : given) add(nb::borrow(one));
        for (std::size_t k = given.size(); k < names.size(); ++k) {
            PyObject* const one =
                named.size() > 0 ? PyDict_GetItemString(named.ptr(), names[k].c_str()) : nullptr;
            add(one == nullptr ? nb::none() : nb::borrow(one));
        }
    }

    bool on_device() const {
        return std::ranges::any_of(gpu_arrays_, [](const auto* p) { return p != nullptr; });
    }
    std::span<const GpuArray* const> gpu_arrays() const { return gpu_arrays_; } // null is none
    std::span<const nb::object> objects() const { return objects_; }
    std::optional<void*> stream() const { return stream_; } // none: jali's
    bool meet_jali() const { return meet_jali_; }           // users of some work on jali's stream

    void refuse_stream(const char* why) const {
        if (stream_) throw CollectiveError(why);
    }

    // Their device. Raises ParameterError where some are elsewhere.
    std::shared_ptr<Gpu> gpu() const {
        std::shared_ptr<Gpu> found;
        for (std::size_t k = 0; k < objects_.size(); ++k) {
            if (gpu_arrays_[k] != nullptr) {
                if (!found) found = gpu_arrays_[k]->kind->gpu;
                if (found != gpu_arrays_[k]->kind->gpu)
                    throw CollectiveError("some arrays of a plan are on " + found->name() + " and some on " +
                                          gpu_arrays_[k]->kind->gpu->name() +
                                          "; give all on the same device");
            } else if (nb::cast<std::size_t>(objects_[k].attr("size")) > 0) {
                throw CollectiveError(
                    "some arrays of a plan are in device memory and some are not; give all in the same");
            }
        }
        return found;
    }

    // Their addresses for a plan on that device. Raises ParameterError for those of other sizes.
    std::vector<GpuAddress> addresses(const GpuPlan& plan) const {
        std::vector<GpuAddress> all;
        for (std::size_t k = 0; k < gpu_arrays_.size(); ++k) {
            const std::size_t bytes = gpu_arrays_[k] != nullptr ? gpu_arrays_[k]->kind->nbytes : 0;
            all.push_back(gpu_arrays_[k] != nullptr ? gpu_arrays_[k]->address : 0);
            if (k >= plan_.names.size()) continue; // a plan with fewer reports the error
            const std::size_t wanted = plan.bytes_of(static_cast<int>(k));
            if (bytes != wanted)
                throw CollectiveError(plan_.what + ": buffer '" + plan_.names[k] + "' has " +
                                      std::to_string(wanted) +
                                      " bytes on this rank, the array given for it " + std::to_string(bytes));
        }
        return all;
    }

    // As the memory of the host; see HostArrays::fit.
    std::span<std::byte* const> on_host(HostArrays& into, const PersistentPlan& plan) const {
        const std::vector<nb::handle> handles(objects_.begin(), objects_.end());
        for (std::size_t k = 0; k < handles.size(); ++k) into[k].read(handles[k]);
        return into.fit(plan, handles);
    }

  private:
    void refuse_unknown(const nb::kwargs& named, std::size_t given) const {
        std::vector<std::string> unknown;
        for (const auto& [name, array] : named) {
            const auto text = nb::cast<std::string>(name);
            if (text == stream_key) continue;
            if (std::ranges::find(plan_.names, text) == plan_.names.end()) unknown.push_back(text);
        }
        std::ranges::sort(unknown);
        if (!unknown.empty())
            throw CollectiveError("no buffer is named " + joined(unknown) + "; there are " +
                                  joined(plan_.names));
        for (std::size_t k = 0; k < std::min(given, plan_.names.size()); ++k)
            if (named.contains(plan_.names[k].c_str()))
                throw CollectiveError("buffer '" + plan_.names[k] + "' is given twice, as number " +
                                      std::to_string(k) + " and by its name");
    }
    static std::string joined(const std::vector<std::string>& words) {
        std::string text;
        for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
        return text;
    }

    void add(nb::object x) {
        if (x.is_none()) {
            objects_.push_back(nb::borrow(no_elements));
            gpu_arrays_.push_back(nullptr);
            return;
        }
        const GpuArray* gpu_array = gpu_array_of(x);
        meet_jali_ = meet_jali_ || gpu_array != nullptr;
        if (gpu_array == nullptr && PyObject_IsInstance(x.ptr(), numpy_array) != 1) {
            const nb::object memory_of = nb::module_::import_("jali.comm.device_of_array").attr("memory_of");
            x = stream_ ? memory_of(x, false, reinterpret_cast<std::uintptr_t>(*stream_)) : memory_of(x);
            gpu_array = gpu_array_of(x);
            if (gpu_array != nullptr)
                meet_jali_ = meet_jali_ || gpu_array->owner_stream == reinterpret_cast<std::uintptr_t>(
                                                                          gpu_array->kind->gpu->stream());
        }
        check_element(x, gpu_array);
        objects_.push_back(std::move(x));
        gpu_arrays_.push_back(gpu_array);
    }

    void check_element(const nb::object& x, const GpuArray* gpu_array) {
        if (gpu_array != nullptr) {
            const std::string name(name_of(gpu_array->kind->type));
            if (name != plan_.element) refuse_element(name);
            return;
        }
        const nb::object dtype = x.attr("dtype");
        if (dtype.is(plan_.dtype)) return;
        const nb::object name = nb::module_::import_("jali.comm.elements").attr("element_name")(dtype);
        if (nb::cast<std::string>(name) != plan_.element) refuse_element(nb::str(dtype).c_str());
        plan_.dtype = dtype;
    }
    [[noreturn]] void refuse_element(const std::string& given) const {
        const std::size_t k = objects_.size();
        const std::string name = k < plan_.names.size() ? plan_.names[k] : "number " + std::to_string(k);
        throw CollectiveError("buffer '" + name + "' holds " + plan_.element + ", the array given for it " +
                              given);
    }

    static std::optional<void*> stream_among(const nb::kwargs& named) {
        PyObject* const given = named.size() > 0 ? PyDict_GetItemString(named.ptr(), stream_key) : nullptr;
        return given != nullptr ? stream_of(given) : std::nullopt;
    }

    BoundPlan& plan_;
    const std::optional<void*> stream_;
    bool meet_jali_ = false;
    std::vector<nb::object> objects_;
    std::vector<const GpuArray*> gpu_arrays_;
};

// One array or None for each buffer of the user.
nb::tuple buffers_of(const GivenArrays& arrays) {
    nb::list all;
    for (std::size_t k = 0; k < arrays.objects().size(); ++k)
        all.append(arrays.gpu_arrays()[k] != nullptr ? arrays.objects()[k] : nb::none());
    return nb::tuple(all);
}

// False: the arrays are not on a device.
bool start_on_device(BoundPlan& self, const GivenArrays& arrays) {
    if (!arrays.on_device()) {
        arrays.refuse_stream("`stream` is for arrays in device memory; these are in the host's");
        return false;
    }
    RunningPlan& plan = *self.core;
    const std::shared_ptr<Gpu> gpu = arrays.gpu();
    const std::shared_ptr<GpuPlan> there = [&] {
        nb::gil_scoped_release released;
        return plan.on(gpu);
    }();
    const std::vector<GpuAddress> addresses = arrays.addresses(*there);
    if (const nb::object recorded_by = recorder(); !recorded_by.is_none()) {
        if (arrays.stream())
            refuse_recorded("a plan on a stream of its own is started", "leave the stream to the graph");
        nb::module_::import_("jali.planner.running_plan")
            .attr("record")(recorded_by, nb::find(self), ended_without_lock(there), buffers_of(arrays));
        nb::gil_scoped_release released;
        plan.warm_up(gpu, addresses);
        return true;
    }
    void* const on = arrays.stream().value_or(gpu->stream());
    {
        nb::gil_scoped_release released; // a full stream waits, perhaps for a rank that is a thread
        // arrays of jali that are used on another stream; the graph's launcher orders its work
        const bool meet_jali = on != gpu->stream() && arrays.meet_jali() && !gpu->is_capturing(on);
        if (meet_jali) gpu->let_wait(on);
        plan.start(gpu, addresses, on);
        if (meet_jali) gpu->wait_for(on);
    }
    if (!arrays.stream()) let_owners_go_on(arrays.gpu_arrays());
    return true;
}

void start(BoundPlan& self, const nb::args& given, const nb::kwargs& named) {
    const GivenArrays arrays(self, given, named);
    if (start_on_device(self, arrays)) return;
    refuse_call("start");
    PersistentPlan& plan = self.core->on_host();
    const auto held = held_until_the_end(arrays.objects().size());
    const auto addresses = arrays.on_host(*held, plan);
    nb::gil_scoped_release released;
    plan.start(addresses, held);
}

void run(BoundPlan& self, const nb::args& given, const nb::kwargs& named) {
    const GivenArrays arrays(self, given, named);
    if (start_on_device(self, arrays)) return;
    refuse_call("run");
    PersistentPlan& plan = self.core->on_host();
    HostArrays host(arrays.objects().size());
    run_on_host(plan, arrays.on_host(host, plan));
}

void check(BoundPlan& self, const nb::args& given, const nb::kwargs& named) {
    refuse_call("check");
    const GivenArrays arrays(self, given, named);
    arrays.refuse_stream("`check` makes runs of its own and takes no stream");
    if (!arrays.on_device()) {
        self.plan.attr("check")();
        return;
    }
    const std::shared_ptr<Gpu> gpu = arrays.gpu();
    const std::shared_ptr<GpuPlan> there = [&] {
        nb::gil_scoped_release released;
        return self.core->on(gpu);
    }();
    const std::vector<GpuAddress> addresses = arrays.addresses(*there);
    {
        nb::gil_scoped_release released;
        self.core->check(gpu, addresses);
    }
    let_owners_go_on(arrays.gpu_arrays());
}

int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<BoundPlan>(self)->plan.ptr());
    return 0;
}

int release(PyObject* self) {
    nb::inst_ptr<BoundPlan>(self)->plan.reset();
    return 0;
}

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(release)},
                       {0, nullptr}};

} // namespace

void bind_running_plan(nb::module_& m) {
    nb::class_<BoundPlan>(
        m, "RunningPlan", nb::type_slots(slots), nb::is_final(), nb::is_weak_referenceable(),
        "One rank's part of a plan on one communicator. Made by `Plan.on`.\n\n"
        "All ranks start plans of one communicator in the same order. Arrays must be C-contiguous, of "
        "exactly the buffer's size and type; None where a buffer has no elements on this rank. They are "
        "given "
        "at every start and are not copied. Arrays in device memory are taken as well, all of them then: the "
        "plan runs on jali's stream or on `stream` (a handle, or one of CuPy or PyTorch), with libraries "
        "that carry messages between devices (\"remote-write\", "
        "\"copy-engine\", the vendor's \"nccl\"), and slices of the device's queues take the place of chunks "
        "(`depth`).")
        .def(nb::init<nb::object, const nb::object&>(), "plan"_a, "communicator"_a,
             nb::sig("def __init__(self, plan: typing.Any, communicator: typing.Any) -> None"))
        .def_prop_ro(
            "plan", [](const BoundPlan& self) { return self.plan; },
            nb::for_getter(nb::sig("def plan(self) -> typing.Any")), "What it is a part of.")
        .def(
            "start",
            [](BoundPlan& self, const nb::args& arrays, const nb::kwargs& named) {
                start(self, arrays, named);
                return nb::find(self);
            },
            nb::sig("def start(self, *arrays: typing.Any, stream: typing.Any = None, **named: typing.Any) -> "
                    "RunningPlan"),
            "Start on these arrays, which are kept alive until the end and must not be touched before.")
        .def("run", &run,
             nb::sig("def run(self, *arrays: typing.Any, stream: typing.Any = None, **named: typing.Any) -> "
                     "None"),
             "Start and wait; on devices, it is on the stream afterwards.")
        .def(
            "check", &check, nb::sig("def check(self, *arrays: typing.Any, **named: typing.Any) -> None"),
            "Prove that what runs on these arrays, on all ranks together, does what the composition says. "
            "Collective.\n\n"
            "On devices some runs are made, the arrays are as before afterwards, and what each rank gives to "
            "its driver meanwhile is decoded and looked at for all ranks together: no wait is in vain, "
            "whatever uses the same memory is ordered, and every byte is in the end what the composition "
            "says. In host memory schedules are what runs, so it is `Plan.check`. Raises `RuntimeError`, or "
            "`CheckError` for schedules, on all ranks.")
        .def(
            "test",
            [](BoundPlan& self) {
                refuse_call("test");
                nb::gil_scoped_release released;
                return self.core->test();
            },
            "Make progress; whether it has ended. On devices: whether the last run has.")
        .def(
            "wait",
            [](BoundPlan& self) {
                refuse_call("wait");
                nb::gil_scoped_release released;
                self.core->wait();
            },
            "Return when it has ended; after a run on devices at once, since it is on the stream.\n\n"
            "Raises RankError if a rank fails or nothing moves for JALI_WATCHDOG seconds, DeviceError with "
            "the first cause where devices have given up waiting for a rank that failed.")
        .def_prop_ro(
            "running",
            [](BoundPlan& self) {
                refuse_call("running");
                return self.core->running();
            },
            "Whether it was started and has not been seen to end.");
}
