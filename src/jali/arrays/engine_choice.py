"""On which device a rank's new arrays are, and of which library."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from jali import comm
from jali.array_namespaces import NAMESPACES, namespace_by_name
from jali.devices import parse_device
from jali.errors import DeviceError, ParameterError
from jali.files import value_shown


def choose_engine(device: str, engine: str | None) -> str:
    """The library of arrays on a device ("cpu", "cuda", "cuda:1"): the requested one, else NumPy, or CuPy and then PyTorch.

    Raises ParameterError for libraries without arrays there, DeviceError for unknown devices.
    """
    kind, _ = parse_device(device)
    if engine is not None:
        namespace_by_name(engine)
        if (engine in ("numpy", "jax", "jali")) > (kind == "cpu") or (engine == "cupy") > (kind == "cuda"):
            raise ParameterError(
                f"engine {value_shown(engine)} has no arrays on the device {value_shown(device)}"
            )
        return engine
    if kind == "cpu":
        return "numpy"
    for name in ("cupy", "torch") if kind == "cuda" else ("torch",):
        if importlib.util.find_spec(name) is not None:
            return name
    raise ParameterError(
        f"arrays on the device {value_shown(device)} need CuPy or PyTorch, of which none is installed"
    )


@contextmanager
def on_device(device: str, engine: str) -> Iterator[None]:
    """New arrays of the library `engine` are on this rank's device inside of the block: the next one of each host in turn for a name
    such as "cuda", a certain one for "cuda:1". Collective.

    Raises DeviceError where the library sees no device.
    """
    kind, number = parse_device(device)
    if kind == "cpu" or engine == "numpy":
        yield
        return
    xp = NAMESPACES[engine].xp
    count = xp.cuda.runtime.getDeviceCount() if engine == "cupy" else xp.cuda.device_count()
    if count == 0 or (number is not None and number >= count):
        raise DeviceError(
            f"{engine} sees {count} devices here, and the device asked for is {value_shown(device)}"
        )
    ordinal = comm.current().rank_on_host % count if number is None else number
    if engine == "cupy":
        with xp.cuda.Device(ordinal):
            yield
    else:
        xp.cuda.set_device(ordinal)  # PyTorch calls devices of AMD cuda as well
        with xp.device("cuda", ordinal):
            yield
