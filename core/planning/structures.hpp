// The candidates of a search for a plan: structures (form, hierarchy, stripe, ring) made from the levels of a
// machine, and the libraries that carry messages at each.
//
// Nodes are split in one or in several steps; the inside of a node by its levels, in one step, or in halves.
// Nothing here knows any machine by name.
#pragma once

#include "planning/form_parameters.hpp"
#include "simulation/machine.hpp"

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace jali {

// Prime factors, largest first.
std::vector<int> prime_factors(int n);
// Algorithms to split n nodes: at once, by prime factors, and in two near-equal steps.
std::vector<std::vector<int>> factorings(int n);

// Structures of one kind differ only in the number of nodes.
struct StructureKind {
    enum class Between : std::uint8_t { flat, at_once, primes, two_steps }; // how nodes are split

    Form form = Form::single;
    Between between = Between::flat;
    bool ring = false;
    int inside = 0; // number of the way in which a node is split
    int stripe = 1;

    bool operator==(const StructureKind&) const = default;
    bool same_between_nodes(const StructureKind& other) const {
        return form == other.form && between == other.between && ring == other.ring;
    }
};

struct Structure {
    StructureKind kind;
    FormParameters parameters; // depth 1, and at each level the best library
};

// The first `ranks` of a machine, which must outlive this.
class Structures {
  public:
    Structures(const Machine& machine, int ranks);

    int full_nodes() const { return full_nodes_; }
    int rest() const { return rest_; } // ranks on a node that is not full

    std::vector<Structure> of(std::span<const Form> forms) const;

    // The machine's level that messages of each split cross. Hierarchy and number of libraries are those of a
    // structure.
    const std::vector<int>& crossed(const FormParameters& parameters) const;

    // Libraries that work at a level, in the machine's order.
    std::vector<std::string> libraries_at(int level) const;
    // The best library at a level, or the `nth` best, for messages of middling size; "" if there are not
    // so many.
    std::string best_library(int level, int nth = 0) const;

    // Per rank its share of its NIC in GB/s; none if all have the same.
    std::vector<double> stripe_weights() const;

  private:
    struct Nested { // a hierarchy
        std::vector<std::vector<int>> sizes;
        std::vector<int> crossed; // the last split into single ranks included
        StructureKind::Between between;
        int inside;
    };
    using Splits = std::vector<std::pair<int, int>>; // (factor, level of the machine), from outside in

    int outermost_inside() const; // level; 0: one rank per node
    std::vector<Splits> inside_splits() const;
    void add(Nested nested); // unless it is there
    void add_nested(const std::vector<int>& between, const Splits& inside, int number);

    const Machine& machine_;
    int ranks_, full_nodes_, rest_;
    std::vector<Nested> hierarchies_;
};

} // namespace jali
