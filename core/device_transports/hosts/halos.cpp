// Transports of halos between hosts: memory that processes expose to each other, and messages. Their
// operations are steps of a schedule (exchange.hpp).
#include "halo/halo_transport.hpp"
#include "messaging/exposed_memory.hpp"

namespace jali {

namespace {

constexpr HaloMove into_ghosts[] = {
    {StepRole::grant_credit, HaloTime::first}, {StepRole::pack, HaloTime::first},
    {StepRole::await_credit, HaloTime::first}, {StepRole::put, HaloTime::first},
    {StepRole::signal, HaloTime::first},       {StepRole::wait, HaloTime::by_stage}};
constexpr Fusion packing_puts[] = {{"packing puts", set_of({StepRole::pack, StepRole::put})}};

// A message of one field lands in its ghosts.
constexpr HaloMove as_messages[] = {{StepRole::pack, HaloTime::first},
                                    {StepRole::message, HaloTime::first},
                                    {StepRole::unpack, HaloTime::by_stage}};
constexpr Fusion messages_land[] = {{"messages land", set_of({StepRole::message, StepRole::unpack})}};

} // namespace

const HaloTransport halos_by_exposed_memory{
    {"remote-write",
     "stores of threads into memory of this host, messages to others",
     {.host_waits = true, .one_sided = true, .maps_memory = true},
     [](const std::shared_ptr<Gpu>&, Communicator& communicator) {
         return exposed_memory(communicator)->why_not();
     }},
    "packed straight into the ghosts of neighbours on this host, sent as messages to others",
    into_ghosts,
    packing_puts,
    &halos_by_messages_of_hosts,
    nullptr,
    "exposed memory",
    nullptr};

const HaloTransport halos_by_messages_of_hosts{
    {"messages",
     "messages",
     {.host_waits = true},
     [](const std::shared_ptr<Gpu>&, Communicator&) { return std::string(); }},
    "packed here, sent as messages",
    as_messages,
    messages_land,
    nullptr,
    nullptr,
    "messages",
    nullptr};

} // namespace jali
