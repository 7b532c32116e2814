#include "running/persistent.hpp"
#include "device/timeline.hpp"

#include <algorithm>

namespace jali {

namespace {

constexpr int windows_of_space = 8;
constexpr std::size_t brief_bytes = 16384;

int largest_tag_of(const Schedule& schedule) {
    int largest = 0;
    for (const Step& step : schedule.steps()) {
        if (const auto* receive = std::get_if<Receive>(&step.action))
            largest = std::max(largest, receive->tag);
        if (const auto* send = std::get_if<Send>(&step.action)) largest = std::max(largest, send->tag);
    }
    return largest;
}

} // namespace

std::vector<bool> written_buffers(const Schedule& schedule) {
    std::vector<bool> written(schedule.buffers().size());
    for (const Step& step : schedule.steps()) {
        if (const auto* receive = std::get_if<Receive>(&step.action)) written[receive->into.buffer] = true;
        if (const auto* whole = std::get_if<LibraryCollective>(&step.action))
            for (const Region& region : whole->writes) written[region.buffer] = true;
        if (const auto* copy = std::get_if<Copy>(&step.action))
            for (const CopySpec& spec : copy->specs) written[spec.to.buffer] = true;
        if (const auto* reduce = std::get_if<Reduce>(&step.action))
            for (const ReduceSpec& spec : reduce->specs) written[spec.into.buffer] = true;
    }
    return written;
}

MessageSpace::MessageSpace(std::vector<NamedCommunicator> transports)
    : transports_(std::move(transports)), under_way_(windows_of_space) {
    if (transports_.empty()) throw PlanError("a message space needs at least one communicator");
    int largest = max_tag;
    for (const auto& [library, communicator] : transports_)
        if (!communicator) throw PlanError("the communicator of library '" + library + "' is null");
    for (std::size_t k = 0; k < transports_.size(); ++k) {
        const Communicator& one = *transports_[k].second;
        if (one.rank() != rank() || one.size() != size()) {
            throw PlanError("library '" + transports_[k].first + "' sees rank " + std::to_string(one.rank()) +
                            " of " + std::to_string(one.size()) + ", '" + transports_[0].first + "' rank " +
                            std::to_string(rank()) + " of " + std::to_string(size()) +
                            "; all must carry the same ranks");
        }
        largest = k == 0 ? one.largest_tag() : std::min(largest, one.largest_tag());
    }
    tags_ = static_cast<int>((std::int64_t{largest} + 1) / windows_of_space);
}

int MessageSpace::under_way() const {
    return static_cast<int>(std::count_if(under_way_.begin(), under_way_.end(), [](auto& p) { return !!p; }));
}

Communicator& MessageSpace::transport_of(const std::string& library) const {
    if (library.empty()) return *transports_.front().second;
    for (const auto& [name, communicator] : transports_)
        if (name == library) return *communicator;
    std::string known;
    for (const auto& [name, communicator] : transports_) known += (known.empty() ? "" : ", ") + name;
    throw PlanError("no library '" + library + "' connects these ranks; there is " + known);
}

std::shared_ptr<PersistentPlan> PersistentPlan::make(std::shared_ptr<const Schedule> schedule,
                                                     std::shared_ptr<MessageSpace> space, std::string what) {
    if (!schedule || !space)
        throw PlanError(what + ": its " + (schedule ? "message space" : "schedule") + " is null");
    return std::shared_ptr<PersistentPlan>(
        new PersistentPlan(std::move(schedule), std::move(space), std::move(what)));
}

PersistentPlan::PersistentPlan(std::shared_ptr<const Schedule> schedule, std::shared_ptr<MessageSpace> space,
                               std::string what)
    : space_(std::move(space)), schedule_(schedule), what_(std::move(what)), executor_(schedule, what_) {
    if (schedule->buffers().empty())
        throw ScheduleError("the schedule of " + what_ + " has no buffers, so no scratch either");
    const int tag = largest_tag_of(*schedule);
    if (tag >= space_->tags()) {
        throw PlanError(what_ + " uses tags up to " + std::to_string(tag) + ", but a plan has " +
                        std::to_string(space_->tags()) + " here; use fewer chunks (depth) or larger pieces");
    }
    for (const std::string& library : schedule->libraries())
        transports_.push_back(&space_->transport_of(library));
    const auto& buffers = schedule->buffers();
    addresses_.assign(buffers.size(), nullptr);
    const auto provide = [&](Memory& memory, std::size_t which) {
        if (buffers[which].bytes > 0) memory = Arena::host().allocate(buffers[which].bytes, "plans");
        addresses_[which] = memory.data();
    };
    std::size_t own = buffers.size() - 1;
    provide(scratch_, own);
    if (own > 0 && buffers[own - 1].name == "work") provide(work_, --own);
    user_buffers_ = static_cast<int>(own);
    written_ = written_buffers(*schedule);
    std::size_t bytes = 0;
    for (const Buffer& buffer : buffers) bytes += buffer.bytes;
    brief_ = bytes <= brief_bytes;
}

void PersistentPlan::start(std::span<std::byte* const> buffers, std::shared_ptr<const void> keep) {
    if (running()) throw std::logic_error(what_ + " is under way already; wait for it before the next start");
    if (static_cast<int>(buffers.size()) != user_buffers_) {
        throw PlanError(what_ + " has " + std::to_string(user_buffers_) + " buffers, " +
                        std::to_string(buffers.size()) + " were given");
    }
    for (int k = 0; k < user_buffers_; ++k)
        if (buffers[k] == nullptr && schedule_->buffers()[k].bytes > 0)
            throw PlanError(what_ + ": buffer " + std::to_string(k) + " has " +
                            std::to_string(schedule_->buffers()[k].bytes) +
                            " bytes on this rank and no address");
    space_->transports_.front()
        .second->refuse_other_threads(); // before any work whose error would fail the group
    const int window = space_->next_window();
    if (const auto oldest = space_->under_way_[window]) oldest->wait();
    ++space_->starts_;
    std::copy(buffers.begin(), buffers.end(), addresses_.begin());
    keep_ = std::move(keep);
    window_ = window;
    begun_ = watched() ? Timeline::now() : 0;
    space_->under_way_[window] = shared_from_this();
    try {
        executor_.start(addresses_, transports_, window * space_->tags_);
    } catch (...) {
        end();
        throw;
    }
}

bool PersistentPlan::test() {
    if (!running()) return true;
    const auto self = shared_from_this();
    try {
        if (!executor_.test()) return false;
    } catch (...) {
        end();
        throw;
    }
    end();
    return true;
}

void PersistentPlan::wait() {
    if (!running()) return;
    const auto self = shared_from_this();
    try {
        executor_.wait();
    } catch (...) {
        end();
        throw;
    }
    end();
}

void PersistentPlan::end() {
    keep_.reset();
    if (Timeline* const timeline = begun_ != 0 ? Timeline::of_this_thread() : nullptr)
        timeline->add(Phase::collective, Timeline::plan_track, timeline->number_of(what_), begun_,
                      Timeline::now());
    const int window = std::exchange(window_, -1);
    space_->under_way_[window].reset(); // may be the last reference to this plan
}

} // namespace jali
