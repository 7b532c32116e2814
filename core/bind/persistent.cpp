// Plans that run, in Python: whatever exports its memory goes in as it is, nothing is copied.
#include "collective/persistent.hpp"
#include "bind/errors.hpp"

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;

// The memory of one Python object, held until this goes. By the buffer protocol where there is one (NumPy,
// bytearray, array), else by DLPack.
class Exported {
  public:
    Exported() = default;
    Exported(const Exported&) = delete;
    Exported& operator=(const Exported&) = delete;
    ~Exported() {
        if (view_.obj != nullptr) PyBuffer_Release(&view_);
    }

    // Raises ParameterError that names the buffer: not contiguous, read-only though written, wrong size.
    void take(nb::handle object, const Buffer& buffer, bool written, const std::string& what) {
        std::size_t bytes = 0;
        if (PyObject_CheckBuffer(object.ptr())) {
            if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE | (written ? PyBUF_WRITABLE : 0)) !=
                0) {
                view_.obj = nullptr;
                refuse(object, buffer, written, what);
            }
            data_ = static_cast<std::byte*>(view_.buf);
            bytes = static_cast<std::size_t>(view_.len);
        } else if (nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> array;
                   nb::try_cast(object, array, false)) {
            if (written && !nb::try_cast(object, writable_, false)) refuse(object, buffer, written, what);
            readable_ = array;
            data_ = static_cast<std::byte*>(const_cast<void*>(array.data()));
            bytes = array.nbytes();
        } else {
            refuse(object, buffer, written, what);
        }
        if (bytes != buffer.bytes) {
            const std::string text =
                what + ": buffer '" + buffer.name + "' has " + std::to_string(buffer.bytes) +
                " bytes on this rank, the array given for it has " + std::to_string(bytes);
            raise_python("jali.errors", "ParameterError", text.c_str());
            throw nb::python_error();
        }
    }

    std::byte* data() const { return data_; }

  private:
    [[noreturn]] static void refuse(nb::handle object, const Buffer& buffer, bool written,
                                    const std::string& what) {
        PyErr_Clear();
        const std::string kind = nb::type_name(object.type()).c_str();
        const std::string text =
            what + ": the " + kind + " given for buffer '" + buffer.name + "' is no " +
            (written ? "writable" : "readable") + " C-contiguous array in host memory; " +
            "pass numpy.ascontiguousarray of it" + (written ? ", or one you may write" : "");
        raise_python("jali.errors", "ParameterError", text.c_str());
        throw nb::python_error();
    }

    Py_buffer view_{};
    nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> readable_;
    nb::ndarray<nb::c_contig, nb::device::cpu> writable_;
    std::byte* data_ = nullptr;
};

struct Held {
    explicit Held(std::size_t size)
        : count(size), more(size > few.size() ? size : 0), more_addresses(more.size()),
          of_buffers(more.empty() ? few.data() : more.data()),
          addresses(more.empty() ? few_addresses.data() : more_addresses.data(), size) {}

    std::size_t count;
    std::array<Exported, 3> few; // of a standard collective: no allocation
    std::array<std::byte*, 3> few_addresses{};
    std::vector<Exported> more;
    std::vector<std::byte*> more_addresses;
    Exported* of_buffers;
    std::span<std::byte*> addresses;
};

constexpr std::size_t brief_bytes = 16384;

// A plan and what its arrays must be.
struct PlanOfRank {
    std::shared_ptr<PersistentPlan> plan;
    std::vector<bool> written;
    bool brief; // nothing that it does takes long, except waiting

    PlanOfRank(std::shared_ptr<const Schedule> schedule, std::shared_ptr<MessageSpace> space,
               std::string what)
        : plan(PersistentPlan::make(schedule, std::move(space), std::move(what))),
          written(schedule->buffers().size()) {
        std::size_t bytes = 0;
        for (const Buffer& buffer : schedule->buffers()) bytes += buffer.bytes;
        brief = bytes <= brief_bytes;
        for (const Step& step : schedule->steps()) {
            if (const auto* receive = std::get_if<Receive>(&step.action))
                written[receive->into.buffer] = true;
            if (const auto* copy = std::get_if<Copy>(&step.action))
                for (const CopyRows& rows : copy->rows) written[rows.to.buffer] = true;
            if (const auto* reduce = std::get_if<Reduce>(&step.action))
                for (const ReduceRow& row : reduce->rows) written[row.into.buffer] = true;
        }
    }

