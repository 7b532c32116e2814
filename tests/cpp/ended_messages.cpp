// What has been started arrives, though all that its sender has of it ends before the receiver starts.
#include <jali/jali.hpp>

#include <array>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace jali;

int main() {
    constexpr std::size_t count = 300'000;
    const int status = run_virtual_ranks(2, [](const std::shared_ptr<Communicator>& world) {
        const int rank = world->rank();
        const std::shared_ptr<Gpu> gpu = Gpu::open(vendor_named("cuda"), rank);
        const std::vector<float> values(count, static_cast<float>(7 - 7 * rank));
        const GpuMemory x = gpu->upload(values.data(), count * sizeof(float), "test");
        const auto messages = std::make_shared<DeviceMessages>(gpu, world);
        DeviceMessage end(messages, {1 - rank, 0, rank == 0, x.address(), x.size()}, "fp32", "(300000,)", "",
                          gpu->stream());
        const std::array<DeviceMessage*, 1> one = {&end};
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        messages->start(one, {});
        std::vector<float> got(count);
        gpu->copy_out(got.data(), x.address(), x.size());
        gpu->synchronize();
        if (got != std::vector<float>(count, 7)) throw std::runtime_error("wrong");
        if (rank == 1) std::printf("by '%s'\n", end.transport_name().c_str());
    });
    return status;
}
