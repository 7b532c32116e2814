// Entries of vendors for what Python names.
#pragma once

#include "device/vendor.hpp"

#include <string>

// Python knows the vendors; the core is told of one when it is first asked for.
const jali::GpuVendor& vendor_of(const std::string& name);
