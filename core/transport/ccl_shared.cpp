// The group of the vendor's library that belongs to a Communicator.
#include "transport/ccl.hpp"

namespace jali {

namespace {

struct SharedCcl : Belonging {
    std::shared_ptr<CclCommunicator> group;
    std::string trouble;
    void end() noexcept override {
        if (group) group->close();
    }
};

const SharedCcl& shared_by(Communicator& ranks, const std::shared_ptr<Gpu>& gpu) {
    auto& place = ranks.belongings[gpu->vendor().ccl.title + " on device " + std::to_string(gpu->ordinal())];
    if (!place) {
        auto made = std::make_shared<SharedCcl>();
        try {
            // over messages of its own, which does not keep `ranks` alive
            made->group = std::make_shared<CclCommunicator>(ranks.duplicate(), gpu);
        } catch (const GpuError& error) {
            made->trouble = error.what();
        }
        place = made;
    }
    return static_cast<const SharedCcl&>(*place);
}

} // namespace

std::shared_ptr<CclCommunicator> CclCommunicator::shared(Communicator& ranks,
                                                         const std::shared_ptr<Gpu>& gpu) {
    const SharedCcl& found = shared_by(ranks, gpu);
    if (!found.group) throw GpuError(found.trouble);
    return found.group;
}

std::string CclCommunicator::why_not(Communicator& ranks, const std::shared_ptr<Gpu>& gpu) {
    return shared_by(ranks, gpu).trouble;
}

} // namespace jali
