// What a step of a schedule is there for: fusions, explanations and profiles go by it.
#pragma once

#include "device/timeline.hpp"

#include <cstdint>
#include <initializer_list>
#include <string>

namespace jali {

// In the order in which they are told.
enum class Deed : std::uint8_t {
    produce,  // what is sent is computed
    offer,    // signal: this rank's memory may be written
    pack,     // rows are copied
    admit,    // wait: the receiver's memory may be written
    put,      // what is packed is written there
    signal,   // it is there
    wait,     // for what a sender puts here
    place,    // what has come is copied to where it is read
    exchange, // sends and receives of a library, on a stream
    fetch,    // from a device to the host
    message,  // sends and receives of the host
    bring,    // from the host to a device
    bulk,     // sites that need nothing of others
    boundary, // all others
};
const char* name_of(Deed deed);
Phase phase_of(Deed deed); // in profiles

using Deeds = std::uint32_t; // a set of them
constexpr Deeds set_of(std::initializer_list<Deed> deeds) {
    Deeds set = 0;
    for (Deed deed : deeds) set |= 1U << static_cast<unsigned>(deed);
    return set;
}

} // namespace jali
