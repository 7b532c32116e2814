// Entries of vendors by their names in Python.
#pragma once

#include "device/vendor.hpp"

#include <string>

// Python defines the vendors; the core gets an entry at its first use.
const jali::GpuVendor& vendor_of(const std::string& name);
