#include "device/driver_record.hpp"

namespace jali {

thread_local DriverRecord* DriverRecord::current_ = nullptr;

DriverRecord::DriverRecord() : before_(current_) {
    current_ = this;
}

void DriverRecord::stop() {
    if (current_ == this) current_ = before_;
}

const char* name_of(DriverCall::Kind kind) {
    constexpr const char* names[] = {"launch",         "copy",       "fill",        "record event",
                                     "wait for event", "host waits", "send",        "receive",
                                     "complete",       "ccl send",   "ccl receive", "end group",
                                     "begin graph",    "end graph",  "refused",     "mark"};
    return names[static_cast<int>(kind)];
}

} // namespace jali
