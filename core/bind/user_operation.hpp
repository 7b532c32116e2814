// Functions of two arrays, given in Python, as what combines elements.
#pragma once

#include "schedule/element.hpp"

#include <memory>

#include <nanobind/nanobind.h>

namespace jali {

// Of elements of this type; null for None. PlanError for what is no function.
std::shared_ptr<const UserOperation> user_operation(const nanobind::object& function, DataType type);

} // namespace jali
