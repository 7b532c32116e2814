// A call of a collective: examines the arrays, determines the call (composition/standard_collectives.hpp),
// and runs it.
//
// Python code handles rare cases: arrays of other libraries, counts that are not lists of numbers, errors of
// other arguments, calls that are compared or recorded (jali.comm.calls).
#include "bind/collective_call.hpp"
#include "bind/collectives.hpp"
#include "bind/device_request.hpp"
#include "bind/errors.hpp"
#include "bind/graph_recorder.hpp"
#include "bind/host_arrays.hpp"
#include "bind/user_operation.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace jali;

namespace {

using enum CallArguments::Parameter;

[[noreturn]] void refuse(const std::string& text) {
    raise_python("jali.errors", "ParameterError", text.c_str());
    throw nb::python_error();
}

nb::object asked_of_python(const char* name) {
    return nb::module_::import_("jali.comm.calls").attr(name);
}

// Python objects, looked up once and kept for ever. Not function-local statics: while an import passes the
// interpreter's lock to other threads, these would wait for the static's guard and never release the lock.
struct Kept {
    const char* module;
    const char* name;
    PyObject* object = nullptr;

    nb::handle get() {
        if (object == nullptr) {
            nb::object found = nb::module_::import_(module).attr(name);
            object = found.release().ptr();
        }
        return object;
    }
};
constinit Kept numpy_array{"numpy", "ndarray"}, numpy_empty{"numpy", "empty"},
    device_array{"jali.comm.device_arrays", "DeviceArray"}, memory_of{"jali.comm.calls", "memory_of"},
    request_on_host{"jali.comm.requests", "Request"};

// A type of elements as NumPy has it.
struct HostElement {
    DataType type;
    bool boolean;
    nb::object dtype;
};

// The element of a dtype. Types that programs make themselves are looked up at every call.
std::shared_ptr<const HostElement> host_element(nb::object dtype) {
    static auto& known = *new std::unordered_map<PyObject*, std::shared_ptr<const HostElement>>;
    constexpr std::size_t most = 64;
    const auto found = known.find(dtype.ptr());
    if (found != known.end()) return found->second;
    const std::string name = nb::cast<std::string>(asked_of_python("element_name")(dtype));
    const bool boolean = nb::cast<std::string>(dtype.attr("kind")) == "b";
    PyObject* const key = dtype.ptr();
    auto made =
        std::make_shared<const HostElement>(HostElement{data_type_of(name), boolean, std::move(dtype)});
    if (known.size() < most) known.emplace(key, made);
    return made;
}

std::uintptr_t handle_of(void* stream) {
    return reinterpret_cast<std::uintptr_t>(stream);
}

// An array of a call, in the host's memory or on a device.
class CallArray {
  public:
    // `owner` has host_arrays() for those of the host, each at its number, and the stream() of the call.
    template <class Owner>
    void read(nb::handle object, Owner& owner, std::size_t number, bool writable) {
        borrowed_ = nb::borrow(object);
        on_device = gpu_array_of(object);
        const bool is_jalis_view = on_device != nullptr; // for which nothing has been put in order yet
        if (on_device == nullptr && object.type().ptr() != numpy_array.get().ptr()) {
            borrowed_ = owner.stream() ? memory_of.get()(object, writable, handle_of(*owner.stream()))
                                       : memory_of.get()(object, writable);
            on_device = gpu_array_of(borrowed_);
        }
        if (on_device != nullptr) {
            const bool is_on_stream = owner.stream() && on_device->owner_stream == handle_of(*owner.stream());
            meets_jali = (is_jalis_view && !is_on_stream) ||
                         on_device->owner_stream == handle_of(on_device->kind->gpu->stream());
            rows_ = on_device->kind->rows;
            row_ = on_device->kind->row;
            return;
        }
        dtype_ = borrowed_.attr("dtype");
        HostArray& host_array = owner.host_arrays()[number];
        if (host_array.read(borrowed_) && !host_array.shape().empty()) {
            rows_ = host_array.shape()[0];
            for (const Py_ssize_t extent : host_array.shape().subspan(1)) row_ *= extent;
            return;
        }
        const nb::object shape = this->shape();
        for (std::size_t k = 0; k < nb::len(shape); ++k)
            (k == 0 ? rows_ : row_) *= nb::cast<std::int64_t>(shape[k]);
    }

