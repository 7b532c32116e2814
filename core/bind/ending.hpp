// Objects that may wait, when they end, for ranks that are threads and want the interpreter.
#pragma once

#include <memory>
#include <utility>

#include <nanobind/nanobind.h>

namespace jali {

// The same object, which ends without the interpreter's lock whoever is the last to have it.
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
