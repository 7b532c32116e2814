// Steps of a schedule that are put on a stream together, and fusions: rules by which several such batches
// become one launch.
//
// Data only: a StreamProgram (device/stream_program) is made of them, explain() and the simulator read them.
#pragma once

#include "schedule/schedule.hpp"
#include "schedule/step_role.hpp"

#include <string>
#include <vector>

namespace jali {

struct Batch {
    std::vector<StepRole> roles; // in this order; several: fused; none: left out
    int stage = -1;              // of the schedule's subject; -1: all stages
    int stream = 0;              // 0: the device's own
    std::vector<int> needs;      // earlier batches, also the one before it on its stream
    std::vector<Port> parts;     // of the schedule
    bool has(StepRole role) const { return has_any(set_of({role})); }
    bool has_any(StepRoles set) const;
    // Calls f(step) for its steps of this role, in order.
    template <class F>
    void for_each(const Schedule& schedule, StepRole role, F f) const {
        for (const Port& port : parts)
            if (const Step& step = schedule.steps()[port.step]; step.mark.role == role) f(step);
    }
};

// A rule: batches that have any of these roles become one launch, stage by stage, if no other batch must come
// between them.
struct Fusion {
    const char* words;
    StepRoles together;
    StepRoles not_with = 0;            // batches that have one of these stay as they are
    bool if_only_stage = false;        // they are of all stages at once
    bool if_nobody_else_waits = false; // else users of one of them would wait for all
    bool has(StepRole role) const { return (together & set_of({role})) != 0; }
    bool has(StepRole first, StepRole second) const { return has(first) && has(second); }
    bool in_kernel() const { // blocks of the kernel that computes do it
        return (together & set_of({StepRole::bulk, StepRole::boundary})) != 0;
    }
    bool reads_what_arrives() const { // memory is read by the launch that waits for it
        return (together & set_of({StepRole::boundary})) != 0;
    }
};

// The batches of one stage.
void fuse(std::vector<Batch>& batches, const Fusion& rule, int stage);

// "pack + await credit + put + signal", with its stage.
std::string words_of(const Batch& batch);

} // namespace jali
