"""Storage formats: how the value of a site is kept in memory. Adding one is one `Format` given to `add_format`.

A row has two steps. `packing` leaves numbers away that follow from the others (the third row of an SU(3) matrix); the rest says
how numbers become units of memory: `scalar` is the C type of IEEE numbers that stand there as they are, `text` is a struct in
the kernel dialect that encodes and decodes (see `coded` in prelude/storage.hpp), the same for hosts and devices. A row knows
nothing of boundary phases or anisotropies: these stay with the field and are applied to what was decoded.

Sites are laid out here and nowhere else: `Section`s of units of 1, 2, 4 or 8 bytes, in packets of up to 16 bytes on devices.
C++ gets these numbers, kernels get them in the types of their pointers.

A kernel computes in the widest `precision` of the fields that meet in it, whatever their rows are: docs/site-language.md has the tables.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from jali.codegen.types import SU, Element, Vector
from jali.errors import LayoutError

WIDEST_PACKET = 16  # bytes that a thread of a device loads at once
PRECISIONS = ("float32", "float64")  # of arithmetic


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
class Packing:
    """Which numbers of a value are kept. `encode` and `decode` are functions of the dialect on arrays of reals; `text`
    defines them where the prelude does not."""

    name: str
    reals: Callable[[Element], int]  # that are kept
    holds: Callable[[Element], bool]
    encode: str = ""  # template over the n of n x n; "": all numbers, as they come
    decode: str = ""
    text: str = ""
    exact: bool = False  # all numbers come back as they were
    version: int = 1


def _is_group(element: Element, *orders: int) -> bool:
    """Whether it holds SU(n) matrices, of one of these orders."""
    shape = element.type.shape
    if len(shape) != 2 or shape[0] != shape[1] or (orders and shape[0] not in orders):
        return False
    return element == SU(shape[0])


PLAIN = Packing("plain", lambda e: e.type.reals, lambda e: e.codec != "algebra", exact=True)
ALGEBRA = Packing(
    "algebra",
    lambda e: e.stored_reals,
    lambda e: e.codec == "algebra",
    "algebra_encode",
    "algebra_decode",
    exact=True,
)
SPIN_FIRST = Packing(
    "spin-first",
    lambda e: e.type.reals,
    lambda e: e.spinor,
    "spin_first_encode",
    "spin_first_decode",
    """// Spinors of N colours as NumPy has them, spin by spin.
