// The choice of an algorithm for a collective without a named one: rules, which are entries of a file
// (rules.toml), and their facts.
//
// All facts are equal on all ranks, and so are the rules (their digest is compared), so ranks make the same
// choice without messages. Impossible algorithms are skipped with the reason; the choice names its rule.
#pragma once

#include "composition/standard_collectives.hpp"
#include "planning/mpi_collectives.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace jali {

struct RulesError : std::runtime_error { // names file, line and key
    using std::runtime_error::runtime_error;
};

using LibraryVersions = std::map<std::string, std::string, std::less<>>;

// The facts of a call that a rule may test.
struct CollectiveFacts {
    Collective collective = Collective::all_reduce;
    DataType type = DataType::fp64;
    Operation operation = Operation::sum; // of those that combine
    std::string memory = "host";          // or the kind of the devices
    std::int64_t bytes = 0;               // of the largest buffer
    // Of the whole vector; or of a rank's chunk, or the message to one, and of all where they differ.
    std::int64_t elements = 0;
    int ranks = 1, hosts = 1, ranks_per_host = 1; // of the host with the most
    bool in_place = false, reproducible = false, even = true;
    bool mpi_program = false; // that calls MPI, and jali is between them
    bool persistent = false;  // arrays are fixed: it is part of a graph
    // Of libraries ("mpich", "nccl") that all ranks have in the same version ("2.28.3"). Those of the
    // devices' vendor if a rule tests it.
    LibraryVersions versions;

    bool on_devices() const { return memory != "host"; }
};
CollectiveFacts facts_of(const CollectiveCall& call, std::span<const int> ranks_of_hosts,
                         LibraryVersions versions = {}, bool mpi_program = false);

// An algorithm and the carrier of its messages (empty: the usual one), or a library with collectives of its
// own. An algorithm inside hosts and between them uses `transport` inside, and `between` (empty: the same)
// between.
struct AlgorithmSpec {
    std::string name, transport, between;
    bool one_host = false;    // only where all ranks are on one
    std::string written = {}; // if written with another name

    bool operator==(const AlgorithmSpec&) const = default;
};
// As it is written: "ring", "ring by nccl", "two_level by shm and mpi".
std::string text_of(const AlgorithmSpec& spec);

struct CollectiveChoice {
    AlgorithmSpec spec;
    std::string why; // the rule, and skipped algorithms
};

// An algorithm of a rule that holds for a call.
struct MatchedRule {
    AlgorithmSpec spec;
    std::string file, reason; // of the rule
    int line = 0;
    std::vector<std::string> conditions; // of the rule, as its file has them
};

// Names that a spec may have, besides those of algorithms: libraries with collectives, and carriers of
// messages between devices and in memory of hosts.
struct AlgorithmNames {
    std::set<std::string, std::less<>> itself, transports;
    std::set<std::string, std::less<>> of_hosts = {"mpi", "shm", "thread"};
    std::set<std::string, std::less<>> itself_on_hosts = {std::string(by_mpi)};
};

// Reads a written spec for these collectives (none: for any). Throws CollectiveError with the error and the
// possible names.
AlgorithmSpec read_algorithm(std::string_view text, std::span<const Collective> collectives,
                             const AlgorithmNames& names);

// The spec for this collective, with other names (algorithm_aliases) replaced. None: it has no such
// algorithm.
std::optional<AlgorithmSpec> spec_for(const AlgorithmSpec& spec, Collective collective, bool on_devices,
                                      const AlgorithmNames& names);

// Why an algorithm does not apply to ranks that are spread over hosts so; empty if it does.
std::string why_not_between(const AlgorithmSpec& spec, Collective collective,
                            std::span<const int> ranks_of_hosts);

class ChoiceRules {
  public:
    // Those of a file's text in front of others. Throws RulesError.
    ChoiceRules(std::string_view text, const std::string& file, const AlgorithmNames& names);

    // The first possible algorithm of the first rule that holds. `why_not(algorithm)`: empty where it is
    // possible. Throws RulesError if there is none.
    using WhyNot = std::function<std::string(const AlgorithmSpec& spec)>;
    CollectiveChoice choose(const CollectiveFacts& facts, const WhyNot& why_not) const;

    // All algorithms of the rules that hold, in the order in which they are tried; those of other collectives
    // are left out.
    std::vector<MatchedRule> specs(const CollectiveFacts& facts) const;

    // Appends those of another file, which come after these.
    void append(const ChoiceRules& others);
    const std::string& digest() const { return digest_; } // equal for equal rules
    std::size_t size() const { return rules_.size(); }
    bool ask_for_devices_library() const {
        return ask_for_devices_library_;
    } // whether any rule tests its version

  private:
    struct Condition {
        std::string text; // as the file has it
        std::function<bool(const CollectiveFacts&)> holds;
    };
    struct Rule {
        std::string file, reason;
        int line;
        std::vector<Condition> conditions;
        std::vector<AlgorithmSpec> specs;
    };
    // Calls `visit` with each of them until that returns true.
    void for_each_spec(const CollectiveFacts& facts,
                       const std::function<bool(const Rule& rule, const AlgorithmSpec& spec)>& visit) const;
    std::vector<Rule> rules_;
    AlgorithmNames names_;
    std::string digest_;
    bool ask_for_devices_library_ = false;

    friend class RulesReader;
};

// Set once, before the first use of rules: the possible names, of all vendors.
void set_algorithm_names(AlgorithmNames names);
const AlgorithmNames& algorithm_names();

// Names of the algorithms that a collective has on the host, or on devices, of all vendors.
std::vector<std::string> names_of_algorithms(Collective collective, bool on_devices);

// The algorithm that the call names, else the setting. No name: neither does, or the setting names one for
// the host only, or for devices only, and the call is on the other. Throws CollectiveError that lists the
// algorithms there are.
CollectiveChoice requested_algorithm(const CollectiveCall& call, bool on_devices);

// The algorithms of ranks for calls in the host's memory.
struct HostAlgorithms {
    std::vector<std::string> transports; // of messages (none: any named one)
    LibraryVersions versions = {};
    bool mpi_program = false; // that calls MPI, and jali is between them
    // Why the MPI library's own collectives are not possible, whatever the call; empty where they are.
    std::string why_not_mpi = "the ranks are not MPI's";
    bool hands_over = false; // the caller can pass any call to MPI unchanged
};

// The algorithm of a call in the host's memory: the requested one, else by the rules. Throws CollectiveError,
// RulesError.
CollectiveChoice choose_on_host(const CollectiveCall& call, std::span<const int> ranks_of_hosts,
                                const HostAlgorithms& have = {});

// Those of a file, by the names of algorithms that there are (set_algorithm_names). Throws RulesError, also
// where it cannot be read.
ChoiceRules read_rules(const std::string& file);

// The rules in use: those of the file that the settings name, if they do, then those that come with jali.
// Read at the first call, and when the settings name another file. Throws RulesError, also where the file
// cannot be read.
std::shared_ptr<const ChoiceRules> collective_rules();

// The text of rules.toml.
std::string_view shipped_rules();

} // namespace jali
