// The recorded calls of a collective on a device, and the required result.
//
// The kernel's input defines its work: its arguments, its table and the numbers of messages in device memory.
// The plan supplies the kernel's compiled variant and the ends of memory; the composition supplies the final
// value of every byte of the buffers.
#pragma once

#include "composition/composition.hpp"
#include "running/device_program.hpp"
#include "schedule/recorded_calls.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace jali {

struct RecordedPlan : RecordedSubject {
    struct Buffer {
        GpuAddress address = 0;
        std::uint64_t bytes = 0;
    };
    struct Result { // bytes of a buffer of the user, which are `value` from byte `shift` on
        int buffer = 0;
        std::uint64_t begin = 0, end = 0;
        std::int32_t value = 0;
        std::int64_t shift = 0;
    };

    // Records the contents of a rank's buffers by `composition`.
    void expect(const Composition& composition, bool reproducible, int rank);

    std::unique_ptr<KernelFamily> family(CallDecoder& decoder,
                                         std::span<const DriverCall> calls) const override;

    void* kernel = nullptr;
    Wire wire = Wire::slotted; // the kernel's compiled variant, and its reduction, if any
    bool combines = false;
    CombiningOperation how{};
    std::int64_t warp = 1;         // threads
    std::uint64_t queue_bytes = 0; // of the memory of every rank
    // By channel: one that begins like it on all ranks. And those of which events are made.
    std::vector<int> stands_for, checked;
    std::vector<Buffer> buffers; // of the user, in the order of the composition, then the plan's own
    int user_buffers = 0;
    std::vector<CombiningOperation> operations;
    std::vector<Value> values; // of labels that name a buffer, whatever the run
    std::vector<Result> results;
};

} // namespace jali