    bool is_read() const { return borrowed_.is_valid(); }
    const nb::object& borrowed() const { return borrowed_; }
    // To be called once all ranks are known to make the same call: raises ParameterError for elements that
    // cannot be sent.
    DataType type() { return on_device != nullptr ? on_device->kind->type : element().type; }
    bool is_boolean() { return on_device == nullptr && element().boolean; }
    bool is_alike(const CallArray& other) const {
        if (on_device != nullptr) return on_device->kind->type == other.on_device->kind->type;
        return dtype_.is(other.dtype_) || dtype_.equal(other.dtype_);
    }
    std::int64_t rows() const { return rows_; } // 1 where there are no dimensions
    std::int64_t row() const { return row_; }   // elements of one
    std::int64_t size() const { return rows_ * row_; }
    nb::object shape() const { return borrowed_.attr("shape"); }
    std::string shape_text() const { return nb::repr(shape()).c_str(); }
    // The element type in words: NumPy's, or the core's on devices.
    nb::object kind() const { return on_device != nullptr ? on_device->kind->element : dtype_; }
    std::string kind_text() const { return nb::str(kind()).c_str(); }

    // A new array in the same kind of memory, of the same type, with other rows. `kinds` are those of devices
    // that were made before.
    nb::object like(std::optional<std::int64_t> rows, OtherRows& kinds) const {
        if (on_device == nullptr) {
            return numpy_empty.get()(rows ? with_rows(*rows) : nb::tuple(shape()), dtype_);
        }
        const auto make = [&] {
            return std::make_shared<const ArrayKind>(on_device->kind->gpu_object, with_rows(*rows),
                                                     nb::cast<std::string>(on_device->kind->element));
        };
        GpuArray array =
            GpuArray::like(rows ? kinds.find(on_device->kind, *rows, make) : on_device->kind, "collective");
        nb::object made = nb::inst_alloc(device_array.get());
        new (nb::inst_ptr<GpuArray>(made)) GpuArray(std::move(array));
        nb::inst_mark_ready(made);
        return made;
    }

    const GpuArray* on_device = nullptr;
    bool meets_jali = false; // its users work on jali's stream

  private:
    nb::tuple with_rows(std::int64_t rows) const {
        const nb::object shape = this->shape();
        nb::list extents;
        extents.append(rows);
        for (std::size_t k = 1; k < nb::len(shape); ++k) extents.append(shape[k]);
        return nb::tuple(extents);
    }

    const HostElement& element() {
        if (!element_) element_ = host_element(dtype_);
        return *element_;
    }

    nb::object borrowed_; // the owner of the memory
    nb::object dtype_;    // on the host
    std::shared_ptr<const HostElement> element_;
    std::int64_t rows_ = 1, row_ = 1;
};

// Threads that call collectives of one communicator take turns, each until its call returns.
class Turn {
  public:
    explicit Turn(std::recursive_mutex& mutex) : mutex_(mutex) {
        if (mutex_.try_lock()) return;
        nb::gil_scoped_release released; // its holder may need the interpreter
        mutex_.lock();
    }
    ~Turn() { mutex_.unlock(); }
    Turn(const Turn&) = delete;

  private:
    std::recursive_mutex& mutex_;
};

// A call, and the arrays of its buffers.
class PreparedCall {
  public:
    PreparedCall(CollectiveCalls& calls, nb::handle communicator, Collective collective,
                 const CallArguments& a)
        : calls_(calls), communicator_(communicator), a_(a), name_(name_of(collective)),
          rank_(calls.ranks->rank()), ranks_(calls.ranks->size()),
          checks_(a.has(checked) ? flag(checked, false) : calls.checked), blocks_(flag(blocking, true)) {
        call_.collective = collective;
    }

    HostArrays& host_arrays() {
        if (!blocks_) {
            if (!held_) held_ = held_until_the_end(2);
            return *held_;
        }
        return local_ ? *local_ : local_.emplace(2);
    }

    std::optional<void*> stream() const { return stream_; } // not jali's

    nb::object explain() {
        explains_ = true;
        return run();
    }

    nb::object run() {
        set_stream();
        set_root();
        switch (call_.collective) {
        case Collective::broadcast:
            read_input();
            call_.in_place = true;
            call_.counts = {input_.size()};
            result_ = nb::borrow(a_[x]);
            break;
        case Collective::all_reduce:
        case Collective::reduce:
            read_input();
            call_.counts = {input_.size()};
            set_output(rank_ == call_.root || call_.collective == Collective::all_reduce, std::nullopt);
            break;
        case Collective::all_gather:
        case Collective::gather:
            prepare_gather();
            break;
        case Collective::reduce_scatter:
            prepare_reduce_scatter();
            break;
        case Collective::scatter:
            prepare_scatter();
            break;
        case Collective::all_to_all:
            prepare_all_to_all();
            break;
        }
        return start();
    }

