// Python functions of two arrays as operations that combine elements.
#pragma once

#include "schedule/element.hpp"

#include <memory>

#include <nanobind/nanobind.h>

namespace jali {

// Of elements of this type; null for None. PlanError if it is no function.
std::shared_ptr<const UserOperation> user_operation(const nanobind::object& function, DataType type);

} // namespace jali
