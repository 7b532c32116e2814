// The Python module of libjali: one function per layer, each in its own file of this folder.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_settings(nb::module_& m);
void bind_device(nb::module_& m);
void bind_gpu(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_timeline(nb::module_& m);
void bind_transport(nb::module_& m);
void bind_custom_transport(nb::module_& m);
void bind_ccl(nb::module_& m);
void bind_gpu_array(nb::module_& m);
void bind_recorded_calls(nb::module_& m);
void bind_device_collectives(nb::module_& m);
void bind_rules(nb::module_& m);
void bind_collectives(nb::module_& m);
void bind_collective_methods(nb::module_& m);
void bind_device_messages(nb::module_& m);
void bind_device_request(nb::module_& m);
void bind_device_array(nb::module_& m);
void bind_halo(nb::module_& m);
void bind_host_vectors(nb::module_& m);
void bind_schedule(nb::module_& m);
void bind_collective(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_persistent(nb::module_& m);
void bind_running_plan(nb::module_& m);
void bind_checker(nb::module_& m);
void bind_simulator(nb::module_& m);
void bind_choice(nb::module_& m);
void bind_guard_check(nb::module_& m);
void bind_call_observer(nb::module_& m);

NB_MODULE(_core, m) {
    // Objects that a program keeps until its end are no leak of ours.
    nb::set_leak_warnings(false);
    m.doc() = "jali's core: memory, ranks, halos and schedules";
    bind_settings(m);
    bind_device(m);
    bind_gpu(m);
    bind_kernels(m);
    bind_timeline(m);
    bind_transport(m);
    bind_custom_transport(m);
    bind_ccl(m);
    bind_gpu_array(m);
    bind_recorded_calls(m);
    bind_rules(m);
    bind_device_collectives(m);
    bind_device_messages(m);
    bind_device_request(m);
    bind_device_array(m);
    bind_halo(m);
    bind_host_vectors(m);
    bind_schedule(m);
    bind_collective(m);
    bind_plan(m);
    bind_persistent(m);
    bind_collectives(m);
    bind_running_plan(m);
    bind_collective_methods(m);
    bind_checker(m);
    bind_simulator(m);
    bind_choice(m);
    bind_guard_check(m);
    bind_call_observer(m);
}
