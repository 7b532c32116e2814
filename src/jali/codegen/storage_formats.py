"""Storage formats: how the value of a site is kept in memory. Adding one is one `Format` given to `add_format`.

A format has two steps. `packing` (`packings.py`) omits numbers that follow from the others (the third row of an SU(3) matrix);
the rest defines how numbers become units of memory: `scalar` is the C type of IEEE numbers that are stored unchanged, `text` is
a struct in the kernel dialect that encodes and decodes (see `coded` in prelude/storage.hpp), the same for hosts and devices. A
format does not depend on boundary phases or anisotropies: these belong to the field and are applied to decoded values.

Sites are laid out here and nowhere else: `Section`s of units of 1, 2, 4 or 8 bytes, in packets of up to 16 bytes on devices.
C++ gets these numbers, kernels get them in the types of their pointers.

A kernel computes in the widest `precision` of its fields, in any formats: docs/language/precision.md has the tables.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from jali.codegen.arithmetics import ARITHMETICS, IEEE_PRECISIONS, at_least
from jali.codegen.packings import (
    ALGEBRA,
    EIGHT_OF_SU3,
    HERMITIAN,
    PLAIN,
    ROWS_OF_SU2,
    ROWS_OF_SU3,
    SPIN_FIRST,
    Packing,
    is_group,
)
from jali.codegen.types import Element, Vector
from jali.errors import LayoutError
from jali.files import value_shown

_OF_CODECS = {"plain": PLAIN, "algebra": ALGEBRA, "hermitian": HERMITIAN}
WIDEST_PACKET = 16  # bytes that a thread of a device loads at once


class Section(NamedTuple):
    """So many units of memory of a site, the bytes of each, and how many of them lie in a packet on devices."""

    units: int
    unit_bytes: int
    packet_units: int


def section(units: int, unit_bytes: int) -> Section:
    """A section in the largest packets that divide it. This is the one place that decides it."""
    packet = WIDEST_PACKET // unit_bytes
    while units % packet:
        packet //= 2
    return Section(units, unit_bytes, packet)


@dataclass(frozen=True)
class Format:
    """An entry of the table of storage formats.

    `name` is the value of `storage=`, and checkpoints keep `version` with it. `units` is the number of units for so many reals.
    `kinds` are the kinds of numbers that it holds. `exact` are the precisions of arithmetic whose values it keeps bit for bit;
    elsewhere reading after writing gives the stored value, and what cannot be held is counted. `precisions` are those that can
    decode it: units are not wider than the arithmetic.
    """

    name: str
    version: int
    unit_bytes: int
    scalar: str = ""  # double or float; "": `text` has it
    text: str = ""  # struct NAME in the dialect
    norm: bool = False  # of each site, in float32 behind its units
    units: Callable[[int], int] = lambda reals: reals
    kinds: tuple[str, ...] = ("real", "complex")
    exact: frozenset[str] = frozenset()
    precisions: tuple[str, ...] = IEEE_PRECISIONS
    packing: Packing | None = None  # None: that of the element
    of_group: Format | None = (
        None  # taken for SU(n) matrices, whose components are at most 1 and need no norm
    )
    what: str = ""  # in words, for tables

    @property
    def struct(self) -> str:
        """Name of the struct in `text`."""
        found = re.search(r"struct\s+(\w+)", self.text)
        return found[1] if found else ""


@dataclass(frozen=True)
class Stored:
    """How an element is kept by a format: the view of memory of fields, programs and kernels."""

    format: Format
    element: Element

    def __str__(self) -> str:
        return self.format.name

    @property
    def packing(self) -> Packing:
        """Which numbers are kept."""
        return self.format.packing or _OF_CODECS[self.element.codec]

    @functools.cached_property
    def reals(self) -> int:
        """Numbers that are kept of a site."""
        return self.packing.reals(self.element)

    @functools.cached_property
    def memory(self) -> tuple[Section, ...]:
        """The sections of a site's bytes."""
        format = self.format
        first = section(format.units(self.reals), format.unit_bytes)
        return (first, section(1, 4)) if format.norm else (first,)

    @functools.cached_property
    def site_bytes(self) -> int:
        """Bytes of a site."""
        return sum(s.units * s.unit_bytes for s in self.memory)

    def exact(self, precision: str) -> bool:
        """Whether all values of this arithmetic are restored bit for bit."""
        return precision in self.format.exact and self.packing.exact

    def counts(self, precision: str) -> bool:
        """Whether a kernel that stores checks for values that cannot be held."""
        return precision not in self.format.exact or not self.format.scalar

    def widened(self, precision: str) -> bool:
        """Whether numbers in memory are those of the arithmetic, so that hosts need no copy."""
        return self.format.scalar != ARITHMETICS[precision].c_type

    def pointer(self, precision: str, gpu: bool) -> str:
        """The C type that a field's memory is seen as."""
        format, first = self.format, self.memory[0]
        if not format.scalar:
            return f"coded<{format.struct}, {first.units}, {first.packet_units}>"
        scalar = "JALI_REAL" if format.scalar == ARITHMETICS[precision].c_type else format.scalar
        return f"packet<{scalar}, {first.packet_units}>" if gpu else scalar

    @property
    def texts(self) -> tuple[str, ...]:
        """What kernels define for it."""
        return tuple(t for t in (self.packing.text, self.format.text) if t)


