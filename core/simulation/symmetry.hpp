// Equivalent ranks of a plan on a machine: those that differ by a shift of digits.
//
// Ranks in equal groups of equal groups are numbers with digits, one per split. Shifting digits (each on its
// own, modulo its factor) turns an all-gather's plan into itself, ranks renamed, and a machine of equal parts
// as well. Transfers that such shifts map to each other begin and end together, so that one of them
// represents all. Digits whose shift is no symmetry, like those of tiles that share cards unevenly, are not
// shifted.
#pragma once

#include "composition/hierarchy.hpp"
#include "simulation/machine.hpp"

#include <optional>
#include <vector>

namespace jali {

class Symmetry {
  public:
    struct Digit {
        int below, factor; // rank / below % factor
        bool shifts = true;
    };
    Symmetry(int ranks, std::vector<Digit> digits);

    // The digits of `hierarchy` (and of a ring of so many nodes) and of the machine together, those shifting
    // that leave the machine as it is; none if groups are not equal, not in order, or not nested in nodes.
    static std::optional<Symmetry> of(const Hierarchy& hierarchy, int ring, const Machine& machine);
    // The digits of `hierarchy` alone, and of groups of these `sizes`, all shifting.
    static std::optional<Symmetry> of(const Hierarchy& hierarchy, int ring, std::vector<int> sizes = {});

    int ranks() const { return ranks_; }
    int order() const { return order_; } // how many shifts there are
    const std::vector<Digit>& digits() const { return digits_; }
    Symmetry without(int digit) const; // that digit does not shift any more

    // A shift is named by the rank that it makes of rank 0. Every rank is a representative, shifted.
    const std::vector<int>& representatives() const { return representatives_; }
    int shift_of(int rank) const { return shift_of_[rank]; }
    int representative(int rank) const { return rank - shift_of_[rank]; }
    int shifted(int rank, int by) const;
    int shifted_back(int rank, int by) const;
    std::vector<int> shifts() const;        // all
    std::vector<int> renamed(int by) const; // every rank, shifted

  private:
    int ranks_, order_ = 1;
    std::vector<Digit> digits_;
    std::vector<int> representatives_, shift_of_;
};

} // namespace jali
