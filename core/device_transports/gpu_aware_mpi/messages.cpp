// GPU-aware MPI: the MPI library gets the addresses of both arrays. The host waits for the stream first, and
// for all messages of a start together.
#include "device_transports/device_transports.hpp"
#include "device_transports/numbered_end.hpp"
#include "peers/host_messages.hpp"
#include "settings/counted.hpp"

#include <vector>

namespace jali {

namespace {

class GpuAwareMpi : public MessageConnection {
  public:
    explicit GpuAwareMpi(const MessageRanks& ranks) : ranks_(ranks), before_(ranks.gpu, false) {}
    std::unique_ptr<MessageEnd> make(const MessageArray& array) override {
        return std::make_unique<NumberedEnd>(array, array.sends ? 0 : ranks_.channel());
    }
    void begin(StreamProgram& program, Ends ends) override {
        program.add("the host waits, and starts " + counted(ends.size(), "message") + " of the MPI library",
                    own, {}, [this, all = std::vector(ends.begin(), ends.end())](void* stream) {
                        before_.record(stream);
                        before_.wait();
                        for (const bool sends : {false, true})
                            for (const MessageEnd* end : all) {
                                const MessageArray& of = end->array;
                                const int channel = static_cast<const NumberedEnd*>(end)->number();
                                if (of.sends == sends)
                                    between_.start(sends, of.address, of.bytes, of.peer, channel);
                            }
                    });
    }
    void end(StreamProgram& program, Ends) override {
        program.add("the host waits for them", own, {},
                    [this](void*) { between_.wait("messages between devices"); });
    }
    void give_up() noexcept override { between_.withdraw(); }

  private:
    MessageRanks ranks_;
    HostMessages between_{*ranks_.data};
    GpuEvent before_;
};

std::shared_ptr<MessageConnection> make(const MessageRanks& ranks) {
    return std::make_shared<GpuAwareMpi>(ranks);
}

} // namespace

const MessageTransport messages_by_gpu_aware_mpi{{gpu_aware_mpi}, make};

} // namespace jali
