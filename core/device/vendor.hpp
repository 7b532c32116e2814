// What tells one vendor's devices from another's: a row for each, plain data.
//
// Rows are made by who knows where files and packages lie (src/jali/vendors has a file for each; a C++
// program makes its own) and given to the core once. Nothing in the core asks for a vendor by name.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace jali {

// A driver that is missing, too old or says no; the text holds the driver's own words.
struct GpuError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A library that is loaded when it is first needed.
struct VendorLibrary {
    std::string title;              // in messages: "NVIDIA's driver"; empty: the vendor has none
    std::vector<std::string> files; // the first that loads is taken
    std::string setting;            // the setting that names another file; may be empty
    std::string install;            // what to do where none is found; may be empty

    std::vector<std::string> candidates() const; // `files`, or the one that the setting names
};

struct GpuVendor {
    std::string name;     // of its devices: "cuda"
    std::string platform; // in messages: "CUDA"

    VendorLibrary driver;
    // Names of the functions of gpu_api.hpp and numbers of the attributes, by member.
    std::map<std::string, std::string> functions;
    std::map<std::string, int> attributes;
    // A version v of the driver is v / major_unit, v % major_unit / minor_unit.
    int major_unit = 1000, minor_unit = 10;
    int oldest = 0;           // version of the driver that will do
    std::string architecture; // what stands before the number in the compiler's names; empty: the compiler
                              // asks the device
    int descriptors_by_value = 0; // since this version a descriptor of memory is given, before its address
    // Of the driver's function allocate_with, for memory that a kernel sees others write while it runs; 0:
    // all memory of devices is so.
    unsigned fine_grained = 0;

    VendorLibrary ccl;                                // of collectives, with NCCL's functions
    std::map<std::string, std::string> ccl_functions; // those that have other names than NCCL's

    // How MPI libraries say that they take memory of these devices.
    std::vector<std::string> mpi_queries; // functions that return 1
    int mpi_number = -1;                  // of MPIX_GPU_query_support
    std::string mpi_memory_kind;          // of MPI 4.1
    std::string mpi_setting;              // a variable of theirs that is "1"

    std::string version_text(int version) const; // "12.8"
};

// Throws std::invalid_argument where another row has this name.
void add_vendor(GpuVendor vendor);

// Null where no row has this name. Rows stay where they are.
const GpuVendor* find_vendor(const std::string& name);

// Throws std::invalid_argument that lists the names there are.
const GpuVendor& vendor_named(const std::string& name);

} // namespace jali
