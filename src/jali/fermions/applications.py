"""Applications of an operator on fields, of its adjoint and of both, and numbers that the last kernel of each gives beside.

Dirac operators and their even-odd forms are alike here: they say by which kernel an application ends.
"""

from __future__ import annotations

from typing import Any

from jali.beside import made_of, redefines
from jali.errors import LayoutError
from jali.fermions.kept import KeptFields
from jali.fermions.parameters import RealParameter
from jali.lattice.algebra import inner, sum_of_members
from jali.lattice.field import Field
from jali.lattice.fused_sums import apply_inner
from jali.lattice.sites import SiteFunction


class Applications:
    """An operator M on fields.

    `M @ psi` and `apply(psi, out)` are M psi, `M.dagger @ psi` and `adjoint` M^dagger psi, `normal` is M^dagger M psi, Hermitian and positive, for
    `jali.solvers.cg`; results are written into `out`, or into a new field. `matvec` and `rmatvec` make it an operator for `jali.solvers`. Methods
    that end in `_inner` and `_norm2` also return the inner product of psi and the result, or of the result with itself, from the kernel
    that writes it, with `wait=False` as a `Scalar`; solvers find them. Where members of a batch are joined these are numbers, else arrays.
    """

    joins_members = False
    solver_kind = "adjoint"  # what solvers may count on (`jali.solve`): "positive", "hermitian" or neither

    def __init__(self) -> None:
        self._kept = KeptFields()

    @property
    def changing_numbers(self) -> tuple[Any, ...]:
        """Numbers that may be given other values, such as the mass, as they are now: graphs of solvers keep those that they were recorded with."""
        kinds = [(name, value) for kind in type(self).__mro__ for name, value in vars(kind).items()]
        return tuple(getattr(self, name) for name, value in kinds if isinstance(value, RealParameter))

    # ---- what an operator says ---------------------------------------------------------------------------

    def _application(self, psi: Field, dagger: bool) -> tuple[SiteFunction, tuple[Any, ...]]:
        """The last kernel of M psi, or of M^dagger psi, and what it takes behind its result; those in front of it have run."""
        raise NotImplementedError

    def _acted_on(self, psi: Any) -> None:
        """Raises LayoutError for what M does not act on."""
        raise NotImplementedError

    def _out(self, psi: Field, out: Field | None) -> Field:
        """The field that a result is written to. Raises LayoutError."""
        raise NotImplementedError

    # ---- applications ------------------------------------------------------------------------------------

    def apply(self, psi: Field, out: Field | None = None) -> Field:
        """M psi."""
        return self._run(psi, out, False)

    def adjoint(self, psi: Field, out: Field | None = None) -> Field:
        """M^dagger psi."""
        return self._run(psi, out, True)

    def normal(self, psi: Field, out: Field | None = None) -> Field:
        """M^dagger M psi."""
        return self.adjoint(self._applied(psi), out)

    @made_of("apply", "adjoint", "_run")
    def normal_inner(self, psi: Field, out: Field | None = None, wait: bool = True) -> tuple[Field, Any]:
        """M^dagger M psi, and its inner product with psi, which is real. Where a subclass has another M^dagger there are two kernels."""
        if out is psi:
            raise LayoutError(
                "the result stands beside psi, with which its inner product is: it needs a field other than the source"
            )
        between = self._applied(psi)
        if redefines(self, Applications, "adjoint", "_run"):
            out = self.adjoint(between, out)
            return out, self.of_one_vector(inner(psi, out, wait=wait).real)
        return self._with_number(between, out, True, psi, wait, real=True)

    @made_of("_run")
    def apply_inner(self, psi: Field, out: Field | None = None, wait: bool = True) -> tuple[Field, Any]:
        """M psi, and its inner product with psi."""
        return self._with_number(psi, out, False, psi, wait)

    @made_of("_run")
    def apply_norm2(self, psi: Field, out: Field | None = None, wait: bool = True) -> tuple[Field, Any]:
        """M psi, and its inner product with itself."""
        return self._with_number(psi, out, False, None, wait, real=True)

    @made_of("_run")
    def adjoint_norm2(self, psi: Field, out: Field | None = None, wait: bool = True) -> tuple[Field, Any]:
        """M^dagger psi, and its inner product with itself."""
        return self._with_number(psi, out, True, None, wait, real=True)

    def matvec(self, psi: Field) -> Field:
        """M psi, in a new field."""
        return self.apply(psi)

    def rmatvec(self, psi: Field) -> Field:
        """M^dagger psi, in a new field."""
        return self.adjoint(psi)

    @made_of("apply", "_run")
    def matvec_into(self, psi: Field, out: Field) -> None:
        """M psi into a field."""
        self.apply(psi, out)

    @made_of("adjoint", "_run")
    def rmatvec_into(self, psi: Field, out: Field) -> None:
        """M^dagger psi into a field."""
        self.adjoint(psi, out)

    @made_of("apply", "_run")
    def matvec_inner(self, psi: Field, wait: bool = True) -> tuple[Field, Any]:
        """M psi, in a new field, and its inner product with psi."""
        return self.apply_inner(psi, None, wait)

    @made_of("apply", "_run")
    def matvec_norm2(self, psi: Field, wait: bool = True) -> tuple[Field, Any]:
        """M psi, in a new field, and its inner product with itself."""
        return self.apply_norm2(psi, None, wait)

    def __matmul__(self, psi: Field) -> Field:
        return self.apply(psi)

    @property
    def dagger(self) -> Adjoint:
        """M^dagger as an operator."""
        return Adjoint(self)

    def of_one_vector(self, number: Any) -> Any:
        """An inner product; where members of a batch are joined, and so are one vector, the sum of those of the members."""
        return sum_of_members(number) if self.joins_members else number

    # ---- its parts ---------------------------------------------------------------------------------------

    def _run(self, psi: Field, out: Field | None, dagger: bool) -> Field:
        out = self._result(psi, out)
        kernel, arguments = self._application(psi, dagger)
        kernel(out, *arguments)
        return out

    def _result(self, psi: Field, out: Field | None) -> Field:
        self._acted_on(psi)
        out = self._out(psi, out)
        if out.over is not psi.over:
            raise LayoutError(
                f"a result lives where its source does, on {psi.over}, and {out.name} on {out.over}"
            )
        return out

    def _with_number(
        self, psi: Field, out: Field | None, dagger: bool, p: Field | None, wait: bool, real: bool = False
    ) -> tuple[Field, Any]:
        """M psi or M^dagger psi, and its inner product with p, or with itself, or the `real` part of it."""
        out = self._result(psi, out)
        kernel, arguments = self._application(psi, dagger)
        number = apply_inner(kernel, p, out, *arguments, wait=wait, real=real)
        return out, self.of_one_vector(number)

    def _applied(self, psi: Field) -> Field:
        """M psi, in a field that is kept."""
        self._acted_on(psi)
        return self.apply(psi, self._kept.like("applied", psi, psi.over))


