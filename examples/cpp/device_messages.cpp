// Messages between devices that are made once and started again and again, in C++ alone: a thread for each
// device of this machine, in a ring.
//
// device_messages [cuda|hip]. With JALI_CHECKED=1 the first start is proved to be in order before it runs.
#include <jali/jali.hpp>
#include <jali/schedule/first_run.hpp>

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

using namespace jali;

namespace {

constexpr std::size_t count = 10'000;

// An array of floats on a device.
GpuMemory array_on(Gpu& gpu, float value) {
    const std::vector<float> values(count, value);
    return gpu.upload(values.data(), values.size() * sizeof(float), "example");
}

// What every rank does with the device of its number.
void program(const std::shared_ptr<Communicator>& world, const std::string& kind) {
    const int rank = world->rank(), ranks = world->size();
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    const std::shared_ptr<Gpu> gpu = Gpu::open(vendor_named(kind), rank);
    const GpuMemory x = array_on(*gpu, static_cast<float>(rank)), y = array_on(*gpu, -1);

    // Arrays are used on the device's own stream before and afterwards. Type and shape are compared, or are
    // in errors; the way is chosen where none is named.
    const auto messages = std::make_shared<DeviceMessages>(gpu, world); // by all ranks
    const std::string type = "fp32", shape = "(10000,)", transport;
    DeviceMessage to_next(messages, {next, 0, true, x.address(), x.size()}, type, shape, transport,
                          gpu->stream());
    DeviceMessage from_before(messages, {before, 0, false, y.address(), y.size()}, type, shape, transport,
                              gpu->stream());
    const std::array<DeviceMessage*, 2> ends = {&to_next, &from_before};
    const std::string how = messages->describe(ends);
    if (rank == 0) std::printf("by '%s'\n%s", to_next.transport_name().c_str(), how.c_str());

    // Once around: what arrived is sent next. Nobody waits on the host.
    for (int step = 0; step < ranks; ++step) {
        messages->start(ends, {}); // on the device's own stream
        gpu->copy(x.address(), y.address(), x.size());
    }
    messages->check(ends); // throws on all ranks if anything could go wrong
    std::vector<float> values(count);
    gpu->copy_out(values.data(), x.address(), x.size());
    gpu->synchronize(); // throws where a rank has failed
    for (const float each : values)
        if (each != static_cast<float>(rank)) throw std::runtime_error("wrong: what has gone around");
}

} // namespace

int main(int arguments, char** argument) {
    const std::string kind = arguments > 1 ? argument[1] : "cuda";
    int devices = 0;
    try {
        devices = Gpu::count(vendor_named(kind));
    } catch (const std::exception& error) { // no driver, or no such vendor
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    const int status = run_virtual_ranks(devices, [&](const auto& world) { program(world, kind); });
    if (status != 0) return status;
    std::printf("%d device%s, all is right; first starts that were proved: %d\n", devices,
                devices == 1 ? "" : "s", static_cast<int>(first_runs.proved));
    return 0;
}
