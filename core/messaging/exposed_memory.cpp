#include "messaging/exposed_memory.hpp"

namespace jali {

namespace {

// For ranks that reach no other rank's memory.
class NoExposedMemory final : public ExposedMemory {
  public:
    explicit NoExposedMemory(std::string why_not) : why_not_(std::move(why_not)) {}
    bool reaches(int) const override { return false; }
    const std::string& why_not() const override { return why_not_; }
    std::unique_ptr<Exposure> expose(Memory&, std::size_t, ExposureName&) override {
        throw std::logic_error("nobody reaches memory that is exposed: " + why_not_);
    }
    std::byte* address(int, const ExposureName&) const override { return nullptr; }

  private:
    std::string why_not_;
};

} // namespace

std::shared_ptr<ExposedMemory> exposed_memory(Communicator& communicator) {
    std::shared_ptr<GroupResource>& kept = communicator.resources["exposed memory"];
    if (!kept) {
        std::shared_ptr<Communicator> host;
        if (communicator.can_share_memory()) host = make_host_communicator(communicator);
        auto memory = (host ? *host : communicator).expose_memory();
        memory->host_communicator = std::move(host);
        kept = std::move(memory);
    }
    return std::static_pointer_cast<ExposedMemory>(kept);
}

std::shared_ptr<ExposedMemory> Communicator::expose_memory() {
    return std::make_shared<NoExposedMemory>(std::string("ranks of transport '") + transport() +
                                             "' share no memory");
}

} // namespace jali
