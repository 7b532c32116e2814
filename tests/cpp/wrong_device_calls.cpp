// Calls on devices that cannot be are exceptions on every rank, whatever the mistake; prints those that are
// not. What comes after them is right.
#include <jali/jali.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

using namespace jali;

namespace {

constexpr std::int64_t count = 100;
constexpr int ranks = 2;

void refused(const std::string& what, const std::function<void()>& work) {
    try {
        work();
        std::printf("%s is taken\n", what.c_str());
    } catch (const std::exception& error) {
        if (*error.what() == '\0' || std::string_view(error.what()).starts_with("std::"))
            std::printf("%s: %s\n", what.c_str(), error.what());
    }
}

std::shared_ptr<Composition> from_the_first(int of) {
    auto composition = std::make_shared<Composition>(of, DataType::fp32);
    const int mine = composition->add_buffer("mine", {count}),
              all = composition->add_buffer("all", {count}, false);
    composition->multicast({mine, 0}, {all, 0}, count, 0, RankSet::all(of));
    return composition;
}

void collectives_of(const std::shared_ptr<Communicator>& world, const std::shared_ptr<Gpu>& gpu) {
    const auto collectives = Collectives::make(world);
    DeviceCollectives& on_device = *collectives->on(gpu);
    const std::vector<float> values(2 * count, static_cast<float>(world->rank() + 1));
    const GpuMemory x = gpu->upload(values.data(), values.size() * sizeof(float), "test");
    const GpuMemory y = gpu->upload(values.data(), values.size() * sizeof(float), "test");
    CollectiveCall sum;
    sum.type = DataType::fp32;
    sum.counts = {count};
    const auto call = [&](const char* what, const std::vector<GpuAddress>& buffers) {
        refused(what, [&] { on_device.start(sum, buffers, gpu->stream()); });
    };
    const GpuAddress inside = x.address() + 4;
    call("no buffer", {});
    call("one buffer", {x.address()});
    call("three buffers", {x.address(), y.address(), y.address()});
    call("no address", {0, y.address()});
    call("the same array twice", {x.address(), x.address()});
    call("arrays that overlap", {x.address(), inside});
    call("arrays that overlap the other way round", {inside, x.address()});

    for (const char* transport : {"", "two_step", "nccl", "host-staged"}) {
        const auto plan_of = [&](const char* mistake, const std::function<void(CollectiveCall&)>& make) {
            CollectiveCall wrong = sum;
            wrong.algorithm = transport;
            make(wrong);
            refused(std::string(mistake) + " by '" + transport + "'",
                    [&] { on_device.plan_of(wrong, false); });
        };
        plan_of("no count", [](auto& c) { c.counts = {}; });
        plan_of("a negative count", [](auto& c) { c.counts = {-7}; });
        plan_of("a count for each rank", [](auto& c) { c.counts = {7, 7}; });
        plan_of("a count that no memory has", [](auto& c) { c.counts = {INT64_MAX / 2}; });
        plan_of("a root that is none", [](auto& c) { c.collective = Collective::reduce, c.root = ranks; });
        plan_of("a root of minus one", [](auto& c) { c.collective = Collective::broadcast, c.root = -1; });
        plan_of("three counts", [](auto& c) { c.collective = Collective::gather, c.counts = {7, 7, 7}; });
        plan_of("an operation of no number", [](auto& c) { c.operation = static_cast<Operation>(99); });
        plan_of("no function", [](auto& c) { c.operation = Operation::user; });
    }
    refused("a space of nobody", [] { MessageSpace({{"thread", nullptr}}); });
    refused("a plan of no schedule", [&] { PersistentPlan::make(nullptr, collectives->space(), "test"); });

    const PlanParameters parameters{Hierarchy(ranks)}, too_many{Hierarchy(ranks + 1)};
    refused("a plan of too many ranks",
            [&] { on_device.plan(*from_the_first(ranks + 1), too_many, "test"); });
    refused("a plan of nothing", [&] { RunningPlan(collectives, nullptr, parameters, "test"); });
    refused("a plan of nobody", [&] { RunningPlan(nullptr, from_the_first(ranks), parameters, "test"); });
    RunningPlan plan(collectives, from_the_first(ranks), parameters, "test");
    const std::array<GpuAddress, 2> buffers = {x.address(), y.address()};
    const std::array<GpuAddress, 2> same = {x.address(), x.address()}, none = {};
    refused("a plan on no device", [&] { plan.start(nullptr, buffers, nullptr); });
    refused("a plan with one buffer", [&] { plan.start(gpu, std::span(buffers).first(1), gpu->stream()); });
    refused("a plan without addresses", [&] { plan.start(gpu, none, gpu->stream()); });
    refused("a plan on the same array twice", [&] { plan.start(gpu, same, gpu->stream()); });
    refused("a proof of that", [&] { plan.check(gpu, same); });

    on_device.start(sum, buffers, gpu->stream());
    std::vector<float> got(count);
    gpu->copy_out(got.data(), y.address(), count * sizeof(float));
    gpu->synchronize();
    if (got != std::vector<float>(count, 3)) std::printf("a sum is wrong\n");
    plan.start(gpu, buffers, gpu->stream());
    plan.wait();
    gpu->copy_out(got.data(), y.address(), count * sizeof(float));
    gpu->synchronize();
    if (got != std::vector<float>(count, 1)) std::printf("a plan is wrong\n");
}

void messages_of(const std::shared_ptr<Communicator>& world, const std::shared_ptr<Gpu>& gpu) {
    refused("messages on no device", [&] { DeviceMessages(nullptr, world); });
    refused("messages of nobody", [&] { DeviceMessages(gpu, nullptr); });
    const auto all = std::make_shared<DeviceMessages>(gpu, world);
    const int other = 1 - world->rank();
    const std::vector<float> values(count, static_cast<float>(world->rank()));
    const GpuMemory x = gpu->upload(values.data(), count * sizeof(float), "test");
    const GpuMemory y = gpu->upload(values.data(), count * sizeof(float), "test");
    const std::string type = "fp32", shape = "(100,)";
    const auto end = [&](const char* what, int peer, GpuAddress address, const std::string& transport) {
        refused(what, [&] {
            DeviceMessage(all, {peer, 0, true, address, x.size()}, type, shape, transport, gpu->stream());
        });
    };
    end("a rank too many", ranks, x.address(), "");
    end("a rank of minus one", -1, x.address(), "");
    end("no array", other, 0, "");
    end("a way that is none", other, x.address(), "pigeons");
    refused("a message of nobody", [&] {
        DeviceMessage(nullptr, {other, 0, true, x.address(), x.size()}, type, shape, "", gpu->stream());
    });
    const std::array<DeviceMessage*, 1> null = {nullptr};
    refused("a start of null", [&] { all->start(null, {}); });
    refused("a description of null", [&] { all->describe(null); });
    refused("a proof of null", [&] { all->check(null); });
    refused("a record of null", [&] { all->record(null); });
    refused("a warm-up of null", [&] { all->warm_up(null); });

    DeviceMessage there(all, {other, 0, true, x.address(), x.size()}, type, shape, "", gpu->stream());
    DeviceMessage back(all, {other, 0, false, y.address(), y.size()}, type, shape, "", gpu->stream());
    const std::array<DeviceMessage*, 2> both = {&there, &back};
    all->start(both, {});
    std::vector<float> got(count);
    gpu->copy_out(got.data(), y.address(), y.size());
    gpu->synchronize();
    if (got != std::vector<float>(count, static_cast<float>(other))) std::printf("a message is wrong\n");
}

} // namespace

int main() {
    const int status = run_virtual_ranks(ranks, [](const std::shared_ptr<Communicator>& world) {
        const std::shared_ptr<Gpu> gpu = Gpu::open(vendor_named("cuda"), world->rank());
        collectives_of(world, gpu);
        messages_of(world, gpu);
    });
    if (status == 0) std::printf("right\n");
    return status;
}
