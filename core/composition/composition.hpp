// A collective as a composition of three primitives: multicast, reduction, fence.
//
// A composition is the same on all ranks. It names buffers (elements of one type; a buffer may have another
// size on each rank) and lists primitives over pieces of them. Primitives between two fences run in parallel
// and must not touch elements that another of them writes; a fence orders data, it is no barrier. `evaluate`
// defines the meaning of primitives, directly on the memory of all ranks; plans (plan.hpp) are checked
// against it.
#pragma once

#include "schedule/element.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace jali {

// An invalid composition, parameter or plan; the text names valid ones.
struct PlanError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// A set of ranks. Cheap to copy; sets of all ranks, of all but one and of one need no list (a list of such
// ranks is not kept, so that equal sets are of one kind).
class RankSet {
  public:
    static RankSet all(int ranks);
    static RankSet others(int ranks, int without); // of one rank: empty
    static RankSet one(int ranks, int rank);
    static RankSet list(int ranks,
                        std::vector<int> members); // sorted; throws PlanError: twice, outside, empty

    int ranks() const { return ranks_; } // of the group
    int size() const;
    bool contains(int rank) const;
    std::vector<int> members() const; // sorted
    bool operator==(const RankSet& other) const;

    enum class Kind : std::uint8_t { all, others, one, list };
    Kind kind() const { return kind_; }
    int which() const { return which_; } // the excluded or the only rank
    const std::shared_ptr<const std::vector<int>>& listed() const { return members_; }

  private:
    Kind kind_ = Kind::all;
    int ranks_ = 0, which_ = -1;
    std::shared_ptr<const std::vector<int>> members_;
};

// Elements `offset` to `offset + count` of a buffer, on a rank that the primitive names.
struct Piece {
    int buffer = 0;
    std::int64_t offset = 0;
};

// `count` elements. Multicast: `from` at the root goes to `to` at every member of `ranks` (the root may be
// one: then it copies to itself, or keeps what is there if `to` is `from`). Reduction: `from` at every member
// of `ranks` is combined into `to` at the root. One member and no combining: point to point.
struct Primitive {
    enum class Kind : std::uint8_t { multicast, reduction };
    Kind kind = Kind::multicast;
    int root = 0;
    RankSet ranks;
    Piece from, to;
    std::int64_t count = 0;
    int reduction = -1; // index into Composition::reductions
};

struct CompositionBuffer {
    std::string name;
    std::vector<std::int64_t> counts; // elements per rank; one number: the same on all
    bool input = true;                // holds data before the start
    std::int64_t count(int rank) const { return counts.size() == 1 ? counts[0] : counts[rank]; }
};

class Composition {
  public:
    Composition(int ranks, DataType type); // throws PlanError

    // Returns the number of the buffer. `counts` has one entry, or one per rank. A buffer that is no input is
    // undefined until a primitive writes it.
    int add_buffer(std::string name, std::vector<std::int64_t> counts, bool input = true);

    // Throw PlanError: a rank, buffer or piece that does not exist (at any rank it is used on), an operation
    // that the type does not have, a piece that at the root overlaps the other one without being it. An
    // average is divided by the number of sources. No primitive is added for no elements, no leaves, or a
    // multicast from a root to itself in place.
    void multicast(Piece from, Piece to, std::int64_t count, int root, RankSet leaves);
    void reduce(Piece from, Piece to, std::int64_t count, RankSet sources, int root, Operation operation,
                std::shared_ptr<const UserOperation> user = nullptr);
    void fence(); // of no effect where nothing was added since the last one

    int ranks() const { return ranks_; }
    DataType type() const { return type_; }
    const std::vector<CompositionBuffer>& buffers() const { return buffers_; }
    const std::vector<std::vector<Primitive>>& steps() const { return steps_; } // between fences
    const std::vector<Reduction>& reductions() const { return reductions_; }

    // Throws PlanError if two primitives of one step write the same elements, or one reads elements that
    // another writes, or an element is read that is no input and was not written in an earlier step.
    void check() const;

    // Runs the primitives one after the other on memory of this process: memory[rank][buffer]. Reductions go
    // through their sources in the order of ranks: the reference of all plans, and bit for bit the result of
    // reproducible ones.
    void evaluate(std::span<const std::vector<std::byte*>> memory) const;

    std::string describe() const;

  private:
    void add(Primitive primitive);

    int ranks_;
    DataType type_;
    std::vector<CompositionBuffer> buffers_;
    std::vector<std::vector<Primitive>> steps_;
    std::vector<Reduction> reductions_;
    bool fenced_ = true; // the next primitive begins a step
};

} // namespace jali