@dataclass(frozen=True)
class ArrayArgument:
    """An array of numbers as an argument: a vector or a matrix, or a table that is indexed by whole numbers of the site."""

    kind: str  # int, real or complex
    shape: tuple[int, ...]

    @property
    def is_value(self) -> bool:
        """Whether it is small enough to be used whole."""
        return len(self.shape) <= 2 and math.prod(self.shape) <= 256


@dataclass(frozen=True)
class FieldArgument:
    """The properties of a field argument that tracing needs. Equal `identity` means the same field; `ratio` is that of its
    lattice, `open` are the directions in which its boundary is, `batch` its members at a site, 0 where it has none. What derivatives ask
    besides are `factors`, those of its boundary (None: open)."""

    storage: Stored
    identity: int
    ratio: Ratio | None = None
    open: tuple[int, ...] = ()
    batch: int = 0
    factors: tuple[complex | None, ...] = ()


class Ratio(NamedTuple):
    """A lattice beside that of the loop, direction by direction: so many times coarser, or so many times finer; one of the two is 1."""

    coarser: tuple[int, ...]
    finer: tuple[int, ...]

    def __str__(self) -> str:
        parts = [
            f"{'x'.join(map(str, n))} times {word}"
            for n, word in ((self.coarser, "coarser"), (self.finer, "finer"))
            if max(n) > 1
        ]
        return " and ".join(parts) or "as fine"


def plain(element: Element, precision: str) -> Stored:
    """The element's numbers as the arithmetic has them."""
    if element.type.kind == "int":
        return Stored(FORMATS[ARITHMETICS[precision].dtype("int").name], element)
    return Stored(FORMATS[precision], element)


_INTEGER = """// {what}
struct {name} {{
    typedef {unit} unit;
    static const bool norm = false;
    template <int N>
    static JALI_MEMBER void decode(integer* v, const integer* units, real) {{
        for (int c = 0; c < N; ++c) v[c] = units[c];
    }}
    template <int N>
    static JALI_MEMBER mask encode(integer* units, real*, const integer* v) {{
        mask lost = all_lanes(false);
        for (int c = 0; c < N; ++c) {{
            units[c] = v[c];
            const integer back = (v[c] << splat_integer({spare})) >> splat_integer({spare});
            lost = lost | (back != v[c]);
        }}
        return lost;
    }}
}};
"""
_SMALL = """// {what}
struct {name} {{
    typedef unsigned short unit;
    static const bool norm = false;
    typedef small_float<{exponent}, {fraction}> number;
    template <int N>
    static JALI_MEMBER void decode(real* v, const integer* units, real) {{
        for (int c = 0; c < N; ++c) v[c] = number::decode(units[c]);
    }}
    template <int N>
    static JALI_MEMBER mask encode(integer* units, real*, const real* v) {{
        mask lost = all_lanes(false);
        for (int c = 0; c < N; ++c) units[c] = number::encode(v[c], &lost);
        return lost;
    }}
}};
"""

FORMATS: dict[str, Format] = {}


def add_format(format: Format) -> Format:
    """Adds a format; fields may name it from now on. Raises LayoutError for a name that is taken."""
    if format.name in FORMATS:
        raise LayoutError(f"there is a storage format {format.name!r} already")
    FORMATS[format.name] = format
    return format


