// The interface of jali for C++ programs: #include <jali/jali.hpp>, and docs/cpp.md.
//
// A program makes a Communicator of its ranks (MPI processes, or threads of one process) and Collectives of
// it, which run a CollectiveCall on memory of the host or, by Collectives::on(gpu), on that of devices. A
// Composition is planned by plan_rank (with parameters that choose_for finds for a described Machine), proved
// by check_plan, and runs as a PersistentPlan, by DeviceCollectives::plan, or on either as a RunningPlan.
#pragma once

#include "composition/composition.hpp"
#include "composition/plan.hpp"
#include "device/gpu.hpp"
#include "device_transports/device_messages.hpp"
#include "messaging/communicator.hpp"
#include "messaging/rank_program.hpp"
#include "planning/choice.hpp"
#include "proof/checker.hpp"
#include "running/collectives.hpp"
#include "running/running_plan.hpp"
#include "settings/settings.hpp"
#include "settings/version.hpp"
