#include "device/driver_record.hpp"

#include <stdexcept>

namespace jali {

thread_local DriverRecord* DriverRecord::current_ = nullptr;

DriverRecord::DriverRecord() {
    if (current_ != nullptr)
        throw std::logic_error("this thread's calls of the driver are being recorded already");
    current_ = this;
}

void DriverRecord::stop() {
    if (current_ == this) current_ = nullptr;
}

const char* name_of(DriverCall::Kind kind) {
    constexpr const char* names[] = {"launch",      "copy",      "fill",    "record event", "wait for event",
                                     "host waits",  "send",      "receive", "complete",     "ccl send",
                                     "ccl receive", "end group", "refused", "mark"};
    return names[static_cast<int>(kind)];
}

} // namespace jali
