"""Local work on arrays of devices, which graphs record as they do the calls of jali's own.

The libraries of arrays (CuPy, PyTorch) put their work on streams of theirs at once. While a graph is recorded it is put off: the graph
calls it when its operations are captured, on jali's stream. So such work must have all its memory before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from jali import graph_recorder
from jali.array_namespaces import ArrayNamespace, namespace_of
from jali.comm.device_of_array import gpu_of, is_on_device


def is_recorded(x: Any) -> bool:
    """Whether work on this array becomes part of a graph now."""
    return graph_recorder.recorders > 0 and graph_recorder.current() is not None and is_on_device(x)


def do(x: Any, work: Callable[[], Any]) -> None:
    """Does work where the array is, now or whenever the graph that is recorded repeats; then it may allocate nothing."""
    if not graph_recorder.recorders or not is_recorded(x):
        with namespace_of(x).where(x):
            work()
        return
    recorder, gpu = graph_recorder.current(), gpu_of(x)
    assert recorder is not None
    recorder.append(
        "work on an array", gpu, partial(_on_stream, namespace_of(x), x, gpu.stream, work), work, []
    )


def _on_stream(namespace: ArrayNamespace, x: Any, stream: int, work: Callable[[], Any]) -> None:
    with namespace.where(x), namespace.on_stream(x, stream):
        work()


def _set(to: Any, source: Any) -> None:
    to[...] = source


def _multiply(x: Any, factor: Any) -> None:
    x *= factor


def assign(to: Any, source: Any) -> None:
    """Writes values into an array."""
    do(to, partial(_set, to, source))


def multiply(x: Any, factor: Any) -> None:
    """In place, by a number or an array."""
    do(x, partial(_multiply, x, factor))


def copied(x: Any) -> Any:
    """A copy in C order."""
    namespace = namespace_of(x)
    return _new(namespace, x) if is_recorded(x) else namespace.copy(x)


def contiguous(x: Any) -> Any:
    """The array in C order; a copy only where it has to be."""
    namespace = namespace_of(x)
    if not is_recorded(x):
        return namespace.contiguous(x)
    expected = 1
    for n, stride in zip(reversed(x.shape), reversed(namespace.strides(x)), strict=True):
        if n > 1 and stride != expected:
            return _new(namespace, x)
        expected *= n
    return x


def converted(x: Any, dtype: Any) -> Any:
    """A copy of another type."""
    namespace = namespace_of(x)
    return _new(namespace, x, dtype) if is_recorded(x) else namespace.astype(x, dtype)


def _new(namespace: ArrayNamespace, x: Any, dtype: Any = None) -> Any:
    found = namespace.empty_beside(x, tuple(x.shape), dtype)
    assign(found, x)
    return found
