// Collectives and a composition between devices, in C++ alone: a thread for each device of this machine.
//
// device_collectives [cuda|hip]. Kernels are compiled when they are first needed, by the vendor's run-time
// compiler.
#include <jali/jali.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

using namespace jali;

namespace {

constexpr std::int64_t count = 10'000;

// An array of floats on a device.
GpuMemory array_on(Gpu& gpu, std::int64_t elements, float value) {
    const std::vector<float> values(elements, value);
    return gpu.upload(values.data(), values.size() * sizeof(float), "example");
}

void require_all(Gpu& gpu, const GpuMemory& array, float value, const char* what) {
    std::vector<float> values(array.size() / sizeof(float));
    gpu.copy_out(values.data(), array.address(), array.size());
    gpu.synchronize();
    for (const float each : values)
        if (each != value) throw std::runtime_error(std::string("wrong: ") + what);
}

// What every rank does with the device of its number.
void program(const std::shared_ptr<Communicator>& world, const std::string& kind) {
    const int rank = world->rank(), ranks = world->size();
    const std::shared_ptr<Gpu> gpu = Gpu::open(vendor_named(kind), rank);
    const std::shared_ptr<Collectives> collectives = Collectives::make(world);
    DeviceCollectives& on_device = *collectives->on(gpu);

    // The sum over all ranks: of 1, 2, ..., ranks. A call returns when it is on the stream.
    CollectiveCall sum;
    sum.collective = Collective::all_reduce;
    sum.type = DataType::fp32;
    sum.counts = {count};
    const GpuMemory x = array_on(*gpu, count, static_cast<float>(rank + 1)), total = array_on(*gpu, count, 0);
    const std::array<GpuAddress, 2> arrays = {x.address(), total.address()};
    for (int time = 0; time < 3; ++time) on_device.start(sum, arrays, gpu->stream());
    require_all(*gpu, total, static_cast<float>(ranks * (ranks + 1)) / 2, "sum");
    const std::string how = on_device.explain(sum); // of this rank; all ranks ask
    if (rank == 0) std::printf("a sum: %s\n", how.substr(0, how.find('\n')).c_str());

    // A composition: the first and the last rank each send their array to all; proved, then run.
    Composition composition(ranks, DataType::fp32);
    const int mine = composition.add_buffer("mine", {count});
    const int both = composition.add_buffer("both", {2 * count}, false);
    composition.multicast({mine, 0}, {both, 0}, count, 0, RankSet::all(ranks));
    composition.multicast({mine, 0}, {both, count}, count, ranks - 1, RankSet::all(ranks));
    const std::shared_ptr<GpuPlan> plan = on_device.plan(composition, PlanParameters(Hierarchy(ranks)),
                                                         "arrays of the first and the last rank");
    const GpuMemory received = array_on(*gpu, 2 * count, 0);
    const std::array<GpuAddress, 2> buffers = {x.address(), received.address()};
    plan->check(buffers, composition, false, *world); // throws ScheduleError on all ranks
    plan->run(buffers, gpu->stream());
    std::vector<float> values(2 * count);
    gpu->copy_out(values.data(), received.address(), received.size());
    gpu->synchronize();
    for (std::int64_t k = 0; k < 2 * count; ++k)
        if (values[k] != static_cast<float>(k < count ? 1 : ranks))
            throw std::runtime_error("wrong: multicast");
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
    std::printf("%d device%s, all is right\n", devices, devices == 1 ? "" : "s");
    return 0;
}
