#include "device/gpu.hpp"
#include "device/kernel_cache.hpp"
#include "device/memory_blocks.hpp"
#include "device/pause.hpp"
#include "device/timeline.hpp"
#include "settings/notice.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <utility>

namespace jali {

namespace {

constexpr int checks_of_word = 2000; // up to 100 us; after longer waits the cost of the driver's wait does
                                     // not matter

void note_copy(std::uint64_t to, std::uint64_t from, std::size_t bytes, void* stream) {
    if (DriverRecord::on())
        DriverRecord::note(
            {.kind = DriverCall::Kind::copy, .stream = stream, .to = to, .from = from, .bytes = bytes});
}
void note_event(DriverCall::Kind kind, void* event, void* stream) {
    if (DriverRecord::on()) DriverRecord::note({.kind = kind, .stream = stream, .event = event});
}

} // namespace

CurrentGpu::CurrentGpu(const Gpu& gpu) : api_(gpu.api()) {
    if (api_.context_current(&before_) != gpu_success) before_ = nullptr;
    if (before_ == gpu.context()) {
        before_ = nullptr;
        return;
    }
    if (const int error = api_.context_set(gpu.context()); error != gpu_success)
        api_.fail(error, "using " + gpu.name());
}

CurrentGpu::~CurrentGpu() {
    if (before_ != nullptr) api_.context_set(before_);
}

// ---- memory --------------------------------------------------------------------------------------------

GpuMemory& GpuMemory::operator=(GpuMemory&& other) noexcept {
    if (this != &other) {
        release();
        gpu_ = std::move(other.gpu_);
        address_ = std::exchange(other.address_, 0);
        size_ = std::exchange(other.size_, 0);
        held_ = std::exchange(other.held_, 0);
        fine_ = std::exchange(other.fine_, false);
        label_ = std::exchange(other.label_, nullptr);
    }
    return *this;
}

void GpuMemory::release() noexcept {
    if (gpu_) gpu_->free_allocation(*this);
    gpu_.reset();
    address_ = 0;
    size_ = held_ = 0;
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
    if (this != &other) {
        release();
        gpu_ = std::move(other.gpu_);
        data_ = std::exchange(other.data_, nullptr);
        size_ = std::exchange(other.size_, 0);
        held_ = std::exchange(other.held_, 0);
        label_ = std::exchange(other.label_, nullptr);
    }
    return *this;
}

void PinnedMemory::release() noexcept {
    if (gpu_) gpu_->free_allocation(*this);
    gpu_.reset();
    data_ = nullptr;
    size_ = held_ = 0;
}

void Gpu::keep_until_done(std::shared_ptr<void> kept) {
    std::lock_guard lock(mutex_);
    kept_next_.push_back(std::move(kept));
}

void Gpu::drop_done() {
    const CurrentGpu current(*this);
    if (is_capturing(stream_)) return; // an event would become a part of the graph
    Kept next{};
    {
        std::lock_guard lock(mutex_);
        next.all.swap(kept_next_);
    }
    if (!next.all.empty()) {
        api_.check(api_.event_create(&next.done, 2), "making an event");
        api_.check(api_.event_record(next.done, stream_), "recording an event");
    }
    std::vector<Kept> done; // dropped without the lock
    {
        std::lock_guard lock(mutex_);
        if (!next.all.empty()) kept_.push_back(std::move(next));
        for (; !kept_.empty() && api_.event_query(kept_.front().done) == gpu_success; kept_.pop_front())
            done.push_back(std::move(kept_.front()));
    }
    for (const Kept& kept : done) api_.event_destroy(kept.done);
}

// Copies and kernels that are under way may still use it.
void Gpu::free_allocation(PinnedMemory& memory) noexcept {
    strike_block(reinterpret_cast<std::uint64_t>(memory.data_));
    try {
        const CurrentGpu current(*this);
        pinned_ledger_.strike(memory.size_, memory.label_);
        if (is_capturing(stream_)) return; // a graph may use it at any time: lost
        keep_until_done(
            std::shared_ptr<std::byte>(memory.data_, [this, size = memory.held_](std::byte* data) {
                std::lock_guard lock(mutex_);
                free_pinned_.emplace(size, data);
            }));
    } catch (...) { // the device is lost; other calls report it
    }
}

std::byte* Gpu::take_pinned(std::size_t size) {
    drop_done();
    std::lock_guard lock(mutex_);
    const auto found = free_pinned_.find(size);
    if (found == free_pinned_.end()) return nullptr;
    std::byte* data = found->second;
    free_pinned_.erase(found);
    return data;
}

PinnedMemory Gpu::allocate_pinned(std::size_t bytes, std::string_view label) {
    const CurrentGpu current(*this);
    PinnedMemory memory;
    memory.held_ = std::bit_ceil(std::max<std::size_t>(bytes, 64));
    memory.data_ = take_pinned(memory.held_);
    if (memory.data_ == nullptr) {
        void* data = nullptr;
        int error = api_.host_allocate(&data, memory.held_, 1); // portable
        if (error == gpu_out_of_memory) {
            trim();
            error = api_.host_allocate(&data, memory.held_, 1);
        }
        if (error == gpu_out_of_memory)
            pinned_ledger_.refuse(bytes, label, "the driver has no more", "pinned host");
        if (error != gpu_success)
            api_.fail(error, "allocating " + readable_bytes(bytes) + " of pinned host memory");
        memory.data_ = static_cast<std::byte*>(data);
    }
    memory.size_ = bytes;
    memory.label_ = pinned_ledger_.book(bytes, label);
    book_block(reinterpret_cast<std::uint64_t>(memory.data_), bytes, memory.label_);
    memory.gpu_ = shared_from_this();
    return memory;
}

GpuMemory Gpu::upload(const void* data, std::size_t bytes, std::string_view label) {
    GpuMemory memory = allocate(bytes, label);
    if (bytes > 0) {
        copy_in(memory.address(), data, bytes);
        synchronize(); // the caller's bytes may be freed
    }
    return memory;
}

std::size_t Gpu::free_memory() const {
    const CurrentGpu current(*this);
    std::size_t free = 0, total = 0;
    api_.check(api_.memory_info(&free, &total), "asking for free memory");
    return free;
}

// Some driver calls (copies of ordinary host memory, loading a kernel, making a graph ready, freeing memory)
// block until all earlier work is done, without a check for failures, and loading holds a lock that copies
// from other devices into this one need: a rank that is a thread could block ranks that its device waits for.
// So wait first, with these checks.
void Gpu::listen() const {
    if (is_heard_) synchronize();
}

void Gpu::listen_unless_recording() const {
    if (is_heard_ && !is_capturing(stream_)) synchronize();
}

void Gpu::copy_in(GpuAddress to, const void* from, std::size_t bytes) const {
    listen();
    copy_in(to, from, bytes, stream_);
}

void Gpu::copy_out(void* to, GpuAddress from, std::size_t bytes) const {
    listen();
    copy_out(to, from, bytes, stream_);
}

void Gpu::copy_in(GpuAddress to, const void* from, std::size_t bytes, void* stream) const {
    const CurrentGpu current(*this);
    note_copy(to, reinterpret_cast<std::uint64_t>(from), bytes, stream);
    api_.check(api_.copy_in(to, from, bytes, stream), "copying to the device");
}

void Gpu::copy_out(void* to, GpuAddress from, std::size_t bytes, void* stream) const {
    const CurrentGpu current(*this);
    note_copy(reinterpret_cast<std::uint64_t>(to), from, bytes, stream);
    api_.check(api_.copy_out(to, from, bytes, stream), "copying from the device");
}

void Gpu::copy(GpuAddress to, GpuAddress from, std::size_t bytes, void* stream) const {
    const CurrentGpu current(*this);
    note_copy(to, from, bytes, stream);
    api_.check(api_.copy(to, from, bytes, stream), "copying on the device");
}

void Gpu::fill(GpuAddress to, unsigned char value, std::size_t bytes) const {
    const CurrentGpu current(*this);
    if (bytes == 0) return;
    if (DriverRecord::on())
        DriverRecord::note({.kind = DriverCall::Kind::fill, .stream = stream_, .to = to, .bytes = bytes});
    api_.check(api_.fill(to, value, bytes, stream_), "filling device memory");
}

// ---- the device ----------------------------------------------------------------------------------------

int Gpu::count(const GpuVendor& vendor) {
    const GpuApi& api = GpuApi::get(vendor);
    int count = 0;
    api.check(api.device_count(&count), "counting devices");
    return count;
}

std::vector<Gpu::Link> Gpu::links(const GpuVendor& vendor) {
    const GpuApi& api = GpuApi::get(vendor);
    std::vector<Link> found;
    const int devices = count(vendor);
    for (int device = 0; device < devices; ++device)
        for (int peer = device + 1; peer < devices; ++peer) {
            const auto asked = [&](int attribute) {
                int value = 0;
                if (api.peer_attribute == nullptr) return -1;
                const int error =
                    api.peer_attribute(&value, vendor.peer_attributes + attribute, device, peer);
                return error == gpu_success ? value : -1;
            };
            Link link{device, peer, asked(1), asked(2), asked(0)};
            if (int can = 0; link.reaches < 0 && api.can_access_peer(&can, device, peer) == gpu_success)
                link.reaches = can;
            found.push_back(link);
        }
    return found;
}

std::shared_ptr<Gpu> Gpu::open(const GpuVendor& vendor, int ordinal) {
    static std::mutex mutex;
    using Opened = std::map<std::pair<const GpuVendor*, int>, std::shared_ptr<Gpu>>;
    static Opened* opened = new Opened; // never destroyed: the driver may go first
    std::lock_guard lock(mutex);
    auto& gpu = (*opened)[{&vendor, ordinal}];
    if (!gpu) {
        const int devices = count(vendor);
        if (ordinal < 0 || ordinal >= devices)
            throw GpuError("there is no " + vendor.name + " device " + std::to_string(ordinal) +
                           "; this process sees " + std::to_string(devices));
        const GpuApi& api = GpuApi::get(vendor);
        gpu = std::shared_ptr<Gpu>(new Gpu(api, ordinal));
        gpu->use_handle_type(gpu->first_handle_type());
    }
    return gpu;
}

Gpu::Gpu(const GpuApi& api, int ordinal) : api_(api), ordinal_(ordinal), progress_(api) {
    api_.check(api_.device_get(&device_, ordinal), "opening device " + std::to_string(ordinal));
    char name[256] = {};
    api_.check(api_.device_name(name, sizeof name - 1, device_), "asking for a device's name");
    name_ = name;
    api_.check(api_.device_memory(&total_memory_, device_), "asking for a device's memory");
    const auto& numbers = api_.vendor.attributes;
    const auto ask = [&](const char* member, int* value) {
        const auto number = numbers.find(member);
        if (number == numbers.end())
            throw GpuError("the entry of " + kind() + " has no number for the attribute " + member);
        api_.check(api_.device_attribute(value, number->second, device_),
                   std::string("asking for a device's ") + member);
    };
#define JALI_ASK(member) ask(#member, &member##_);
    JALI_GPU_ATTRIBUTES(JALI_ASK)
#undef JALI_ASK
    forced_handle_type_ = forced_handle_type();
    int network = 0; // an attribute that not every vendor has
    if (const auto number = numbers.find("network_reads_virtual");
        number != numbers.end() && api_.device_attribute(&network, number->second, device_) == gpu_success)
        network_reads_virtual_ = network != 0;
    api_.check(api_.context_retain(&context_, device_), "opening " + name_);
    const CurrentGpu current(*this);
    // It does not wait for the default stream, and its kernels have the highest priority, since other work
    // waits for them, such as halos.
    api_.check(api_.stream_priorities(&least_priority_, &greatest_priority_), "asking for priorities");
    api_.check(api_.stream_create(&stream_, 1, greatest_priority_), "making a stream");
    api_.check(api_.event_create(&meeting_, 2), "making an event");
    can_begin_early_ = api_.launch_with != nullptr && major_ >= 9;
}

Gpu::~Gpu() = default; // lives as long as the process

std::string Gpu::architecture() const {
    const std::string& before = vendor().architecture;
    return before.empty() ? "" : before + std::to_string(major_) + std::to_string(minor_);
}

std::string Gpu::identity() const {
    std::array<unsigned char, 16> uuid{};
    api_.check(api_.device_uuid(uuid.data(), device_), "asking for a device's identity");
    static const char digits[] = "0123456789abcdef";
    std::string text;
    for (unsigned char byte : uuid) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

std::uint64_t Gpu::number() const {
    std::uint64_t number = 0xcbf29ce484222325; // FNV-1a
    for (const char c : identity()) number = (number ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return number;
}

void Gpu::synchronize() const {
    const HostSpan span(Phase::wait, "device");
    note_event(DriverCall::Kind::host_waits, nullptr, stream_);
    wait(api_.stream_synchronize, api_.stream_query, stream_);
    ++times_idle_;
}

void Gpu::wait(int (*deaf)(void*), int (*ask)(void*), void* what) const {
    const CurrentGpu current(*this);
    int error = gpu_not_ready;
    if (!is_heard_) {
        error = deaf(what);
    } else {
        for (unsigned checks = 0; (error = ask(what)) == gpu_not_ready; ++checks) listen(checks);
    }
    if (error != gpu_success) api_.fail(error, "work on " + name_);
    refuse_if_aborted();
}

// Calls every action, also when one throws: each has kernels of its own to stop.
void Gpu::listen(unsigned checks) const {
    std::exception_ptr first;
    const std::lock_guard lock(hearing_);
    for (const auto& [owner, action] : while_waiting_) {
        try {
            action(checks);
        } catch (...) {
            if (!first) first = std::current_exception();
        }
    }
    if (first) std::rethrow_exception(first);
}

void Gpu::wait_for_word(const std::int64_t* word, std::int64_t value) const {
    note_event(DriverCall::Kind::host_waits, nullptr, stream_);
    {
        const HostSpan span(Phase::wait, "device");
        for (int checks = 0; checks < checks_of_word; ++checks) {
            if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) {
                ++times_idle_;
                return refuse_if_aborted();
            }
            pause_core();
        }
    }
    synchronize(); // which checks for errors and failed ranks
}

void Gpu::let_others_capture() const {
    int mode = 2; // relaxed, for CUDA and HIP
    api_.check(api_.exchange_capture_mode(&mode), "choosing how a thread treats captures of others");
}

bool Gpu::is_capturing(void* stream) const {
    const CurrentGpu current(*this); // whose default streams have no other names
    int status = 0;
    api_.check(api_.is_capturing(stream, &status), "asking whether a graph is being recorded");
    return status != 0;
}

int Gpu::let_reach(const Gpu& other) const {
    const CurrentGpu current(other);
    return api_.enable_peer(context_, 0);
}

void Gpu::set_while_waiting(const void* owner, std::function<void(unsigned checks)> action) {
    const std::lock_guard lock(hearing_);
    if (action) {
        while_waiting_[owner] = std::move(action);
    } else {
        while_waiting_.erase(owner);
    }
    is_heard_ = !while_waiting_.empty();
}

void Gpu::set_aborted(const void* owner, std::function<std::string()> why) {
    const std::lock_guard lock(hearing_);
    if (why) {
        aborted_[owner] = std::move(why);
    } else {
        aborted_.erase(owner);
    }
    may_be_aborted_ = !aborted_.empty();
}

void Gpu::refuse_if_aborted() const {
    if (!may_be_aborted_) return;
    const std::lock_guard lock(hearing_);
    for (const auto& [owner, why] : aborted_)
        if (const std::string text = why(); !text.empty())
            throw GpuError("the device was told to give up what waits for other ranks (" + text +
                           "), so what it has computed since is not there; begin anew with what was saved");
}

void Gpu::wait_for(void* stream) {
    const CurrentGpu current(*this);
    std::lock_guard lock(meeting_mutex_);
    note_event(DriverCall::Kind::record, meeting_, stream);
    note_event(DriverCall::Kind::let_wait, meeting_, stream_);
    api_.check(api_.event_record(meeting_, stream), "recording an event on a stream that is not jali's");
    api_.check(api_.stream_wait(stream_, meeting_, 0), "waiting for another stream");
}

void Gpu::let_wait(void* stream) {
    const CurrentGpu current(*this);
    std::lock_guard lock(meeting_mutex_);
    note_event(DriverCall::Kind::record, meeting_, stream_);
    note_event(DriverCall::Kind::let_wait, meeting_, stream);
    api_.check(api_.event_record(meeting_, stream_), "recording an event");
    api_.check(api_.stream_wait(stream, meeting_, 0), "letting another stream wait");
}

// ---- kernels -------------------------------------------------------------------------------------------

GpuFunction Gpu::function(std::span<const std::byte> image, const std::string& name) {
    const CurrentGpu current(*this);
    listen_unless_recording();
    void* module = nullptr;
    api_.check(api_.module_load(&module, image.data()), "loading kernel '" + name + "' on " + name_);
    GpuFunction function;
    function.name = name;
    api_.check(api_.module_function(&function.handle, module, name.c_str()), "finding kernel '" + name + "'");
    api_.function_attribute(&function.most_threads, 0, function.handle);
    api_.function_attribute(&function.local_bytes, 3, function.handle);
    api_.function_attribute(&function.registers, 4, function.handle);
    return function;
}

bool Gpu::has_priorities() const {
    return api_.launch_with != nullptr && least_priority_ - greatest_priority_ >= 2;
}

void Gpu::launch(const GpuFunction& function, unsigned blocks, unsigned threads,
                 std::span<const std::byte> arguments, void* stream, LaunchPriority wanted_priority) const {
    const CurrentGpu current(*this);
    if (DriverRecord::on())
        DriverRecord::note({.kind = DriverCall::Kind::launch,
                            .name = function.name,
                            .stream = stream,
                            .function = function.handle,
                            .blocks = blocks,
                            .threads = threads,
                            .resident = static_cast<std::int64_t>(multiprocessors()) *
                                        occupancy(function, static_cast<int>(threads)),
                            .device = number(),
                            .arguments = {arguments.begin(), arguments.end()}});
    int error = gpu_success;
    void* parameters[] = {const_cast<std::byte*>(arguments.data())}; // which the driver copies
    CudaLaunchAttribute attributes[2];
    unsigned count = 0;
    if (can_begin_early_ && settings().early_launch) attributes[count++] = {may_begin_early, 0, {1}};
    if (wanted_priority != LaunchPriority::of_stream && has_priorities()) {
        const int priority = wanted_priority == LaunchPriority::first    ? greatest_priority_
                             : wanted_priority == LaunchPriority::middle ? least_priority_ - 1
                                                                         : least_priority_;
        attributes[count++] = {priority_of_launch, 0, {priority}};
    }
    if (count > 0) {
        const CudaLaunch launch = {{blocks, 1, 1}, {threads, 1, 1}, 0, stream, attributes, count};
        error = api_.launch_with(&launch, function.handle, parameters, nullptr);
    } else {
        error = api_.launch(function.handle, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
    }
    if (error != gpu_success)
        api_.fail(error, "launching kernel '" + function.name + "' (" + std::to_string(blocks) +
                             " blocks of " + std::to_string(threads) + " threads) on " + name_);
    if (is_heard_ && progress_.is_due() && !is_capturing(stream))
        progress_.mark(stream, "kernel '" + function.name + "'");
}

void Gpu::note_progress(void* stream, const std::string& what) const {
    if (DeviceProgress::is_recording())
        DeviceProgress::note_recorded(what);
    else if (!is_capturing(stream))
        progress_.mark(stream, what);
}

int Gpu::occupancy(const GpuFunction& function, int threads) const {
    const CurrentGpu current(*this);
    int blocks = 0;
    api_.check(api_.occupancy(&blocks, function.handle, threads, 0), "asking for occupancy");
    return blocks;
}

const GpuFunction& Gpu::builtin(const std::string& name) {
    const std::vector<std::byte>* image = nullptr; // which is kept once made
    {
        std::lock_guard lock(mutex_);
        const auto found = builtin_.find(name);
        if (found != builtin_.end()) return found->second;
        if (!builtin_image_.empty()) image = &builtin_image_;
    }
    // without the lock, since compiling takes seconds, and loading may wait for other ranks
    if (image == nullptr) {
        KernelImage compiled = kernel_image(*this, "builtin", builtin_text());
        std::lock_guard lock(mutex_);
        if (builtin_image_.empty()) builtin_image_ = std::move(compiled.code);
        image = &builtin_image_;
    }
    GpuFunction loaded = function(*image, name);
    std::lock_guard lock(mutex_);
    return builtin_.emplace(name, std::move(loaded)).first->second;
}

// ---- streams, events, graphs ---------------------------------------------------------------------------

GpuStream::GpuStream(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {
    {
        std::lock_guard lock(gpu_->mutex_);
        if (!gpu_->free_streams_.empty()) {
            handle_ = gpu_->free_streams_.back();
            gpu_->free_streams_.pop_back();
            return;
        }
    }
    const CurrentGpu current(*gpu_);
    gpu_->api().check(gpu_->api().stream_create(&handle_, 1, 0), "making a stream");
}

// Streams are kept: a driver may wait for the work on a stream that it destroys, and this work for another
// rank of the process, which may need a lock of the caller.
GpuStream::~GpuStream() {
    std::lock_guard lock(gpu_->mutex_);
    gpu_->free_streams_.push_back(handle_);
}

GpuEvent::GpuEvent(std::shared_ptr<Gpu> gpu, bool timed) : gpu_(std::move(gpu)) {
    const CurrentGpu current(*gpu_);
    gpu_->api().check(gpu_->api().event_create(&handle_, timed ? 0 : 2), "making an event");
}

GpuEvent::~GpuEvent() {
    try {
        const CurrentGpu current(*gpu_);
        gpu_->api().event_destroy(handle_);
    } catch (const GpuError&) { // the device is lost; other calls report it
    }
}

void GpuEvent::record(void* stream) {
    const CurrentGpu current(*gpu_);
    note_event(DriverCall::Kind::record, handle_, stream);
    gpu_->api().check(gpu_->api().event_record(handle_, stream), "recording an event");
}

void GpuEvent::let_wait(void* stream) const {
    const CurrentGpu current(*gpu_);
    note_event(DriverCall::Kind::let_wait, handle_, stream);
    gpu_->api().check(gpu_->api().stream_wait(stream, handle_, 0), "letting a stream wait");
}

bool GpuEvent::reached() const {
    const CurrentGpu current(*gpu_);
    const int error = gpu_->api().event_query(handle_);
    if (error == gpu_not_ready) return false;
    if (error != gpu_success) gpu_->api().fail(error, "work on " + gpu_->name());
    return true;
}

void GpuEvent::wait() const {
    note_event(DriverCall::Kind::host_waits, handle_, nullptr);
    gpu_->wait(gpu_->api().event_synchronize, gpu_->api().event_query, handle_);
}

double GpuEvent::seconds_since(const GpuEvent& start) const {
    float ms = 0;
    const CurrentGpu current(*gpu_);
    gpu_->api().check(gpu_->api().event_elapsed(&ms, start.handle_, handle_), "reading the device's clock");
    return ms * 1e-3;
}

void GpuGraph::begin(void* stream) {
    const CurrentGpu current(*gpu_);
    constexpr int relaxed = 2; // other threads and libraries are not restricted
    gpu_->api().check(gpu_->api().capture_begin(stream, relaxed), "recording a graph");
    captured_ = stream;
    record_ = std::make_unique<DriverRecord>();
    DeviceProgress::begin_recording();
}

void GpuGraph::end(void* stream) {
    const CurrentGpu current(*gpu_);
    record_->stop();
    what_ = DeviceProgress::end_recording();
    gpu_->api().check(gpu_->api().capture_end(stream, &graph_), "recording a graph");
}

void GpuGraph::make_ready() {
    const CurrentGpu current(*gpu_);
    std::lock_guard lock(mutex_);
    if (instance_ == nullptr) instantiate();
}

void GpuGraph::instantiate() {
    gpu_->listen();
    const GpuApi& api = gpu_->api();
    // each kernel as urgent as it was recorded, not as the stream that the graph is launched on
    constexpr unsigned long long by_node = 8;
    api.check(api.graph_instantiate(&instance_, graph_, gpu_->has_priorities() ? by_node : 0),
              "making a graph ready");
    api.graph_destroy(std::exchange(graph_, nullptr));
}

void GpuGraph::abandon(void* stream) noexcept {
    record_->stop();
    DeviceProgress::end_recording();
    try {
        const CurrentGpu current(*gpu_);
        void* graph = nullptr;
        if (gpu_->api().capture_end(stream, &graph) == gpu_success && graph != nullptr)
            gpu_->api().graph_destroy(graph);
    } catch (const GpuError&) { // the caller reports the error
    }
}

GpuGraph::~GpuGraph() {
    try {
        const CurrentGpu current(*gpu_);
        if (graph_ != nullptr) gpu_->api().graph_destroy(graph_);
        if (instance_ != nullptr) gpu_->api().graph_instance_destroy(instance_);
    } catch (const GpuError&) { // the device is lost; other calls report it
    }
}

void GpuGraph::follow(void* last, void* stream) const {
    GpuEvent done(gpu_, false);
    done.record(last);
    if (!done.reached())
        report_once(
            "a graph is launched on another stream while its last launch still runs; it waits for that one, "
            "since both count and fill the same memory");
    done.let_wait(stream);
}

void GpuGraph::launch(void* stream) {
    const CurrentGpu current(*gpu_);
    gpu_->refuse_if_aborted();
    std::lock_guard lock(mutex_); // until this launch is on its stream, where the next one can wait for it
    if (instance_ == nullptr) instantiate();
    if (launched_ != nullptr && launched_ != stream) follow(launched_, stream);
    launched_ = stream;
    if (DriverRecord::on()) {
        DriverRecord::note({.kind = DriverCall::Kind::begin_graph, .stream = stream, .captured = captured_});
        for (const DriverCall& call : record_->calls) DriverRecord::note(call);
        DriverRecord::note({.kind = DriverCall::Kind::end_graph, .stream = stream});
    }
    const DeviceSpan span(*gpu_, stream, Phase::graph, "graph");
    gpu_->api().check(gpu_->api().graph_launch(instance_, stream), "launching a graph");
    if (gpu_->notes_progress(DeviceProgress::long_launch)) gpu_->note_progress(stream, what_);
}

} // namespace jali
