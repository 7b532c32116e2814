// Functions that the bindings of collectives share.
#pragma once

#include "bind/gpu_array.hpp"
#include "running/collectives.hpp"

#include <memory>
#include <span>

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

namespace jali {

// The collectives on a device, given as Python has it. Collective where it is the first call for it.
std::shared_ptr<DeviceCollectives> collectives_on(Collectives& there, const nanobind::object& gpu);

// The addresses of arrays, one per buffer of the user, null where this rank has no bytes of it; as many as
// there are arrays, up to the most that a plan has. Raises ParameterError for those of other sizes.
void fit_on_device(const DevicePlan& plan, std::span<const GpuArray* const> arrays, GpuAddress* addresses);

nanobind::dict dict_of(const CacheCounts& counts);

} // namespace jali
