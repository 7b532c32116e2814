// For Fortran programs: memory by place (0: the host, 1: a device), and its contents.
#include "memory.hpp"

extern "C" void* new_array(int on_device, const int* contents, int count, int rank) {
    std::vector<unsigned char> bytes(static_cast<std::size_t>(count) * sizeof(int));
    std::memcpy(bytes.data(), contents, bytes.size());
    return new test::Buffer(on_device ? test::Driver::of(rank) : nullptr, bytes);
}
extern "C" void* address_of(void* array) {
    return static_cast<test::Buffer*>(array)->data();
}
extern "C" void contents_of(void* array, int* contents) {
    const std::vector<unsigned char> bytes = static_cast<test::Buffer*>(array)->contents();
    std::memcpy(contents, bytes.data(), bytes.size());
}