  private:
    void read_input() { input_.read(a_[x], *this, 0, false); }
    bool asks_in_place() const { return a_[out].ptr() == a_[x].ptr(); }

    void set_stream() {
        if (a_.has(CallArguments::stream)) stream_ = stream_of(a_[CallArguments::stream]);
    }

    void set_root() {
        const nb::handle given = a_[root];
        if (given.ptr() == nullptr) return;
        long number = PyLong_CheckExact(given.ptr()) ? PyLong_AsLong(given.ptr()) : -1;
        if (number == -1) PyErr_Clear();
        if (number < 0 || number >= ranks_)
            number = nb::cast<long>(communicator_.attr("_root")(given)); // or raises its error
        call_.root = static_cast<int>(number);
    }

    // The result, of the input's shape but for so many rows; made if it is not given. `gets`: this rank has
    // one.
    void set_output(bool gets, std::optional<std::int64_t> rows) {
        const bool may_be_in_place = call_.collective != Collective::gather;
        call_.in_place = may_be_in_place && asks_in_place();
        if (!gets) return;
        result_ = a_.has(out) ? nb::borrow(a_[out]) : new_result(rows);
        if (!call_.in_place) read_output();
    }

    nb::object new_result(std::optional<std::int64_t> rows) {
        if (stream_ && input_.on_device != nullptr)
            refuse("a result on another stream than jali's needs `out`");
        return input_.like(rows, calls_.other_rows);
    }

    void read_output() {
        output_.read(result_, *this, 1, true);
        check_alike(output_, input_);
    }

    static void check_alike(const CallArray& target, const CallArray& data) {
        if ((target.on_device != nullptr) != (data.on_device != nullptr))
            refuse("one array is in device memory and one in host memory; give both in the same");
        if (target.on_device != nullptr && target.on_device->kind->gpu != data.on_device->kind->gpu)
            refuse("one array is on " + data.on_device->kind->gpu->name() + " and one on " +
                   target.on_device->kind->gpu->name() + "; give both on the same device");
        if (!target.is_alike(data))
            refuse("the result is to be " + target.kind_text() + ", but " + data.kind_text() +
                   " is sent; make them alike");
    }

    void prepare_gather() {
        read_input();
        const bool whole = call_.collective == Collective::all_gather && asks_in_place();
        const auto rows = rows_of_ranks(input_, whole);
        set_counts(input_, rows, whole);
        const std::int64_t all = rows ? sum_of(*rows) : product_of(ranks_, input_.rows());
        set_output(rank_ == call_.root || call_.collective == Collective::all_gather, all);
    }

    void prepare_reduce_scatter() {
        read_input();
        const auto rows = rows_of_ranks(input_, true);
        set_counts(input_, rows, true);
        set_output(true, rows ? (*rows)[rank_] : equal_part(input_));
    }

    void prepare_scatter() {
        const bool at_root = rank_ == call_.root;
        if (!at_root && !a_.has(out))
            refuse("rank " + std::to_string(rank_) + " receives from rank " + std::to_string(call_.root) +
                   " in a scatter and needs `out`");
        if (a_.has(out)) output_.read(result_ = nb::borrow(a_[out]), *this, 1, true);
        if (at_root) read_input();
        if (!a_.has(out)) {
            const auto rows = rows_of_ranks(input_, true);
            result_ = new_result(rows ? (*rows)[rank_] : equal_part(input_));
            output_.read(result_, *this, 1, true);
        }
        if (at_root) check_alike(output_, input_);
        set_counts(output_, rows_of_ranks(output_, false), false);
    }

    void prepare_all_to_all() {
        read_input();
        std::optional<std::int64_t> rows;
        if (!a_.has(counts)) {
            call_.counts = {equal_part(input_) * input_.row()};
        } else {
            call_.counts = matrix_of_ranks();
            std::vector<std::int64_t> goes, comes;
            for (int other = 0; other < ranks_; ++other) {
                goes.push_back(call_.counts[rank_ * ranks_ + other]);
                comes.push_back(call_.counts[other * ranks_ + rank_]);
            }
            const std::int64_t sent = sum_of(goes), received = sum_of(comes);
            if (nb::len(input_.shape()) == 0 || input_.rows() != sent)
                refuse("rank " + std::to_string(rank_) + " sends " + std::to_string(sent) +
                       " rows by its counts, but has shape " + input_.shape_text());
            for (std::int64_t& count : call_.counts) count = product_of(count, input_.row());
            sum_of(call_.counts);
            rows = received;
        }
        if (asks_in_place()) refuse("an all_to_all cannot work in place; give another `out`, or none");
        set_output(true, rows);
    }

