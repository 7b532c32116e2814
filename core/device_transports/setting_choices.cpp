// What settings and rules may name: the entries of the tables above the settings.
#include "device/vendor.hpp"
#include "device_transports/message_transport.hpp"
#include "halo/policy.hpp"
#include "planning/algorithms.hpp"
#include "planning/rules.hpp"
#include "running/collective_transport.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace jali {

void detail::set_setting_choices() {
    std::vector<std::string> libraries;
    for (const std::string& vendor : vendor_names())
        if (const std::string& library = vendor_named(vendor).ccl.setting; !library.empty())
            libraries.push_back(library);
    std::vector<std::string> policies = halo_policy_names(libraries);
    policies.insert(policies.begin(), {"auto", "auto-graph"});

    std::vector<const Transport*> carriers, itself, messages;
    for (const CollectiveTransport* entry : collective_transports()) {
        if (entry->rules.carries != nullptr) carriers.push_back(entry);
        if (entry->rules.itself) itself.push_back(entry);
    }
    for (const MessageTransport* entry : message_transports())
        if (!entry->rules.to_oneself) messages.push_back(entry);
    const std::vector<std::string> carrying = names_of(carriers, libraries),
                                   having = names_of(itself, libraries);
    std::vector<std::string> collectives;
    for (const Algorithm& entry : algorithms())
        if (std::ranges::find(collectives, entry.name) == collectives.end())
            collectives.emplace_back(entry.name);
    for (const AlgorithmAlias& entry : algorithm_aliases())
        if (std::ranges::find(collectives, entry.name) == collectives.end())
            collectives.emplace_back(entry.name);
    collectives.insert(collectives.end(), having.begin(), having.end());
    collectives.emplace_back(by_mpi);

    set_device_kinds(vendor_names());
    set_names("halo_policy", policies);
    set_algorithm_names({{having.begin(), having.end()}, {carrying.begin(), carrying.end()}});
    set_algorithms(collectives, [](const std::string& spec, const std::string& collective) -> std::string {
        std::vector<Collective> of;
        if (!collective.empty()) of.push_back(collective_of(collective));
        try {
            read_algorithm(spec, of, algorithm_names());
        } catch (const CollectiveError& error) {
            return error.what();
        }
        return "";
    });
    set_rules_check([](const std::string& file) -> std::string {
        try {
            read_rules(file);
        } catch (const RulesError& error) {
            return error.what();
        }
        return "";
    });
    set_names("device_transport", carrying);
    set_names("message_transport", names_of(messages, libraries));
}

} // namespace jali
