// Ranks that make different calls; in checked mode all are told so, and go on.
#include <jali/messaging/rank_program.hpp>
#include <jali/running/collectives.hpp>
#include <jali/settings/settings.hpp>

#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

using namespace jali;

int main() {
    std::mutex printing;
    run_virtual_ranks(3, [&](const std::shared_ptr<Communicator>& ranks) {
        const auto collectives = Collectives::make(ranks);
        std::vector<double> x(6, 1.0), sum(6);
        CollectiveCall call;
        call.counts = {ranks->rank() == 1 ? 5 : 6};
        try {
            if (ranks->rank() == 2)
                collectives->run(call, buffers_of(x.data(), sum.data()));
            else
                collectives->start(call, buffers_of(x.data(), sum.data()))->wait();
            std::puts("not compared");
        } catch (const AgreedError& error) {
            const std::lock_guard lock(printing);
            std::printf("rank %d: %s\n", ranks->rank(), error.what());
        }
        call.counts = {6};
        collectives->run(call, buffers_of(x.data(), sum.data()));
        const std::lock_guard lock(printing);
        std::printf("rank %d goes on with %g\n", ranks->rank(), sum[5]);
    });
}