    void run(const nb::args& arrays) const {
        Held held(this->arrays());
        take(arrays, held);
        // Short messages often go, or are there, at once: then the interpreter's lock need not change hands.
        if (brief && plan->can_start_at_once()) {
            plan->start(held.addresses);
            if (plan->test()) return;
            nb::gil_scoped_release released;
            plan->wait();
            return;
        }
        nb::gil_scoped_release released;
        plan->run(held.addresses);
    }

    std::size_t arrays() const { return static_cast<std::size_t>(plan->user_buffers()); }

    void take(const nb::args& given, Held& held) const {
        const auto& buffers = plan->schedule().buffers();
        if (given.size() != arrays()) {
            const std::string text = plan->what() + " takes " + std::to_string(arrays()) + " arrays, " +
                                     std::to_string(given.size()) + " were given";
            raise_python("jali.errors", "ParameterError", text.c_str());
            throw nb::python_error();
        }
        for (std::size_t k = 0; k < arrays(); ++k) {
            if (buffers[k].bytes == 0) continue;
            held.of_buffers[k].take(given[k], buffers[k], written[k], plan->what());
            held.addresses[k] = held.of_buffers[k].data();
        }
        for (std::size_t a = 0; a < arrays(); ++a) {
            for (std::size_t b = 0; b < arrays(); ++b) {
                if (a == b || !written[a] || (written[b] && b < a)) continue;
                if (held.addresses[a] == nullptr || held.addresses[b] == nullptr) continue;
                if (held.addresses[a] + buffers[a].bytes <= held.addresses[b] ||
                    held.addresses[b] + buffers[b].bytes <= held.addresses[a])
                    continue;
                const std::string text = plan->what() + ": the arrays of buffers '" + buffers[a].name +
                                         "' and '" + buffers[b].name + "' overlap, and '" + buffers[a].name +
                                         "' is written; give them memory of their own, or plan it in place";
                raise_python("jali.errors", "ParameterError", text.c_str());
                throw nb::python_error();
            }
        }
    }
};

} // namespace

void bind_persistent(nb::module_& m) {
    nb::class_<MessageSpace>(
        m, "MessageSpace",
        "Where plans on the same ranks exchange messages; carriers are (library, communicator).")
        .def(nb::init<std::vector<MessageSpace::Carrier>>(), "carriers"_a)
        .def_prop_ro("rank", &MessageSpace::rank)
        .def_prop_ro("size", &MessageSpace::size)
        .def_prop_ro("windows", &MessageSpace::windows)
        .def_prop_ro("tags", &MessageSpace::tags)
        .def_prop_ro("under_way", &MessageSpace::under_way);

    nb::class_<PlanOfRank>(
        m, "PersistentPlan",
        "One rank's schedule, ready to run on arrays. Scratch and work buffers are its own.")
        .def(nb::init<std::shared_ptr<const Schedule>, std::shared_ptr<MessageSpace>, std::string>(),
             "schedule"_a, "space"_a, "what"_a)
        .def(
            "run", [](const PlanOfRank& self, const nb::args& arrays) { self.run(arrays); },
            "Start and wait; one array per buffer, None where a buffer has no bytes.")
        .def(
            "run_unless_running",
            [](const PlanOfRank& self, const nb::args& arrays) {
                if (self.plan->running()) return false;
                self.run(arrays);
                return true;
            },
            "The same; false, and nothing is done, if the plan is under way already.")
        .def(
            "start",
            [](const PlanOfRank& self, const nb::args& arrays) {
                // Released by whoever sees the end, which may be a wait without the interpreter's lock.
                std::shared_ptr<Held> held(new Held(self.arrays()), [](Held* p) {
                    nb::gil_scoped_acquire acquired;
                    delete p;
                });
                self.take(arrays, *held);
                nb::gil_scoped_release released;
                self.plan->start(held->addresses, held);
            },
            "Arrays are kept alive until the end, and must not be touched until then.")
        .def(
            "test", [](const PlanOfRank& self) { return self.plan->test(); }, Released())
        .def(
            "wait", [](const PlanOfRank& self) { self.plan->wait(); }, Released())
        .def_prop_ro("running", [](const PlanOfRank& self) { return self.plan->running(); })
        .def_prop_ro("what", [](const PlanOfRank& self) { return self.plan->what(); });
}