    [[noreturn]] static void refuse_counts() {
        refuse("the counts mean more elements than 64 bits can number");
    }
    static std::int64_t sum_of(std::span<const std::int64_t> numbers) {
        std::int64_t sum = 0;
        for (const std::int64_t number : numbers)
            if (__builtin_add_overflow(sum, number, &sum)) refuse_counts();
        return sum;
    }
    static std::int64_t product_of(std::int64_t a, std::int64_t b) {
        std::int64_t product = 0;
        if (__builtin_mul_overflow(a, b, &product)) refuse_counts();
        return product;
    }

    std::int64_t equal_part(const CallArray& array) const {
        if (array.rows() % ranks_ != 0)
            refuse(std::to_string(array.rows()) + " rows (shape " + array.shape_text() + ") are no " +
                   std::to_string(ranks_) + " equal parts; give `counts`");
        return array.rows() / ranks_;
    }

    void set_counts(const CallArray& array, const std::optional<std::vector<std::int64_t>>& rows,
                    bool whole) {
        if (!rows) {
            call_.counts = {whole ? equal_part(array) * array.row() : array.size()};
            return;
        }
        call_.counts = *rows;
        for (std::int64_t& count : call_.counts) count = product_of(count, array.row());
        sum_of(call_.counts);
    }

    // Whole numbers from 0, as a list or tuple of Python has them; false for everything else.
    static bool read_numbers(nb::handle given, std::size_t count, std::vector<std::int64_t>& into) {
        if (!PyList_CheckExact(given.ptr()) && !PyTuple_CheckExact(given.ptr())) return false;
        if (static_cast<std::size_t>(PySequence_Fast_GET_SIZE(given.ptr())) != count) return false;
        for (std::size_t k = 0; k < count; ++k) {
            PyObject* one = PySequence_Fast_GET_ITEM(given.ptr(), k);
            const long long number = PyLong_CheckExact(one) ? PyLong_AsLongLong(one) : -1;
            if (number < 0) {
                PyErr_Clear();
                return false;
            }
            into.push_back(number);
        }
        return true;
    }

    // Rows of all ranks, checked against this rank's array; none if they are equal by contract.
    std::optional<std::vector<std::int64_t>> rows_of_ranks(const CallArray& array, bool whole) {
        if (!a_.has(counts)) return std::nullopt;
        std::vector<std::int64_t> rows;
        if (!read_numbers(a_[counts], ranks_, rows))
            rows = nb::cast<std::vector<std::int64_t>>(asked_of_python("rows_of_ranks")(
                nb::cast(calls_.ranks), a_[counts], std::string(name_), array.rows(), whole, checks_));
        const std::int64_t wanted = whole ? sum_of(rows) : rows[rank_];
        if (array.rows() != wanted) {
            std::string all;
            for (const std::int64_t n : rows) all += (all.empty() ? "" : ", ") + std::to_string(n);
            refuse("counts [" + all + "] mean " + std::to_string(wanted) + " rows " +
                   (whole ? "in all" : "on rank " + std::to_string(rank_)) + ", the array has shape " +
                   array.shape_text());
        }
        return rows;
    }

    std::vector<std::int64_t> matrix_of_ranks() {
        const nb::handle given = a_[counts];
        std::vector<std::int64_t> numbers;
        const bool in_rows = PyList_CheckExact(given.ptr()) && PyList_GET_SIZE(given.ptr()) == ranks_;
        for (int k = 0; in_rows && k < ranks_; ++k)
            if (!read_numbers(PyList_GET_ITEM(given.ptr(), k), ranks_, numbers)) break;
        if (numbers.size() == static_cast<std::size_t>(ranks_) * ranks_) return numbers;
        return nb::cast<std::vector<std::int64_t>>(
            asked_of_python("matrix_of_ranks")(nb::cast(calls_.ranks), given, checks_));
    }

    CallArray& any_array() { return input_.is_read() ? input_ : output_; }

