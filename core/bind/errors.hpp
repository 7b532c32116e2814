// C++ exceptions become jali's Python exceptions. Other exceptions keep nanobind's own translation
// (std::invalid_argument: ValueError, std::runtime_error: RuntimeError).
#pragma once

#include <exception>

#include <nanobind/nanobind.h>

namespace jali {

// Raises the class `name` of the Python module `module` with the text of `error`.
inline void raise_python(const char* module, const char* name, const char* text) {
    const nanobind::object kind = nanobind::module_::import_(module).attr(name);
    PyErr_SetString(kind.ptr(), text);
}

// From now on a thrown `Error` (or something derived from it) arrives in Python as jali.errors.<name>.
template <class Error>
void translate_error(const char* name) {
    nanobind::register_exception_translator(
        [](const std::exception_ptr& pointer, void* payload) {
            try {
                std::rethrow_exception(pointer);
            } catch (const Error& error) {
                raise_python("jali.errors", static_cast<const char*>(payload), error.what());
            }
        },
        const_cast<char*>(name));
}

} // namespace jali