class Adjoint:
    """M^dagger of an operator M: `M.dagger @ psi`, and M itself is `M.dagger.dagger`."""

    def __init__(self, M: Applications):
        self._M = M

    def __repr__(self) -> str:
        return f"{self._M!r}.dagger"

    @property
    def dagger(self) -> Applications:
        """M."""
        return self._M

    @property
    def changing_numbers(self) -> tuple[Any, ...]:
        """Those of M."""
        return self._M.changing_numbers

    @property
    def joins_members(self) -> bool:
        """Whether M joins members of a batch, which then are one vector."""
        return self._M.joins_members

    def digest(self) -> Any:
        """That of M."""
        return self._M.digest()  # type: ignore[attr-defined]

    def apply(self, psi: Field, out: Field | None = None) -> Field:
        """M^dagger psi."""
        return self._M.adjoint(psi, out)

    def adjoint(self, psi: Field, out: Field | None = None) -> Field:
        """M psi."""
        return self._M.apply(psi, out)

    @property
    def solver_kind(self) -> str:
        """What solvers may count on, as of M."""
        return self._M.solver_kind

    def in_format(self, precision: Any = None, storage: str | None = None) -> Adjoint:
        """The adjoint of M in another format: see `Dirac.in_format`."""
        return Adjoint(self._M.in_format(precision, storage))  # type: ignore[attr-defined]

    def __matmul__(self, psi: Field) -> Field:
        return self.apply(psi)

    def matvec(self, psi: Field) -> Field:
        """M^dagger psi, in a new field."""
        return self._M.adjoint(psi)

    def rmatvec(self, psi: Field) -> Field:
        """M psi, in a new field."""
        return self._M.apply(psi)