    void set_operation() {
        CallArray& array = any_array();
        call_.type = array.type();
        const nb::handle given = a_[op];
        if (given.ptr() == nullptr) return; // nothing is combined
        if (PyCallable_Check(given.ptr()) != 0) {
            call_.operation = Operation::user;
            call_.user = user_operation(nb::borrow(given), call_.type);
            return;
        }
        static PyObject* const sum = PyUnicode_InternFromString("sum"); // as a default it is this object
        if (given.ptr() == sum && !array.is_boolean()) return;
        std::optional<Operation> found;
        if (PyUnicode_CheckExact(given.ptr()) && !array.is_boolean()) {
            const char* name = PyUnicode_AsUTF8(given.ptr());
            if (name == nullptr) PyErr_Clear();
            found = name != nullptr ? find_operation(name) : std::nullopt;
        }
        if (!found || found == Operation::user) {
            asked_of_python("check_operation")(given, array.is_boolean());
            found = operation_of(nb::cast<std::string>(given));
        }
        call_.operation = *found;
    }

    bool flag(CallArguments::Parameter which, bool otherwise) const {
        const nb::handle given = a_[which];
        if (given.ptr() == nullptr) return otherwise; // the method has none
        if (given.ptr() == Py_True || given.ptr() == Py_False) return given.ptr() == Py_True;
        return nb::cast<bool>(asked_of_python("flag_of")(CallArguments::names[which], given));
    }

    static std::optional<Operation> find_operation(std::string_view name) {
        for (int k = 0; k < operations; ++k)
            if (name_of(static_cast<Operation>(k)) == name) return static_cast<Operation>(k);
        return std::nullopt;
    }

    void set_flags() {
        const nb::handle spec = a_[algorithm];
        // noncommuting operations combine in the order of ranks
        call_.reproducible = flag(reproducible, false) || !flag(commutative, true);
        if (spec.is_none()) return;
        const nb::object name =
            PyUnicode_CheckExact(spec.ptr()) ? nb::borrow(spec) : asked_of_python("name_of_algorithm")(spec);
        Py_ssize_t size = 0;
        const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
        if (text == nullptr) PyErr_Clear();
        if (text == nullptr || std::string_view(text).size() != static_cast<std::size_t>(size))
            refuse("there is no algorithm " + std::string(nb::repr(name).c_str()) + " for " +
                   std::string(name_));
        call_.algorithm.assign(text, size);
    }

    // --- what runs -----------------------------------------------------------------------------------------

    // The input and, unless in place, the output; buffer(k) is null if this rank has none.
    std::size_t buffers() const { return call_.in_place ? 1 : 2; }
    const CallArray* buffer(std::size_t k) const {
        const CallArray& array = k == 0 ? input_ : output_;
        return array.is_read() ? &array : nullptr;
    }
    nb::tuple arrays() const {
        nb::list all;
        for (std::size_t k = 0; k < buffers(); ++k)
            all.append(buffer(k) != nullptr ? buffer(k)->borrowed() : nb::object(nb::none()));
        return nb::tuple(all);
    }

    nb::object start() {
        const GpuArray* on_device = any_array().on_device;
        if (stream_ && on_device == nullptr)
            refuse("`stream` is for arrays in device memory; these are in the host's");
        const nb::object recorded = recorder();
        if (!recorded.is_none()) {
            if (on_device == nullptr || !blocks_)
                refuse_call(
                    (std::string(name_) + (on_device == nullptr ? "" : " with blocking=False")).c_str());
            if (stream_)
                refuse_recorded("a collective on a stream of its own is started",
                                "leave the stream to the graph");
        }
        if (checks_) compare();
        set_operation();
        set_flags();
        if (!calls_.there)
            calls_.there = nb::cast<std::shared_ptr<Collectives>>(asked_of_python("make_collectives")(
                nb::cast(calls_.ranks), communicator_.attr("sharing_memory"),
                "the first " + std::string(name_)));
        if (explains_) return explanation(on_device);
        if (on_device == nullptr) return start_on_host();
        if (!recorded.is_none()) {
            const nb::object there = nb::cast(collectives_on(*calls_.there, on_device->kind->gpu_object));
            asked_of_python("record")(recorded, there, nb::cast(call_), arrays());
            return result_;
        }
        return start_on_device(*on_device->kind);
    }

    // Compares the arguments as given: an error on one rank is reported to all.
    void compare() {
        const auto given = [&](CallArguments::Parameter which, nb::object otherwise) {
            return a_[which].ptr() != nullptr ? nb::borrow(a_[which]) : std::move(otherwise);
        };
        asked_of_python("compare")(
            nb::cast(calls_.ranks), std::string(name_), any_array().kind(), any_array().on_device != nullptr,
            call_.counts, call_.root, call_.in_place, given(op, nb::none()), given(algorithm, nb::none()),
            given(reproducible, nb::bool_(false)), given(commutative, nb::bool_(true)));
    }

