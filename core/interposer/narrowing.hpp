// Calls with 64-bit counts on MPI libraries that have only those with int: programs that look up the former
// at run time find them here.
#pragma once

#include "interposer/mpi_functions.hpp"

#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace jali::interposer {

struct NarrowingError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The arguments of one call; arrays live as long as this.
class Narrowed {
  public:
    explicit Narrowed(int length) : length_(length) {} // of arrays

    template <class Wanted, class Given>
    Wanted as(Given given) {
        if constexpr (std::is_same_v<Wanted, Given>) {
            return given;
        } else if constexpr (std::is_same_v<Wanted, int>) {
            return narrow(given);
        } else if constexpr (std::is_same_v<Wanted, int*>) { // one output number
            arrays_.push_back(std::make_unique<int[]>(1));
            arrays_.back()[0] = narrow(*given);
            back_.emplace_back(arrays_.back().get(), given);
            return arrays_.back().get();
        } else {
            static_assert(std::is_same_v<Wanted, const int*>);
            if (given == nullptr) return nullptr;
            arrays_.push_back(std::make_unique<int[]>(static_cast<std::size_t>(length_) + 1));
            for (int k = 0; k < length_; ++k) arrays_.back()[k] = narrow(given[k]);
            return arrays_.back().get();
        }
    }
    template <class... Wanted, class... Given>
    int call(int (*function)(Wanted...), Given... given) {
        if (function == nullptr) throw NarrowingError("the MPI library has no such function");
        const int code = function(as<Wanted>(given)...);
        for (const auto& [narrow, wide] : back_) *wide = *narrow;
        return code;
    }
    bool has_arrays() const { return !arrays_.empty(); }

  private:
    static int narrow(std::int64_t count) {
        if (count > std::numeric_limits<int>::max() || count < std::numeric_limits<int>::min())
            throw NarrowingError("a count of " + std::to_string(count) +
                                 ", but the MPI library has no functions with counts of 64 bits");
        return static_cast<int>(count);
    }

    int length_;
    std::vector<std::unique_ptr<int[]>> arrays_;
    std::vector<std::pair<const int*, std::int64_t*>> back_;
};

} // namespace jali::interposer