template <int N>
JALI_INLINE void spin_first_encode(real* p, const real* u) {
    for (int i = 0; i < N; ++i)
        for (int k = 0; k < 8; ++k) p[k / 2 * 2 * N + 2 * i + k % 2] = u[8 * i + k];
}
template <int N>
JALI_INLINE void spin_first_decode(real* u, const real* p) {
    for (int i = 0; i < N; ++i)
        for (int k = 0; k < 8; ++k) u[8 * i + k] = p[k / 2 * 2 * N + 2 * i + k % 2];
}
""",
    exact=True,
)

_ROWS = """// All rows but the last of a special unitary matrix; the last is the conjugate of their cross product.
template <int N>
JALI_INLINE void rows_encode(real* p, const real* u) {
    for (int c = 0; c < 2 * N * (N - 1); ++c) p[c] = u[c];
}
template <int N>
JALI_INLINE void rows_decode(real* u, const real* p) {
    for (int c = 0; c < 2 * N * (N - 1); ++c) u[c] = p[c];
    if (N == 2) {
        u[4] = -p[2];
        u[5] = p[3];
        u[6] = p[0];
        u[7] = -p[1];
        return;
    }
    JALI_UNROLL
    for (int j = 0; j < 3; ++j) {
        const int k = (j + 1) % 3, l = (j + 2) % 3;
        const real ar = p[2 * k], ai = p[2 * k + 1], br = p[2 * l], bi = p[2 * l + 1];
        const real cr = p[6 + 2 * k], ci = p[7 + 2 * k], dr = p[6 + 2 * l], di = p[7 + 2 * l];
        u[12 + 2 * j] = fma(bi, ci, fnma(br, cr, fnma(ai, di, ar * dr)));
        u[13 + 2 * j] = fma(bi, cr, fma(br, ci, fnma(ai, dr, -(ar * di))));
    }
}
"""
_EIGHT = """// Eight reals of an SU(3) matrix of rows a, b, c: Bunk and Sommer, Comput. Phys. Commun. 40 (1986) 229, in the order of rows of
// Clark et al., arXiv:0911.3191, {b, a, -c}, which has no singularity at the unit matrix. Of these rows A, B, C: A2, A3, B1, and the
// phases of A1 and C1 over pi. Where A1 or C1 is small its modulus loses digits: up to half of them. Since |A1| = 1 would be
// singular, the rows are {a, b, c} where |b1|^2 is above 1/2; that they are is seen by A2 and A3, which are halved then:
// |A2|^2 + |A3|^2 is at most 1/4 instead of at least 1/2.
const real_constant PI = 3.14159265358979323846;
template <int N>
JALI_INLINE void eight_encode(real* p, const real* u) {
    const mask in_order = fma(u[6], u[6], u[7] * u[7]) > splat(0.5);
    const real scale = select(in_order, splat(0.5), splat(1)), sign = select(in_order, splat(1), splat(-1));
    for (int c = 0; c < 4; ++c) p[c] = scale * select(in_order, u[2 + c], u[8 + c]);
    for (int c = 0; c < 2; ++c) p[4 + c] = select(in_order, u[6 + c], u[c]);
    p[6] = vatan2(select(in_order, u[1], u[7]), select(in_order, u[0], u[6])) / splat(PI);
    p[7] = vatan2(sign * u[13], sign * u[12]) / splat(PI);
}
JALI_INLINE real norm_left(real x) { // root of what is left, or 0
    return vsqrt(vmax(x, splat(0)));
}
template <int N>
JALI_INLINE void eight_decode(real* u, const real* p) {
    const mask in_order = fma(p[0], p[0], fma(p[1], p[1], fma(p[2], p[2], p[3] * p[3]))) < splat(0.375);
    const real scale = select(in_order, splat(2), splat(1)), sign = select(in_order, splat(1), splat(-1));
    const real a2r = scale * p[0], a2i = scale * p[1], a3r = scale * p[2], a3i = scale * p[3], b1r = p[4], b1i = p[5];
    const real n = fma(a2r, a2r, fma(a2i, a2i, fma(a3r, a3r, a3i * a3i)));
    const real a1 = norm_left(splat(1) - n), c1 = norm_left(n - fma(b1r, b1r, b1i * b1i));
    real s, c;
    vsincos(&s, &c, p[6] * splat(PI));
    const real a1r = a1 * c, a1i = a1 * s;
    vsincos(&s, &c, p[7] * splat(PI));
    const real c1r = c1 * c, c1i = c1 * s;
    const real inverse = splat(1) / vmax(n, splat(0.25)); // of what is no matrix of the group, too
    // conj(A1) B1 and conj(A1) C1
    const real er = fma(a1r, b1r, a1i * b1i), ei = fnma(a1i, b1r, a1r * b1i);
    const real fr = fma(a1r, c1r, a1i * c1i), fi = fnma(a1i, c1r, a1r * c1i);
    const real b2r = -(fma(a2r, er, fnma(a2i, ei, fnma(a3i, c1i, a3r * c1r)))) * inverse;
    const real b2i = -(fma(a2r, ei, fma(a2i, er, fnma(a3i, c1r, -(a3r * c1i))))) * inverse;
    const real b3r = (fnma(a3r, er, fma(a3i, ei, fnma(a2i, c1i, a2r * c1r)))) * inverse;
    const real b3i = (fnma(a3r, ei, fnma(a3i, er, fnma(a2i, c1r, -(a2r * c1i))))) * inverse;
    const real c2r = (fnma(a2r, fr, fma(a2i, fi, fnma(a3i, b1i, a3r * b1r)))) * inverse;
    const real c2i = (fnma(a2r, fi, fnma(a2i, fr, fnma(a3i, b1r, -(a3r * b1i))))) * inverse;
    const real c3r = -(fma(a3r, fr, fnma(a3i, fi, fnma(a2i, b1i, a2r * b1r)))) * inverse;
    const real c3i = -(fma(a3r, fi, fma(a3i, fr, fnma(a2i, b1r, -(a2r * b1i))))) * inverse;
    const real a[6] = {a1r, a1i, a2r, a2i, a3r, a3i}, b[6] = {b1r, b1i, b2r, b2i, b3r, b3i};
    const real third[6] = {c1r, c1i, c2r, c2i, c3r, c3i};
    for (int k = 0; k < 6; ++k) {
        u[k] = select(in_order, a[k], b[k]);
        u[6 + k] = select(in_order, b[k], a[k]);
        u[12 + k] = sign * third[k];
    }
}
""".replace("const real_constant PI", "const JALI_REAL PI")


def _most_rows(element: Element) -> int:
    n = element.type.shape[0]
    return 2 * n * (n - 1)


ROWS_OF_SU3 = Packing("12", _most_rows, lambda e: _is_group(e, 3), "rows_encode", "rows_decode", _ROWS)
ROWS_OF_SU2 = Packing("4", _most_rows, lambda e: _is_group(e, 2), "rows_encode", "rows_decode", _ROWS)
EIGHT_OF_SU3 = Packing(
    "8", lambda e: 8, lambda e: _is_group(e, 3), "eight_encode", "eight_decode", _EIGHT, version=2
)


@dataclass(frozen=True)
class Format:
    """A row of the table of storage formats.

    `name` is what `storage=` says and `version` what checkpoints keep with it. `units` says how many units hold so many
    reals. `kinds` are the kinds of numbers that it holds. `exact` are the precisions of arithmetic whose values it keeps bit for
    bit; elsewhere reading after writing gives the stored value, and what cannot be held is counted. `precisions` are those
    that can decode it: units are not wider than the arithmetic.
    """

    name: str
    version: int
    unit_bytes: int
    scalar: str = ""  # double or float; "": `text` says it
    text: str = ""  # struct NAME in the dialect
    norm: bool = False  # of each site, in float32 behind its units
    units: Callable[[int], int] = lambda reals: reals
    kinds: tuple[str, ...] = ("real", "complex")
    exact: frozenset[str] = frozenset()
    precisions: tuple[str, ...] = PRECISIONS
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
    """How an element is kept by a row: what fields, programs and kernels know of memory."""

    format: Format
    element: Element

    def __str__(self) -> str:
        return self.format.name

    @property
    def packing(self) -> Packing:
        """Which numbers are kept."""
        return self.format.packing or (ALGEBRA if self.element.codec == "algebra" else PLAIN)

    @functools.cached_property
    def reals(self) -> int:
        """Numbers that are kept of a site."""
        return self.packing.reals(self.element)

    @functools.cached_property
    def memory(self) -> tuple[Section, ...]:
        """The sections of a site's bytes."""
        row = self.format
        first = section(row.units(self.reals), row.unit_bytes)
        return (first, section(1, 4)) if row.norm else (first,)

    @functools.cached_property
    def site_bytes(self) -> int:
        """Bytes of a site."""
        return sum(s.units * s.unit_bytes for s in self.memory)

    def exact(self, precision: str) -> bool:
        """Whether all values of this arithmetic come back bit for bit."""
        return precision in self.format.exact and self.packing.exact

    def counts(self, precision: str) -> bool:
        """Whether a kernel that stores looks for values that cannot be held."""
        return precision not in self.format.exact or not self.format.scalar

    def widened(self, precision: str) -> bool:
        """Whether numbers stand in memory as the arithmetic has them, so that hosts need no copy."""
        return self.format.scalar != C_TYPES[precision]

    def pointer(self, precision: str, gpu: bool) -> str:
        """The C type that a field's memory is seen as."""
        row, first = self.format, self.memory[0]
        if not row.scalar:
            return f"coded<{row.struct}, {first.units}, {first.packet_units}>"
        scalar = "JALI_REAL" if row.scalar == C_TYPES[precision] else row.scalar
        return f"packet<{scalar}, {first.packet_units}>" if gpu else scalar

    @property
    def texts(self) -> tuple[str, ...]:
        """What kernels define for it."""
        return tuple(t for t in (self.packing.text, self.format.text) if t)


