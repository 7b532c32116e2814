// What a plan is given of a call of MPI on this rank: the call as jali has it, and its arguments, which are
// contiguous there.
#pragma once

#include "composition/standard.hpp"
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
// Null where jali has no such elements or operation. It stays until this thread translates another one.
const Translated* translated(const CollectiveCallWithHandles& call_with_handles, int ranks, int rank);

// This rank's part of a call, as the plan wants it: contiguous.
struct Part {
    const void* address; // the program's; null: there is none here
    const std::vector<Elements>* elements;
    std::size_t bytes; // what the plan reads or writes here

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

// Where the root's own part stands in what it has in place.
std::size_t own_offset(const CollectiveCall& call, int rank);

// The arguments in memory of the host, from their making until what was received is where it belongs.
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
