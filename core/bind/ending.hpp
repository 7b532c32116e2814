// Objects whose destructors may wait for ranks that are threads and need the interpreter.
#pragma once

#include <memory>
#include <utility>

#include <nanobind/nanobind.h>

namespace jali {

// The same object, which is destroyed without the interpreter's lock by its last owner.
template <class T>
std::shared_ptr<T> ended_without_lock(std::shared_ptr<T> made) {
    T* const object = made.get();
    return {object, [made = std::move(made)](T*) mutable {
                if (!PyGILState_Check()) return made.reset();
                nanobind::gil_scoped_release released;
                made.reset();
            }};
}

} // namespace jali