C_TYPES = {"float64": "double", "float32": "float"}


@dataclass(frozen=True)
class FieldArgument:
    """What tracing needs to know of a field argument. Equal `identity` means the same field; `ratio` is that of its lattice."""

    storage: Stored
    identity: int
    ratio: Ratio | None = None


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
        precision = {"float64": "int64", "float32": "int32"}[precision]
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


def add_format(row: Format) -> Format:
    """Adds a row; fields may name it from now on. Raises LayoutError for a name that is taken."""
    if row.name in FORMATS:
        raise LayoutError(f"there is a storage format {row.name!r} already")
    FORMATS[row.name] = row
    return row


add_format(
    Format(
        "float64", 1, 8, "double", exact=frozenset({"float64"}), precisions=("float64",), what="IEEE binary64"
    )
)
add_format(Format("float32", 1, 4, "float", exact=frozenset({"float32"}), what="IEEE binary32"))
for _name, _exponent, _fraction, _what in (
    ("float16", 5, 10, "IEEE binary16: 11 bits, up to 65504"),
    ("bfloat16", 8, 7, "the upper half of IEEE binary32: 8 bits, up to 3.4e38"),
):
    add_format(
        Format(
            _name,
            1,
            2,
            text=_SMALL.format(what=_what, name=f"row_{_name}", exponent=_exponent, fraction=_fraction),
            what=_what,
        )
    )
