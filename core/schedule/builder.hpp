// Makes a schedule out of steps given in an order in which they could run one after the other.
//
// The order defines the meaning; the graph contains the dependencies: a step depends on earlier steps that
// wrote the memory it reads, or used the memory it writes. Temporary memory is requested without an address
// and allocated in one buffer, "scratch": side by side while the limit allows, else in freed places (which
// makes later steps depend on earlier ones, never the reverse).
#pragma once

#include "schedule/schedule.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace jali {

// The scratch does not suffice; `needed` bytes would.
struct ScratchError : std::runtime_error {
    ScratchError(const std::string& text, std::size_t needed) : std::runtime_error(text), needed(needed) {}
    std::size_t needed;
};

class ScheduleBuilder {
  public:
    using Action = decltype(Step::action);
    static constexpr bool named = true; // steps have names

    int add_buffer(std::string name, std::size_t bytes, bool holds_data);

    // A number to be used as Region::buffer until finish(); negative.
    int add_temporary(std::size_t bytes);

    int add(std::string name, Action action, Mark mark = {}); // one part; no kernels with several

    // This step must also run after that one.
    void add_need(int step, int earlier) { extra_needs_.push_back({step, earlier}); }

    // Throws ScratchError.
    Schedule finish(std::size_t scratch_limit);

    static constexpr std::size_t alignment = 64; // of temporaries

  private:
    struct Draft {
        std::string name;
        Action action;
        Mark mark;
    };

    std::vector<std::size_t> allocate_temporaries(std::size_t limit, std::size_t& total) const;

    std::vector<Buffer> buffers_;
    std::vector<std::size_t> temporaries_;
    std::vector<Draft> steps_;
    std::vector<std::pair<int, int>> extra_needs_; // by step
};

} // namespace jali
