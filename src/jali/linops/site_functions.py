"""Operators of site functions: what happens at a site, forward and adjoint, is a linear operator on fields and on distributed arrays.

Fields are used directly. Parts of distributed arrays become fields where they lie, so that nothing is copied; the one engine
moves halos and computes the bulk meanwhile. Wrapping arrays takes half a millisecond an application, which matters where a
kernel takes less: fields, and arrays whose parts are fields (engine "jali"), cost nothing of this in solvers, which use the
vector that an application gives again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of, numpy_dtype
from jali.arrays import DistributedArray
from jali.arrays.fields import FieldPart, layout_of_lattice, to_field
from jali.arrays.layout import Layout, layout_of
from jali.arrays.pool import empty
from jali.beside import made_of
from jali.codegen.types import Complex, Element, Matrix, Real, Vector
from jali.derivatives.functions import adjoint as jali_adjoint
from jali.errors import LayoutError, ParameterError, ShapeError
from jali.files import value_shown
from jali.lattice.field import Field
from jali.lattice.fused_sums import apply_inner
from jali.lattice.lattice import Lattice
from jali.lattice.sites import SiteFunction
from jali.linops.operator import MOST_KEPT, LinearOperator
from jali.linops.spaces import Space, flattened, shaped

FORWARD = "_matvec", "_forward", "_on_arrays", "_as_array", "_apply"
BACKWARD = "_rmatvec", "_backward", *FORWARD[2:]
"""What `matvec` and `rmatvec` run, and what stands beside them does not."""


class SiteOperator(LinearOperator):
    """The operator that `forward` computes site by site. Its adjoint is derived from it (`jali.adjoint`).

    Arguments:

    - `forward`: a site function `f(X, out, x, *arguments)` that sets `out[X]` and is linear in x.
    - `extents`: those of the lattice.
    - `adjoint`: another site function of the same parameters that computes the adjoint, in place of the derived one.
    - `arguments`: what both take besides: numbers, fields, distributed arrays (which become fields when they are first used).
    - `element`, `element_out`: the element per site of input and output vectors (`jali.Vector(3)`), numbers by default; the
      indices of an element are the last ones of arrays.
    - `boundary`: the boundary condition of arrays, as that of `jali.Field`; fields have their own.

    Vectors are fields, or distributed arrays of shape `(*extents, *element.numpy_shape)` or flat, split as a lattice is: evenly
    along one axis, or along several with the last one first, `axis=(1, 0)`. Results are split as their arguments. Arrays of
    complex numbers are fields of complex ones, regardless of `element`. `dottest` checks whether `adjoint` is one, where it is given.

    Raises TraceError at the line of what is not linear, when the adjoint is first used, ParameterError for arguments that are not site functions, ShapeError and LayoutError for vectors that do
    not fit.
    """

    takes_stacks = False
    of_arrays = True
    of_fields = True

    def __init__(
        self,
        forward: SiteFunction,
        extents: int | Sequence[int],
        *,
        adjoint: SiteFunction | None = None,
        arguments: Sequence[Any] = (),
        element: Element | None = None,
        element_out: Element | None = None,
        boundary: Any = None,
        dtype: Any = None,
        base_comm: Any = None,
    ) -> None:
        for name, function in (("forward", forward), ("adjoint", adjoint or forward)):
            if not isinstance(function, SiteFunction):
                raise ParameterError(
                    f"{name} is a function decorated by jali.site_function, not {value_shown(function)}: from_functions takes functions of arrays"
                )
        if isinstance(arguments, Field | DistributedArray | str) or not isinstance(arguments, Sequence):
            raise ParameterError(
                f"arguments are several, such as arguments=(f, 0.5), not {value_shown(arguments)}"
            )
        self.element = Real() if element is None else element
        self.element_out = self.element if element_out is None else element_out
        for one in (self.element, self.element_out):
            if not isinstance(one, Element) or one.codec != "plain":
                raise ParameterError(
                    f"an element is one whose numbers are kept, such as Vector(3), not {value_shown(one)}"
                )
        self.extents = (int(extents),) if np.ndim(extents) == 0 else tuple(int(n) for n in extents)  # type: ignore[arg-type,union-attr]
        dims = self.extents + self.element.numpy_shape
        dimsd = self.extents + self.element_out.numpy_shape
        if dtype is None:
            kinds = {self.element.type.kind, self.element_out.type.kind}
            dtype = np.complex128 if "complex" in kinds else np.float64
        super().__init__(None, (math.prod(dimsd), math.prod(dims)), dims, dimsd, dtype, base_comm)
        if len(forward.parameters) < 2:
            raise ParameterError(f"forward takes out and x, f(X, out, x, *arguments); {forward!r} does not")
        self.derives_adjoint = adjoint is None
        backward = jali_adjoint(forward, forward.parameters[1]) if adjoint is None else adjoint
        self.functions, self.arguments, self.boundary = (forward, backward), tuple(arguments), boundary
        self._lattice = next((a.lattice for a in self.arguments if isinstance(a, Field)), None)
        self._fields: dict[int, tuple[Any, ...]] = {}
        self._agreed: set[Any] = set()
        self._results: dict[Any, Field] = {}
        self._looked_at: set[tuple[bool, int]] = set()

    def domain(self) -> Space | None:
        return self._space(self.element, self.dims)

    def range_(self) -> Space | None:
        return self._space(self.element_out, self.dimsd)

    def _space(self, element: Element, dims: tuple[int, ...]) -> Layout | None:
        if self._lattice is not None:  # arrays that others make for it are on the host
            return layout_of_lattice(self._lattice, element) if self._lattice.gpu is None else None
        return layout_of(self.communicator, dims)

    @made_of(*FORWARD)
    def matvec_kept(self, x: Any) -> Any:
        """As `matvec`; what it gives may be given, with other values, at the next call."""
        return self._kept_result(x, True)

    @made_of(*BACKWARD)
    def rmatvec_kept(self, x: Any) -> Any:
        """As `rmatvec`; what it gives may be given, with other values, at the next call."""
        return self._kept_result(x, False)

    @made_of(*FORWARD, "_run")
    def matvec_inner(self, x: Any, wait: bool = True) -> tuple[Any, Any]:
        """A x as of `matvec_kept`, and the inner product of x and A x, by one kernel; with `wait=False` a `Scalar`. Of arrays None.

        Raises LayoutError where A x is no field like x.
        """
        return self._with_sum(x, False, wait)

    @made_of(*FORWARD, "_run")
    def matvec_norm2(self, x: Any, wait: bool = True) -> tuple[Any, Any]:
        """A x as of `matvec_kept`, and its inner product with itself, by one kernel; with `wait=False` a `Scalar`. Of arrays None."""
        return self._with_sum(x, True, wait)

    def _matvec(self, x: Any) -> Any:
        return self._apply(x, True)

    def _rmatvec(self, x: Any) -> Any:
        return self._apply(x, False)

    def _check_field(self, x: Field, elements: int, name: str) -> None:
        wanted = self.dimsd if name.endswith("adjoint") else self.dims
        if x.batch is not None:
            raise ShapeError(
                f"{self!r}: {name} has a batch of {x.batch} ({value_shown(x)}), and operators act on single fields: x.members[k] is one. A "
                "site function acts on all of them, and so does jali.solvers.cg"
            )
        if x.shape != wanted:
            raise ShapeError(
                f"{self!r}: {name} is an array of shape {wanted} to the eye, not of {x.shape} ({value_shown(x)})"
            )

    # --- fields ---------------------------------------------------------------------------------------------

    def _run(self, forward: bool, out: Field, x: Field) -> Field:
        self._check_reads(forward, out, x)
        self.functions[0 if forward else 1](*self._in_order(forward, out, x), *self._arguments(x.lattice))
        return out

    def _in_order(self, forward: bool, out: Field, x: Field) -> tuple[Field, Field]:
        """Result and argument as the function takes them: a derived adjoint has those of the function that it is derived from."""
        return (x, out) if self.derives_adjoint and not forward else (out, x)

    def _check_reads(self, forward: bool, out: Field, x: Field) -> None:
        """Raises ParameterError where the function reads the field that it should set; looks once at each lattice."""
        if (forward, x.lattice.serial) in self._looked_at:
            return
        function = self.functions[0 if forward else 1]
        for kernel in function.kernels(*self._in_order(forward, out, x), *self._arguments(x.lattice)):
            if any(kernel.fields[slot].serial == out.serial for slot in kernel.text.analysis.reads):
                raise ParameterError(
                    f"{function.__name__} reads the field that it should set, which has no values yet: begin with out[X] = ..., and "
                    "add up in a variable"
                )
        self._looked_at.add((forward, x.lattice.serial))

    def _arguments(self, lattice: Lattice) -> tuple[Any, ...]:
        """Those of the site functions: arrays as fields on this lattice."""
        if lattice.serial not in self._fields:
            if len(self._fields) >= MOST_KEPT:
                self._fields.clear()
            self._fields[lattice.serial] = tuple(
                to_field(a, lattice=lattice) if isinstance(a, DistributedArray) else a for a in self.arguments
            )
        return self._fields[lattice.serial]

    def _new(self, x: Field, forward: bool) -> Field:
        """A field for the result of this one."""
        is_complex = self.dtype.kind == "c" or x.element.type.kind == "complex"
        wanted = of_kind(self.element_out if forward else self.element, is_complex)
        return x.like() if wanted == x.element else x.like(element=wanted)

    def _kept_result(self, x: Any, forward: bool) -> Any:
        field = self._field_in(x, forward)
        if field is None:
            return self.matvec(x) if forward else self.rmatvec(x)
        out = self._run(forward, self._kept_field(field, forward), field)
        return out if field is x else self._array(out, x, forward)

    def _with_sum(self, x: Any, square: bool, wait: bool) -> tuple[Any, Any]:
        field = self._field_in(x, True)
        if field is None:
            return self.matvec(x), None
        out, arguments = self._kept_field(field, True), self._arguments(field.lattice)
        self._check_reads(True, out, field)
        number = apply_inner(self.functions[0], None if square else field, out, field, *arguments, wait=wait)
        return out if field is x else self._array(out, x, True), number

    def _field_in(self, x: Any, forward: bool) -> Field | None:
        """The field that x is, or is made of; None where kernels run on fields that are made for each call."""
        part = x.local if isinstance(x, DistributedArray) else None
        field = part.field if isinstance(part, FieldPart) else x
        if not isinstance(field, Field) or (
            part is not None and x.global_shape != (self.dims if forward else self.dimsd)
        ):
            return None
        self._check(x, self.shape[1 if forward else 0], "x" if forward else "x of the adjoint")
        return field

    def _kept_field(self, field: Field, forward: bool) -> Field:
        """The field that results for arguments like this one are written to, but another one than the argument."""
        key = (
            forward,
            field.lattice.serial,
            field.precision,
            field.element,
            field.stored,
            tuple(field.boundary.conditions),
        )
        if key not in self._results:
            if len(self._results) >= MOST_KEPT:
                self._results.clear()
            self._results[key] = self._new(field, forward)
        kept = self._results[key]
        return self._new(field, forward) if kept is field else kept

    # --- distributed arrays ---------------------------------------------------------------------------------

    def _apply(self, x: Any, forward: bool) -> Any:
        if isinstance(x, Field):
            return self._run(forward, self._new(x, forward), x)
        dims = self.dims if forward else self.dimsd
        given, x = x, shaped(x, dims, self)
        if isinstance(x.local, FieldPart):
            found = self._array(
                self._run(forward, self._new(x.local.field, forward), x.local.field), x, forward
            )
        else:
            found = self._of_arrays(x, forward)
        return found if given.layout is x.layout else flattened(found)

    def _array(self, out: Field, x: DistributedArray, forward: bool) -> DistributedArray:
        return DistributedArray.of(self._layout(x, forward), FieldPart(out), x._base_comm)

    def _layout(self, x: DistributedArray, forward: bool) -> Layout:
        """Of the result."""
        before, after = (self.element, self.element_out) if forward else (self.element_out, self.element)
        if before.numpy_shape == after.numpy_shape:
            return x.layout
        n = len(self.extents)
        shapes = tuple(shape[:n] + after.numpy_shape for shape in x.layout.local_shapes)
        if any(axis >= n for axis in x.layout.axes):
            raise LayoutError(f"{self!r}: x is split along {x.layout.axes}, and an element is in one place")
        return x.layout.with_(
            shape=self.extents + after.numpy_shape,
            axes=x.layout.axes,
            grid=x.layout.grid,
            local_shapes=shapes,
        )

    def _of_arrays(self, x: DistributedArray, forward: bool) -> DistributedArray:
        dtype = numpy_dtype(x.local)
        before, after = (self.element, self.element_out) if forward else (self.element_out, self.element)
        layout = self._layout(x, forward)
        result = np.result_type(self.dtype, dtype)
        out = DistributedArray.of(layout, empty(x.local, layout.local_shape, result), x._base_comm)
        key = (x.layout, dtype, forward)
        agree = key not in self._agreed
        x = DistributedArray.of(x.layout, namespace_of(x.local).contiguous(x.local), x._base_comm)
        source = to_field(x, of_kind(before, dtype.kind == "c"), self.boundary, self._lattice, agree)
        # a derived adjoint asks what lies beyond the edges of the field that it sets: what lay beyond those of x
        boundary = self.boundary if self.derives_adjoint and not forward else None
        element = of_kind(after, result.kind == "c")
        self._run(forward, to_field(out, element, boundary, source.lattice, agree), source)
        self._agreed.add(key)
        return out


def of_kind(element: Element, is_complex: bool) -> Element:
    """An element of the same shape, of complex or of real numbers."""
    kind, shape = "complex" if is_complex else "real", element.type.shape
    if element.type.kind == kind or element.spinor:
        return element
    if not shape:
        return Complex() if is_complex else Real()
    return Vector(shape[0], kind) if len(shape) == 1 else Matrix(shape[0], shape[1], kind)