for _name, _bytes, _exact, _precisions in (
    ("int32", 4, ("float32",), PRECISIONS),
    ("int64", 8, ("float64",), ("float64",)),
):
    _what = f"whole numbers of {8 * _bytes} bits"
    add_format(
        Format(
            _name,
            1,
            _bytes,
            text=_INTEGER.format(
                what=_what,
                name=f"row_{_name}",
                unit="int32_t" if _bytes == 4 else "int64_t",
                spare="8 * sizeof(lane_integer) - 32" if _bytes == 4 else "0",
            ),
            kinds=("int",),
            exact=frozenset(_exact),
            precisions=_precisions,
            what=_what,
        )
    )

_FIXED = """// {what}
struct {name} {{
    typedef {unit} unit;
    static const bool norm = true;
    template <int N>
    static JALI_MEMBER void decode(real* v, const integer* units, real norm_of_site) {{
        for (int c = 0; c < N; ++c) v[c] = norm_of_site * (to_real(units[c]) * splat(JALI_REAL(1) / {most}));
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
        for (int c = 0; c < N; ++c) v[c] = to_real(units[c]) * splat(JALI_REAL(1) / {most});
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
    _words = {"name": f"row_{_name}", "unit": _unit, "most": _most}
    _group = Format(
        _name, 1, _bytes, text=_FIXED_OF_GROUP.format(what=_what_of_group, **_words), what=_what_of_group
    )
    add_format(
        Format(
            _name, 1, _bytes, text=_FIXED.format(what=_what, **_words), norm=True, of_group=_group, what=_what
        )
    )
for _row in list(FORMATS.values()):
    for _packing in (ROWS_OF_SU3, EIGHT_OF_SU3, ROWS_OF_SU2):
        if "complex" in _row.kinds:
            _kept = _row.of_group or _row
            _version = _kept.version + _packing.version - 1
            add_format(
                replace(_kept, name=f"{_row.name}-{_packing.name}", packing=_packing, version=_version)
            )
for _row in (FORMATS["float64"], FORMATS["float32"]):
    add_format(replace(_row, name=f"{_row.name}-{SPIN_FIRST.name}", packing=SPIN_FIRST))


def stored(name: str, element: Element, precision: str) -> Stored:
    """How a field of this element and arithmetic is kept by the row of that name.

    Raises LayoutError, which names the rows that could be meant, where there is none or it cannot hold the element.
    """
    fitting = [row.name for row in FORMATS.values() if not _why_not(row, element, precision)]
    if not isinstance(name, str) or name not in FORMATS:
        raise LayoutError(f"storage {name!r} is unknown; {element} can be stored as {', '.join(fitting)}")
    if why := _why_not(FORMATS[name], element, precision):
        raise LayoutError(f"{why}; {element} can be stored as {', '.join(fitting)}")
    row = FORMATS[name]
    return Stored(row.of_group if row.of_group and _is_group(element) else row, element)


def wires() -> list[str]:
    """The rows by which halo items may travel: they hold any reals, of either arithmetic."""
    return [
        row.name
        for row in FORMATS.values()
        if row.packing is None and "real" in row.kinds and set(row.precisions) == set(PRECISIONS)
    ]


def on_the_wire(reals: int, precision: str, wire: str) -> Stored:
    """How so many reals of the arithmetic travel in a halo item: by a row, or ("") as they are, without any loss."""
    return stored(wire or precision, Vector(reals, kind="real"), precision)


def _why_not(row: Format, element: Element, precision: str) -> str:
    if precision not in row.precisions:
        return f"a field with {precision} arithmetic is not stored as {row.name}"
    if element.type.kind not in row.kinds:
        return f"{element} has {element.type.kind} numbers, which {row.name} does not hold"
    if row.packing is not None and not row.packing.holds(element):
        return f"{row.name} does not hold {element}"
    return ""
