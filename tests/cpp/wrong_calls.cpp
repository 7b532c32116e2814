// Calls that cannot be are exceptions, whatever the mistake; prints those that are not.
#include <jali/planning/choice.hpp>
#include <jali/running/collectives.hpp>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

using namespace jali;

int main() {
    const auto collectives = Collectives::make(make_self_communicator());
    std::vector<double> x(3, 1.0), sum(3);
    const auto buffers = buffers_of(x.data(), sum.data());
    const std::vector<std::byte*> nowhere(2, nullptr);
    const auto call = [](const std::function<void(CollectiveCall&)>& change) {
        CollectiveCall made;
        made.counts = {3};
        change(made);
        return made;
    };
    const auto refused = [&](const char* what, const std::function<void()>& work) {
        try {
            work();
            std::printf("%s is taken\n", what);
        } catch (const std::exception& error) {
            if (*error.what() == '\0' || std::string_view(error.what()).starts_with("std::"))
                std::printf("%s: %s\n", what, error.what());
        }
    };
    const auto changed = [&](const char* what, const std::function<void(CollectiveCall&)>& change) {
        refused(what, [&] { collectives->run(call(change), buffers); });
    };
    changed("a type of no number", [](auto& c) { c.type = static_cast<DataType>(99); });
    changed("an operation of no number", [](auto& c) { c.operation = static_cast<Operation>(99); });
    changed("a collective of no number", [](auto& c) { c.collective = static_cast<Collective>(99); });
    changed("no counts", [](auto& c) { c.counts = {}; });
    changed("a negative count", [](auto& c) { c.counts = {-3}; });
    changed("a root that is none", [](auto& c) { c.collective = Collective::reduce, c.root = 1; });
    changed("an algorithm that is none", [](auto& c) { c.algorithm = "rings"; });
    changed("no function", [](auto& c) { c.operation = Operation::user; });
    refused("no address", [&] { collectives->run(call([](auto&) {}), nowhere); });
    refused("one buffer", [&] { collectives->run(call([](auto&) {}), std::span(buffers).first(1)); });
    refused("no device", [&] { collectives->on(nullptr); });
    refused("no ranks", [&] { Collectives::make(nullptr); });
    Machine machine; // four nodes of one rank
    machine.nodes = 4;
    machine.nics = {{}};
    machine.binding = {0};
    const auto searched = [&](const char* what, double size, int ranks, int root) {
        refused(what, [&] { choose(machine, Collective::broadcast, size, ranks, root); });
    };
    searched("an unfinished machine", 1e6, 4, 0);
    machine.finish();
    searched("a machine without libraries", 1e6, 4, 0);
    machine.libraries = {{.name = "mpi", .at = {{.usable = true, .bandwidth = 1e9}}}};
    machine.finish();
    searched("a plan of no bytes", 0, 4, 0);
    searched("a plan for too many ranks", 1e6, 5, 0);
    searched("a plan from nowhere", 1e6, 4, 4);
    refused("a plan of nothing", [&] { choose_for(machine, Composition(4, DataType::fp32)); });
    if (choose(machine, Collective::broadcast, 1e6, 4).parameters.ranks != 4) std::puts("no plan");
    collectives->run(call([](auto&) {}), buffers);
    std::printf("%s\n", sum == x ? "right" : "wrong");
}
