// Transports carry bytes between ranks' memory; code distinguishes them by traits and never by name.
//
// A user reads the traits of a transport, and why it is not possible here, the same on all ranks. The traits
// of transports between devices are in device_transports/device_transports.hpp; their operations for messages
// in device_transports/message_transport.hpp, for halos in halo/halo_transport.hpp, for collectives in
// running/collective_transport.hpp.
#pragma once

#include "device/gpu.hpp"
#include "messaging/communicator.hpp"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace jali {

using WhyNot = std::string (*)(const std::shared_ptr<Gpu>& gpu, Communicator& communicator);

struct TransportTraits {
    bool host_waits = false;  // the host takes part in every use, and waits
    bool recordable = false;  // nothing is decided by the host at a use, so that it may be part of a graph
    bool one_sided = false;   // the sender writes at the receiver, and signals
    bool maps_memory = false; // that of other ranks
    bool stores = false;      // of a kernel, not copies of an engine
    bool buffered = false;    // arriving data lie in buffers first
    bool device_per_rank = false; // two ranks cannot share one
};

struct Transport {
    const char*
        name; // in names of entries; empty or what begins with "-" comes behind the vendor's library's
    const char* words; // description
    TransportTraits traits;
    // Empty if the ranks of a communicator can use it with these devices (null: hosts), else why not.
    // Collective at least where it maps memory; the same on all ranks.
    WhyNot why_not;

    bool of_library() const { return *name == '\0' || *name == '-'; } // the vendor's
};

// As an entry of devices of a vendor is named, or of hosts (null); by the name of the vendor's library.
std::string name_of(const Transport& transport, const GpuVendor* vendor);
std::string name_of(const Transport& transport, const std::string& library);
// Of entries for devices of all vendors, by the names of their libraries.
std::vector<std::string> names_of(std::span<const Transport* const> transports,
                                  std::span<const std::string> libraries);

} // namespace jali
