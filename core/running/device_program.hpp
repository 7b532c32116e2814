// One rank's schedule as a program that a single launch on a device runs to its end.
//
// All steps of a schedule become one kind of instruction: combine sources into a target. A source is a region
// of this rank's buffers or a received message; the target is a region or a sent message. So a copy is an
// instruction with one source, a send one whose target is a message, and a receive that only feeds a
// reduction is no instruction at all: the reduction reads the message where it arrived.
//
// Blocks of threads are *channels*. Every region of a plan is cut in the same way into iterations x channels
// slices, and channel b of one rank exchanges messages with channel b of the others alone, in order, through
// a queue of slots for each pair of ranks. Therefore channels never wait for each other, any number of them
// does the work, and no grid-wide agreement is needed. It is possible because dependent regions of a plan are
// equal or disjoint; where a composition of the user overlaps regions in part, PlanError says so.
//
// Instructions run in the global order of the plan (see plan.hpp), sends of a stage first. A rank can wait
// for messages of earlier places in that order only, or for room in a queue, which earlier places make: no
// program can deadlock.
#pragma once

#include "composition/composition.hpp"
#include "schedule/schedule.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace jali {

// How messages of a program travel.
enum class Wire : std::uint8_t {
    flagged, // every 4 bytes with the number of their message: no fence, twice the bytes
    slotted, // as they are; a word says that the slot is full
};

struct DeviceQueues { // of slots between two ranks and one channel; the same on all ranks
    std::int64_t slot_bytes = 0, slots = 0;
};

// Layouts that the kernel of src/jali/codegen/prelude/collective.hpp shares.
struct DeviceOperand {
    std::int64_t offset; // in its buffer
    std::int32_t where;  // buffer, or ~peer for a message
    std::int32_t packet; // number of the message in an iteration, among those from or to that peer
};
struct DeviceAction {
    enum Kind : std::int32_t {
        announce,
        free
    }; // a message is in its slot; messages up to this one were read
    std::int32_t kind, peer, packet;
    std::int32_t ahead = 0; // 1: the message of the next iteration
};
struct DeviceWait {
    enum Kind : std::int32_t { arrival, room }; // of a message; in the queue for it
    std::int32_t kind, peer, packet, unused = 0;
};
struct DeviceInstruction {
    DeviceOperand to;
    std::int64_t bytes, chunk; // of the regions, of a slice
    std::int32_t first_source, sources;
    std::int32_t first_action, actions; // done by single threads, after all have met
    std::int32_t first_wait, waits;     // likewise, and then all meet again
    std::int32_t meets, divide_by;
    // A round: instructions one after the other of which none needs what another makes are done side by side
    // by warps of a block, if messages are flagged. How many, in the first of them.
    std::int64_t together;
};

struct DeviceProgram {
    int ranks = 0, rank = 0, channels = 1;
    std::int64_t iterations = 1;
    Wire wire = Wire::slotted;
    bool combines = false; // has sources to combine; else it only moves
    Reduction how;         // if so
    std::vector<DeviceInstruction> instructions;
    std::vector<DeviceOperand> sources;
    std::vector<DeviceAction> actions; // of instructions, then those at the end of every iteration
    std::vector<DeviceWait> waits;
    std::int64_t first_last_action = 0; // of the end
    // Leading instructions that send data without dependencies: an iteration ahead of the others, if the
    // queues have room.
    std::int64_t leads = 0;
    std::vector<std::int32_t> sent, received; // messages per iteration, to and from each rank

    std::string describe() const; // one line per instruction; "then" between rounds
};

// Measured on H200: channels fill the device, larger slots hide more of the fences, small messages go faster
// in many small channels.
struct DeviceProgramParameters {
    int most_channels = 128;              // blocks of threads
    std::int64_t bytes_per_channel = 512; // at least, before there are more channels
    DeviceQueues flagged{4096, 16}, slotted{131072, 4};
    // Bytes of a piece up to which messages are flagged, in plans that only move and in those that combine.
    std::int64_t flagged_below = 256 << 10, flagged_below_combining = 256 << 10;
};

struct StageMessage {
    Region region;
    int peer = 0;
    bool sends = false;
};
struct TransportMessages {
    int transport = 0;
    std::vector<StageMessage> messages;
};
// A stage on the device's stream: messages that transports other than the kernel carry, all of a transport at
// once, then a program. A plan whose messages the kernel alone carries is one stage; a plan with other
// messages has a stage for each of its stages, on all ranks, so that no rank can wait for a later stage of
// another.
struct DeviceStage {
    std::vector<TransportMessages> messages; // transports go up
    DeviceProgram program;

    // Whether the program may run beside the messages: it touches no received region, writes no sent region,
    // and has no messages of its own.
    bool apart() const;
};

// Properties of the planned composition that are the same on all ranks: bytes of the longest piece, and
// whether elements are combined on any rank.
struct Pieces {
    std::int64_t longest = 0;
    bool combined = false;
};
Pieces pieces_of(const Composition& composition);

// `pieces` are those of the composition that the schedule was planned from. The schedule must be planned with
// one chunk and with pieces that travel alone (depth 1, pack_below 0). `transports` has the number of a
// transport for each library of the schedule, or that the kernel carries its messages. Throws PlanError.
inline constexpr int by_kernel = -1;
std::vector<DeviceStage> compile_for_device(const Schedule& schedule, int ranks, int rank,
                                            const Pieces& pieces, const DeviceProgramParameters& parameters,
                                            std::span<const int> transports);

} // namespace jali