    nb::object explanation(const GpuArray* on_device) {
        if (on_device == nullptr) {
            const CollectiveChoice choice = calls_.there->algorithm_of(call_);
            return nb::cast(text_of(choice.spec) + " (" + choice.why + ")");
        }
        DeviceCollectives& there = *collectives_on(*calls_.there, on_device->kind->gpu_object);
        std::string text;
        {
            nb::gil_scoped_release released;
            text = there.explain(call_);
        }
        return nb::cast(text);
    }

    nb::object start_on_host() {
        std::shared_ptr<PersistentPlan> plan = calls_.there->find_idle(call_);
        if (!plan) {
            nb::gil_scoped_release released;
            plan = calls_.there->idle_plan_of(call_);
        }
        std::array<nb::handle, 2> objects{};
        for (std::size_t k = 0; k < buffers(); ++k)
            objects[k] = buffer(k) != nullptr ? nb::handle(buffer(k)->borrowed()) : nb::handle(Py_None);
        const auto addresses = host_arrays().fit(*plan, {objects.data(), buffers()});
        if (blocks_) {
            run_on_host(*plan, addresses);
            return result_;
        }
        {
            nb::gil_scoped_release released;
            plan->start(addresses, held_);
        }
        return request_on_host.get()(plan, result_);
    }

    nb::object start_on_device(const ArrayKind& kind) {
        const auto* known = calls_.there->find(*kind.gpu);
        DeviceCollectives& there =
            known != nullptr ? **known : *collectives_on(*calls_.there, kind.gpu_object);
        std::shared_ptr<DevicePlan> plan = there.find(call_, checks_);
        if (!plan) {
            nb::gil_scoped_release released;
            plan = there.plan_of(call_, checks_);
        }
        std::array<const GpuArray*, 2> on_device{};
        for (std::size_t k = 0; k < buffers(); ++k)
            on_device[k] = buffer(k) != nullptr ? buffer(k)->on_device : nullptr;
        std::array<GpuAddress, 2> addresses{};
        fit_on_device(*plan, {on_device.data(), buffers()}, addresses.data());
        Gpu& gpu = *plan->gpu();
        void* const on = stream_.value_or(gpu.stream());
        DeviceRequest request;
        {
            nb::gil_scoped_release released; // a full stream waits, perhaps for a rank that is a thread
            // arrays of jali that are used on another stream; the graph's launcher orders its work
            const bool meets_jali =
                on != gpu.stream() && (input_.meets_jali || output_.meets_jali) && !gpu.is_capturing(on);
            if (meets_jali) gpu.let_wait(on);
            there.prove_once(call_, *plan, {addresses.data(), buffers()}, on, checks_);
            plan->run({addresses.data(), buffers()}, on);
            if (meets_jali) gpu.wait_for(on);
            if (!blocks_) request = DeviceRequest::begun(plan->gpu(), on);
        }
        if (!stream_) let_owners_go_on({on_device.data(), buffers()});
        if (checks_ && blocks_) {
            nb::gil_scoped_release released;
            there.report_overflows(call_);
        }
        if (blocks_) return result_;
        request.result = result_;
        return nb::cast(std::move(request));
    }

    CollectiveCalls& calls_;
    nb::handle communicator_;
    const CallArguments& a_;
    const std::string_view name_;
    const int rank_, ranks_;
    const bool checks_, blocks_;
    bool explains_ = false;
    std::optional<void*> stream_;      // if it is not jali's
    std::shared_ptr<HostArrays> held_; // of a call that is not waited for
    std::optional<HostArrays> local_;
    CollectiveCall call_;
    CallArray input_, output_;
    nb::object result_ = nb::none();
};

} // namespace

nb::object jali::call_from_python(CollectiveCalls& calls, nb::handle communicator, Collective collective,
                                  const CallArguments& arguments) {
    const Turn turn(calls.turn);
    return PreparedCall(calls, communicator, collective, arguments).run();
}

nb::object jali::explain_from_python(CollectiveCalls& calls, nb::handle communicator, Collective collective,
                                     const CallArguments& arguments) {
    const Turn turn(calls.turn);
    return PreparedCall(calls, communicator, collective, arguments).explain();
}
