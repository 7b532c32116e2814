"""What stands beside a method: NAME_what does what NAME does, and more or with less work (`matvec_kept`, `matvec_inner`, `normal_inner`).

The rule, which stands here only: NAME_what holds for an object as long as nothing in front of the class that defines it, no class
derived from that one and not the object itself, redefines NAME or what NAME is made of. That is `_NAME`, and the names that
`made_of` declares. So who redefines one of these need not know what stands beside it, and who also redefines NAME_what answers for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def made_of(*names: str) -> Callable[[Method], Method]:
    """Declares what the method NAME is made of, by names of methods, for the one that stands beside it and that this decorates."""

    def declared(method: Method) -> Method:
        method.made_of = names  # type: ignore[attr-defined]
        return method

    return declared


def beside(owner: Any, name: str, what: str) -> Any:
    """The method NAME_what of an object; None where there is none, or where a redefinition has switched it off.

    A class that sets NAME_what to None switches it off, too. What `__getattr__` finds stands beside nothing.
    """
    other, layers = f"{name}_{what}", _layers(owner)
    at = next((k for k, layer in enumerate(layers) if other in layer), None)
    if at is None:
        return None
    parts = {name, f"_{name}"}
    for layer in layers[at:]:
        parts.update(getattr(layer.get(other), "made_of", ()))
    return None if _any_in(parts, layers[:at]) else getattr(owner, other)


def beside_method(method: Any, what: str) -> Any:
    """The same of a method that was looked up: None for what is no method that its object has by its own name."""
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if owner is None or getattr(owner, name, None) != method:
        return None
    return beside(owner, name, what)


def redefines(owner: Any, kind: type, *names: str) -> bool:
    """Whether an object of this class has others of these methods than the class: of itself or of a class in front."""
    kinds = type(owner).__mro__
    in_front = [getattr(owner, "__dict__", {}), *map(vars, kinds[: kinds.index(kind)])]
    return _any_in(names, in_front)


def _layers(owner: Any) -> list[Mapping[str, Any]]:
    """Where attributes of an object are looked up, in order."""
    kinds = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    return [getattr(owner, "__dict__", {}), *map(vars, kinds)]


def _any_in(names: Iterable[str], layers: Iterable[Mapping[str, Any]]) -> bool:
    return any(name in layer for layer in layers for name in names)