for _arithmetic in reversed(ARITHMETICS.values()):
    add_format(
        Format(
            _arithmetic.name,
            1,
            _arithmetic.bytes // _arithmetic.words,
            "" if _arithmetic.storage else _arithmetic.c_type,
            text=_arithmetic.storage,
            units=functools.partial(operator.mul, _arithmetic.words),
            exact=frozenset({_arithmetic.name}),
            precisions=at_least(_arithmetic.name),
            what=f"IEEE binary{_arithmetic.bits}"
            if _arithmetic.words == 1
            else f"{_arithmetic.words} machine words",
        )
    )
for _name, _exponent, _fraction, _what in (
    ("float16", 5, 10, "IEEE binary16: 11 bits, up to 65504"),
    ("bfloat16", 8, 7, "the upper half of IEEE binary32: 8 bits, up to 3.4e38"),
):
    add_format(
        Format(
            _name,
            1,
            2,
            text=_SMALL.format(what=_what, name=f"format_{_name}", exponent=_exponent, fraction=_fraction),
            what=_what,
        )
    )
for _arithmetic in map(ARITHMETICS.__getitem__, IEEE_PRECISIONS):
    _name, _bytes = _arithmetic.dtype("int").name, _arithmetic.bytes
    _same = [a.name for a in ARITHMETICS.values() if a.whole_bits == _arithmetic.bits]
    _what = f"whole numbers of {_arithmetic.bits} bits"
    add_format(
        Format(
            _name,
            1,
            _bytes,
            text=_INTEGER.format(
                what=_what,
                name=f"format_{_name}",
                unit="int32_t" if _bytes == 4 else "int64_t",
                spare="8 * sizeof(lane_integer) - 32" if _bytes == 4 else "0",
            ),
            kinds=("int",),
            exact=frozenset(_same),
            precisions=at_least(_same[0]),
            what=_what,
        )
    )

_FIXED = """// {what}
struct {name} {{
    typedef {unit} unit;
    static const bool norm = true;
    template <int N>
    static JALI_MEMBER void decode(real* v, const integer* units, real norm_of_site) {{
        for (int c = 0; c < N; ++c) v[c] = norm_of_site * (small_to_real(units[c]) * splat(JALI_REAL(1) / {most}));
    }}
    template <int N>
    static JALI_MEMBER mask encode(integer* units, real* norm_of_site, const real* v) {{
        mask lost = all_lanes(false);
        real largest = splat(0);
        for (int c = 0; c < N; ++c) {{
            largest = vmax(vabs(v[c]), largest);
            lost = lost | ~(vabs(v[c]) < two_to(127));
        }}
        largest = as_float32(largest, &lost);
        const mask empty = lost | (largest < two_to(-100));
        *norm_of_site = select(empty, splat(0), largest);
        const real inverse = splat({most}) / select(empty, splat(1), largest);
        for (int c = 0; c < N; ++c) units[c] = nearest_integer(select(empty, splat(0), v[c]) * inverse);
        return lost;
    }}
}};
"""
_FIXED_OF_GROUP = """// {what}
struct {name}_of_group {{
    typedef {unit} unit;
    static const bool norm = false;
    template <int N>
    static JALI_MEMBER void decode(real* v, const integer* units, real) {{
        for (int c = 0; c < N; ++c) v[c] = small_to_real(units[c]) * splat(JALI_REAL(1) / {most});
    }}
    template <int N>
    static JALI_MEMBER mask encode(integer* units, real*, const real* v) {{
        mask lost = all_lanes(false);
        for (int c = 0; c < N; ++c) {{
            const mask beyond = ~(vabs(v[c]) < splat(JALI_REAL({most}.5) / {most}));
            lost = lost | beyond;
            units[c] = nearest_integer(select(beyond, splat(0), v[c]) * splat({most}));
        }}
        return lost;
    }}
}};
"""
for _name, _bytes, _unit, _most in (("fixed16", 2, "short", 32767), ("fixed8", 1, "signed char", 127)):
    _what = f"whole multiples of 1/{_most} of the site's largest number, which is kept in float32"
    _what_of_group = f"whole multiples of 1/{_most}"
    _words = {"name": f"format_{_name}", "unit": _unit, "most": _most}
    _group = Format(
        _name, 1, _bytes, text=_FIXED_OF_GROUP.format(what=_what_of_group, **_words), what=_what_of_group
    )
    add_format(
        Format(
            _name, 1, _bytes, text=_FIXED.format(what=_what, **_words), norm=True, of_group=_group, what=_what
        )
    )
