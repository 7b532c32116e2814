// How the checker speaks: steps, places and contents in words, for its errors.
#pragma once

#include "collective/checker.hpp"
#include "schedule/symbolic.hpp"

#include <span>
#include <string>

namespace jali {

// The schedules of all ranks, the composition that they are held against, and names for what is in them.
class PlanWords {
  public:
    PlanWords(const Composition& composition, std::span<const Schedule* const> of_ranks,
              const CheckOptions& options)
        : composition_(composition), of_ranks_(of_ranks), options_(options),
          ranks_(static_cast<int>(of_ranks.size())), size_(size_of(composition.type())),
          buffers_(static_cast<int>(composition.buffers().size())) {}

  protected:
    const Step& step(int rank, int s) const { return of_ranks_[rank]->steps()[s]; }

    std::string say_step(int rank, int s) const;
    std::string say_buffer(int buffer) const;
    std::string say_range(std::size_t begin, std::size_t end) const; // elements, or bytes where they are cut
    std::string say_place(int buffer, std::size_t begin, std::size_t end) const;

    // What byte `position` of a range with this content is.
    std::string say_content(const symbolic::Content& content, std::int64_t position) const;

    // What of `expected` is not in `found`, and the other way round, term by term.
    std::string say_difference(const symbolic::Content& expected, const symbolic::Content& found,
                               std::int64_t position) const;

    // Throws CheckError; s == -1: no step in particular.
    [[noreturn]] void fail(Fault kind, int rank, int s, const std::string& what) const;

    const Composition& composition_;
    const std::span<const Schedule* const> of_ranks_;
    const CheckOptions& options_;
    const int ranks_;
    const std::size_t size_; // of an element
    const int buffers_;      // of the composition; scratch is one more
    symbolic::Symbols symbols_;

  private:
    std::string say_term(const symbolic::Term& term, std::int64_t position) const;
};

} // namespace jali
