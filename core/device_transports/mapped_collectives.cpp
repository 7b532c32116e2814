#include "device_transports/mapped_collectives.hpp"
#include "device/stream_program.hpp"
#include "device_transports/mapped_messages.hpp"

#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <utility>

namespace jali {

namespace {

constexpr const char* making = "making the messages of a plan";

// The announcement of an end to the other one.
struct Announcement {
    std::int32_t peer, bytes;
    std::int64_t sends;
    std::byte text[MessageEnd::most_announced];
};

class Mapped final : public CollectiveConnection {
  public:
    Mapped(const CollectiveRanks& ranks, const CollectiveTransport& transport, const MessageTransport& by,
           std::shared_ptr<MessageConnection> messages)
        : CollectiveConnection(transport, *ranks.gpu), by_(by), control_(ranks.control),
          messages_(std::move(messages)), beside_(std::make_shared<GpuStream>(ranks.gpu)), gpu_(ranks.gpu) {}

    std::vector<StageExchange> prepare(std::span<const std::span<const StageMessage>> stages,
                                       std::span<const GpuAddress> own) override {
        std::vector<std::shared_ptr<Stage>> made;
        std::vector<Announcement> mine;
        together([&] {
            for (const auto& messages : stages) {
                Stage& stage = *made.emplace_back(std::make_shared<Stage>(gpu_, messages_, beside_));
                for (const StageMessage& m : messages) mine.push_back(stage.add(m, own[m.region.buffer]));
            }
        });
        const auto all = control_->all_gather(std::as_bytes(std::span(mine)), making);
        together([&] {
            std::map<std::pair<int, bool>, std::size_t> next; // by peer and whether it sends
            for (const auto& stage : made) {
                for (const auto& end : stage->ends) {
                    const MessageArray& of = end->array;
                    const Announcement announcement =
                        other_end(all[of.peer], !of.sends, next[{of.peer, !of.sends}]);
                    end->meet(std::span(announcement.text).first(announcement.bytes), by_);
                }
                messages_->begin(stage->program, stage->started);
            }
        });
        std::vector<StageExchange> exchanges;
        for (auto& stage : made)
            exchanges.push_back([stage = std::move(stage)](std::span<const GpuAddress> buffers,
                                                           void* stream) { stage->put(buffers, stream); });
        return exchanges;
    }

  private:
    struct Stage {
        Stage(const std::shared_ptr<Gpu>& gpu, std::shared_ptr<MessageConnection> by,
              std::shared_ptr<GpuStream> beside)
            : by(std::move(by)), beside(std::move(beside)), program(gpu) {}
        // An end whose array is known at each start alone, if `own` is 0.
        Announcement add(const StageMessage& m, GpuAddress own) {
            const GpuAddress address = m.sends || own == 0 ? 0 : own + m.region.offset;
            regions.push_back(m.region);
            ends.push_back(by->make({m.peer, 0, m.sends, address, m.region.bytes}));
            started.push_back(ends.back().get());
            const std::vector<std::byte> text = ends.back()->announcement();
            Announcement announcement{m.peer, static_cast<std::int32_t>(text.size()), m.sends, {}};
            std::memcpy(announcement.text, text.data(), text.size());
            return announcement;
        }
        void put(std::span<const GpuAddress> buffers, void* stream) {
            for (std::size_t k = 0; k < ends.size(); ++k)
                ends[k]->array.address = buffers[regions[k].buffer] + regions[k].offset;
            program.run(std::array{stream, beside->handle()});
        }

        std::shared_ptr<MessageConnection> by;
        std::shared_ptr<GpuStream> beside;
        std::vector<Region> regions;
        std::vector<std::unique_ptr<MessageEnd>> ends;
        std::vector<MessageEnd*> started;
        StreamProgram program; // reads addresses when it runs
    };

    // All ranks continue, or all throw.
    template <class Work>
    void together(Work work) {
        std::string trouble;
        std::exception_ptr own;
        try {
            work();
        } catch (const std::exception& error) {
            trouble = "rank " + std::to_string(control_->rank()) + ": " + error.what();
            own = std::current_exception();
        }
        const std::string announcement = first_reported(*control_, trouble, making);
        if (own) std::rethrow_exception(own);
        if (!announcement.empty()) throw GpuError(std::string(making) + ": " + announcement);
    }

    // A rank's announcement of its first message with this rank at or after `next`; moves `next` past it.
    Announcement other_end(std::span<const std::byte> all, bool sends, std::size_t& next) const {
        for (Announcement announcement; (next + 1) * sizeof announcement <= all.size();) {
            std::memcpy(static_cast<void*>(&announcement), all.data() + next++ * sizeof announcement,
                        sizeof announcement);
            if (announcement.peer == control_->rank() && (announcement.sends != 0) == sends)
                return announcement;
        }
        throw PlanError("a message of a plan has no other end");
    }

    const MessageTransport& by_;
    std::shared_ptr<Communicator> control_;
    std::shared_ptr<MessageConnection> messages_;
    std::shared_ptr<GpuStream> beside_;
    std::shared_ptr<Gpu> gpu_;
};

} // namespace

std::shared_ptr<CollectiveConnection> make_mapped_collectives(const CollectiveRanks& ranks,
                                                              const CollectiveTransport& transport,
                                                              const MessageTransport& by) {
    std::string trouble = ranks.wanted.empty() ? transport.why_not(ranks.gpu, *ranks.communicator) : "";
    if (!trouble.empty()) throw GpuError(trouble);
    auto messages = by.make({ranks.gpu, ranks.communicator, ranks.control, nullptr, {}});
    for (int r = 0; r < ranks.control->size() && trouble.empty(); ++r)
        if (ranks.wanted.empty() || ranks.wanted[r] != 0) trouble = messages->why_not(r);
    trouble =
        first_reported(*ranks.control, trouble, "setting up collectives by " + std::string(transport.words));
    if (!trouble.empty()) throw GpuError(trouble);
    return std::make_shared<Mapped>(ranks, transport, by, std::move(messages));
}

} // namespace jali