_SCALED = """// {what}
struct {name} {{
    typedef unsigned short unit;
    static const bool norm = true;
    typedef small_float<5, 10> number;
    template <int N>
    static JALI_MEMBER void decode(real* v, const integer* units, real norm_of_site) {{
        for (int c = 0; c < N; ++c) v[c] = norm_of_site * number::decode(units[c]);
    }}
    template <int N>
    static JALI_MEMBER mask encode(integer* units, real* norm_of_site, const real* v) {{
        mask lost = all_lanes(false);
        real largest = splat(0);
        for (int c = 0; c < N; ++c) {{
            largest = vmax(vabs(v[c]), largest);
            lost = lost | ~(vabs(v[c]) < two_to(127));
        }}
        const mask empty = lost | (largest < two_to(-100));
        // its power of two becomes 2^14, since binary16 ends at 2^16: both factors are exact
        const real power = real_of_bits(bits_of(select(empty, splat(1), largest)) & splat_integer(-(lane_integer(1) << REAL_FRACTION)));
        *norm_of_site = select(empty, splat(0), power * two_to(-14));
        const real inverse = two_to(14) / power;
        for (int c = 0; c < N; ++c) units[c] = number::encode(select(empty, splat(0), v[c]) * inverse, &lost);
        return lost;
    }}
}};
"""
for _format in list(FORMATS.values()):
    for _packing in (ROWS_OF_SU3, EIGHT_OF_SU3, ROWS_OF_SU2):
        if "complex" in _format.kinds:
            _kept = _format.of_group or _format
            _version = _kept.version + _packing.version - 1
            _precisions = tuple(p for p in _kept.precisions if p in IEEE_PRECISIONS or not _packing.of_bits)
            add_format(
                replace(
                    _kept,
                    name=f"{_format.name}-{_packing.name}",
                    packing=_packing,
                    version=_version,
                    precisions=_precisions,
                )
            )
_what = "IEEE binary16 times a power of two of the site's largest number, which is kept in float32"
add_format(
    Format(
        "float16-scaled",
        1,
        2,
        text=_SCALED.format(what=_what, name="format_float16_scaled"),
        norm=True,
        of_group=replace(FORMATS["float16"], name="float16-scaled"),
        what=_what,
    )
)
for _format in [FORMATS[name] for name in reversed(IEEE_PRECISIONS)]:
    add_format(replace(_format, name=f"{_format.name}-{SPIN_FIRST.name}", packing=SPIN_FIRST))


def stored(name: str, element: Element, precision: str) -> Stored:
    """How a field of this element and arithmetic is kept by the format of that name.

    Raises LayoutError, which names the formats that could be meant, where there is none or it cannot hold the element.
    """
    known = isinstance(name, str) and name in FORMATS
    why = _why_not(FORMATS[name], element, precision) if known else f"storage {value_shown(name)} is unknown"
    if why:
        fitting = [format.name for format in FORMATS.values() if not _why_not(format, element, precision)]
        raise LayoutError(f"{why}; {element} can be stored as {', '.join(fitting)}")
    format = FORMATS[name]
    return Stored(format.of_group if format.of_group and is_group(element) else format, element)


def decoding(precision: str, *formats: Format) -> str:
    """The narrowest arithmetic from `precision` on in which all of these formats can be decoded."""
    return next(p for p in at_least(precision) if all(p in format.precisions for format in formats))


def wires() -> list[str]:
    """The formats by which halo items may travel: they hold any reals, of each of the processor's arithmetics."""
    return [
        format.name
        for format in FORMATS.values()
        if format.packing is None and "real" in format.kinds and {*format.precisions} >= {*IEEE_PRECISIONS}
    ]


def on_the_wire(reals: int, precision: str, wire: str) -> Stored:
    """How so many reals of the arithmetic travel in a halo item: by a format, or ("") as they are, without any loss. Raises LayoutError
    where the arithmetic cannot decode the format."""
    return stored(wire or precision, Vector(reals, kind="real"), precision)


def _why_not(format: Format, element: Element, precision: str) -> str:
    if precision not in format.precisions:
        return f"a field with {precision} arithmetic is not stored as {format.name}"
    if element.type.kind not in format.kinds:
        return f"{element} has {element.type.kind} numbers, which {format.name} does not hold"
    if format.packing is not None and not format.packing.holds(element):
        return f"{format.name} does not hold {element}"
    return ""
