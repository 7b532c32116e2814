// The purpose of a step of a schedule, which fusions, explanations and profiles use.
#pragma once

#include "device/timeline.hpp"

#include <cstdint>
#include <initializer_list>
#include <string>

namespace jali {

// In the order in which they are reported.
enum class StepRole : std::uint8_t {
    produce,        // what is sent is computed
    grant_credit,   // signal: this rank's memory may be written
    pack,           // rows are copied
    await_credit,   // wait: the receiver's memory may be written
    put,            // packed data are written to the receiver
    signal,         // it is there
    wait,           // for what a sender puts here
    unpack,         // arrived data are copied to their destination
    exchange,       // sends and receives of a library, on a stream
    copy_to_host,   // from a device to the host
    message,        // sends and receives of the host
    copy_to_device, // from the host to a device
    bulk,           // sites that need nothing of others
    boundary,       // all others
};
const char* name_of(StepRole role);
Phase phase_of(StepRole role); // in profiles

using StepRoles = std::uint32_t; // a set of them
constexpr StepRoles set_of(std::initializer_list<StepRole> roles) {
    StepRoles set = 0;
    for (StepRole role : roles) set |= 1U << static_cast<unsigned>(role);
    return set;
}

} // namespace jali
