// The input of a plan for an MPI call on this rank: jali's form of the call, and its contiguous arguments.
#pragma once

#include "composition/standard_collectives.hpp"
#include "interposer/service.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace jali::interposer {

// Of the largest buffer.
std::int64_t bytes_of(const CollectiveCallWithHandles& call_with_handles, int ranks);

// The call as jali has it.
struct Translated {
    CollectiveCall call;
    std::vector<std::size_t> bytes; // of each of this rank's buffers
};
// Null where jali has no such elements or operation. Valid until this thread translates another call.
const Translated* translated(const CollectiveCallWithHandles& call_with_handles, int ranks, int rank);

// This rank's part of a call, contiguous as the plan requires.
struct Part {
    const void* address; // the program's; null: there is none here
    const std::vector<Elements>* elements;
    std::size_t bytes; // that the plan reads or writes here

    bool is_dense() const; // it is so in memory already
};

// The buffers of a call on this rank: "data" in place, else "send" and "recv".
struct Parts {
    Part send{nullptr, nullptr, 0}, receive{nullptr, nullptr, 0};
    bool one = false; // both are one buffer
};
Parts parts_of(const Translated& translated, const CollectiveCallWithHandles& call_with_handles,
               const void* send, const void* receive, const std::vector<Elements>& sent,
               const std::vector<Elements>& received);

// The offset of the root's own part in its in-place buffer.
std::size_t own_offset(const CollectiveCall& call, int rank);

// The arguments in memory of the host, until received data are copied to their destination.
class OnHost {
  public:
    // `devices`: some of them may be on one.
    OnHost(const Translated& translated, const CollectiveCallWithHandles& call_with_handles,
           const Parts& parts, int rank, bool devices);
    std::span<std::byte* const> buffers() const { return std::span(buffers_).first(parts_.one ? 1 : 2); }
    void finish();

  private:
    struct Held {
        std::vector<std::byte> bytes;
        void* host = nullptr; // where the elements are, on the host
        bool packed = false;
    };
    std::byte* read(const Part& part, Held& held);
    std::byte* write(const Part& part, Held& held, bool both);
    void* given(const Part& part, Use use);

    Parts parts_;
    bool devices_;
    Staging staging_;
    Held send_, receive_;
    std::vector<std::byte> own_;
    std::array<std::byte*, 2> buffers_{};
};

} // namespace jali::interposer
