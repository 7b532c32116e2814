// The differences between vendors' devices: an entry for each, plain data.
//
// A vendor is a file of core/device/vendors with a function that makes its entry, of which CMake makes a
// table; a program may add others. Nothing else in jali asks for a vendor by name.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace jali {

// A driver is missing, too old or reports an error; the text contains the driver's own.
struct GpuError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A library that is loaded when it is first needed.
struct VendorLibrary {
    std::string title;              // in messages: "NVIDIA's driver"; empty: the vendor has none
    std::vector<std::string> files; // the first that loads is taken
    std::string setting;            // the setting that names another file; may be empty
    std::string install;            // advice if none is found; may be empty
    // Where Python's packages have it: patterns below the folders of sys.path.
    std::vector<std::string> packages = {};

    // The one that the setting names; else `found`, or what was suggested, and `files` after it.
    std::vector<std::string> candidates(const std::string& found = "") const;
};

// Files that are tried before a library's usual ones, found in Python packages (jali.vendors).
void suggest_library(const VendorLibrary& library, std::vector<std::string> files);

// A run-time compiler with the interface of NVRTC.
struct VendorCompiler {
    VendorLibrary library;
    std::map<std::string, std::string> functions; // names, by the members of gpu_compiler.cpp
    // Contraction must be off: a fused multiply-add is written where it is meant.
    std::vector<std::string> options;
    std::string target;         // what stands before the architecture among the options
    bool bounds_blocks = false; // whether it takes the blocks of a multiprocessor as a bound on registers
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
    // Flags of the driver's function allocate_with for memory in which a running kernel sees writes of
    // others; 0: all memory of devices has this property.
    unsigned fine_grained = 0;

    // Of the driver's function peer_attribute: of the rank of a link's speed; behind it whether a device
    // reaches the other's memory, and whether atomic operations do, which they do by links of this name
    // alone.
    int peer_attributes = 1;
    std::string link;

    VendorCompiler compiler;

    VendorLibrary ccl;                                // of collectives, with NCCL's functions
    std::map<std::string, std::string> ccl_functions; // those that have other names than NCCL's

    // How MPI libraries say that they take memory of these devices.
    std::vector<std::string> mpi_queries; // functions that return 1
    int mpi_number = -1;                  // of MPIX_GPU_query_support
    std::string mpi_memory_kind;          // of MPI 4.1
    std::string mpi_setting;              // a variable of theirs that is "1"

    // How other libraries name such devices, and streams: those of Python's arrays.
    int dlpack = 0;                 // number of the kind in DLPack
    int default_stream = 0;         // handle of the stream that they use unless told otherwise
    std::vector<int> named_streams; // numbers up to 2 that DLPack lets takers name as streams

    std::string note; // what `jali info` adds; may be empty

    std::string version_text(int version) const; // "12.8"
};

// Throws std::invalid_argument where another entry has this name.
void add_vendor(GpuVendor vendor);

// In alphabetical order.
std::vector<std::string> vendor_names();

// Null where no entry has this name. Entries stay where they are.
const GpuVendor* find_vendor(const std::string& name);

// Throws std::invalid_argument that lists the names there are.
const GpuVendor& vendor_named(const std::string& name);

} // namespace jali
