// What calls are recorded of a collective on a device, and what shall come out.
//
// What the kernel does stands in what it is given: its arguments, its table and the numbers of messages in
// device memory. From the plan come the variant that the kernel was compiled for and where memory ends; from
// the composition comes what every byte of the buffers is in the end.
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

    // What `composition` says of the buffers of a rank.
    void expect(const Composition& composition, bool reproducible, int rank);

    std::unique_ptr<KernelFamily> family(CallDecoder& decoder,
                                         std::span<const DriverCall> calls) const override;

    void* kernel = nullptr;
    Wire wire = Wire::slotted; // what the kernel was compiled for, and how it combines, if it does
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
