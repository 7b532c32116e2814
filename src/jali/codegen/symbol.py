"""What all symbols have in common: they have no value while a function is traced, and uses of one by Python or NumPy
raise an error."""

from __future__ import annotations

import difflib
import operator
from typing import Any

import numpy as np

from jali.codegen.lines import trace_error
from jali.errors import TraceError
from jali.files import value_shown


class Symbol:
    """What symbols have in common: Python and NumPy cannot read their values; attempts raise an error at the user's
    line."""

    __slots__ = ()

    def advice(self) -> str:
        """What the user should write instead of using this as a number."""
        raise AssertionError(f"{type(self).__name__} gives no advice")

    def _no(self, what: str) -> TraceError:
        return trace_error(f"{what}: {self.advice()}")

    def __getattr__(self, name: str) -> Any:
        # An AttributeError, as hasattr() expects; inside a site function it is reported at its line.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        names = [n for n in dir(type(self)) if not n.startswith("_") and n not in _INNER]
        close = [_MEANT[name]] if _MEANT.get(name, "").strip("()") in names else None
        close = close or difflib.get_close_matches(name, names, 1)
        hint = f"did you mean .{close[0]}?" if close else f"it has {', '.join(names)}"
        if name in ("uniform", "gaussian", "integers"):
            hint = "random numbers come from a jali.Random(seed) that is given as an argument"
        elif isinstance(self, WithoutValue) and not close:
            hint = self.advice()
        raise AttributeError(f"{self!r} has no attribute {name}; {hint}")

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._no(f"the format {value_shown(spec)} needs a value")
        return repr(self)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self._no("symbols cannot be pickled")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self._no(
            "NumPy cannot make an array of symbols, which have no values yet, nor index one by them (an array that is an argument is a "
            "table that can be)"
        )

    def __array_function__(self, function: Any, *_: Any) -> Any:
        raise self._no(_instead_of_numpy(function.__name__))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Operators of NumPy numbers and arrays with symbols arrive here; NumPy's functions are refused."""
        operation = _OPERATORS.get(ufunc)
        if operation is None or method != "__call__" or options:
            raise self._no(_instead_of_numpy(ufunc.__name__))
        return operation(*(x if isinstance(x, Symbol) else self.lifted(x) for x in inputs))

    def lifted(self, number: Any) -> Any:
        """A number or array of NumPy as a symbol, for an operation with this one."""
        raise trace_error(self.advice())


_INNER = ("advice", "lifted", "node", "slot")
_MEANT = {
    "T": "transpose()",
    "H": "dagger()",
    "adj": "dagger()",
    "adjoint": "dagger()",
    "conjugate": "conj()",
    "inv": "inverse()",
    "tr": "trace()",
    "determinant": "det()",
    "logdet": "log_det()",
    "diag": "diagonal()",
    "flatten": "reshape()",
    "ravel": "reshape()",
    "norm": "norm2()",
    "re": "real",
    "im": "imag",
}
_OPERATORS = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.matmul: operator.matmul,
    np.true_divide: operator.truediv,
    np.power: operator.pow,
    np.remainder: operator.mod,
    np.floor_divide: operator.floordiv,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
}
_JALIS = {
    **{
        name: f"jali.{name}(x)"
        for name in [
            "exp",
            "log",
            "sqrt",
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "tanh",
            "floor",
            "ceil",
            "round",
            "sign",
        ]
    },
    **{f"arc{name}": f"jali.a{name}(x)" for name in ("sin", "cos", "tan")},
    **dict.fromkeys(("rint", "round", "round_", "around"), "jali.round(x)"),
    "angle": "jali.arg(z)",
    "arctan2": "jali.atan2(y, x)",
    "absolute": "abs(x)",
    "minimum": "jali.minimum(x, y)",
    "maximum": "jali.maximum(x, y)",
    "where": "jali.where(condition, a, b)",
    "sum": "Python's sum(...)",
    "dot": "a * b, or v.dot(w)",
    "vdot": "v.dot(w)",
    "inner": "v.dot(w)",
    "outer": "v.outer(w)",
    "trace": "m.trace()",
    "transpose": "m.transpose()",
    "det": "m.det()",
    "inv": "m.inverse()",
    "cholesky": "h.cholesky()",
    "solve": "h.solve(b), h Hermitian and positive definite, or m.inverse() * b",
    "slogdet": "h.log_det()",
    "stack": "jali.stack([a, b])",
    "concatenate": "jali.concatenate([a, b])",
    "reshape": "a.reshape(n, m)",
    "diagonal": "m.diagonal()",
    "diag": "m.diagonal(), or jali.diagonal(v)",
    "conjugate": "x.conj()",
    "real": "x.real",
    "imag": "x.imag",
    "norm": "jali.sqrt(v.norm2())",
    "logical_and": "a & b",
    "logical_or": "a | b",
    "logical_not": "~a",
}


def _instead_of_numpy(name: str) -> str:
    hint = f"; write {_JALIS[name]}" if name in _JALIS else ""
    return f"NumPy's {name} does not take symbols{hint}"


def _refuse(symbol: Any, *_: Any) -> Any:
    """An operation with something that has no value."""
    raise trace_error(symbol.advice())


class WithoutValue(Symbol):
    """Sites, fields, sums and sources of random numbers: not numbers, and arithmetic with them raises an error."""

    __slots__ = ()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __pow__ = __rpow__ = __divmod__ = __rdivmod__ = __lshift__ = __rshift__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refuse
    __neg__ = __pos__ = __abs__ = __invert__ = __round__ = __trunc__ = __floor__ = __ceil__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __complex__ = __index__ = _refuse
    __getitem__ = __setitem__ = __delitem__ = __contains__ = __iter__ = _refuse
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        if other is None or isinstance(other, WithoutValue | str):
            return self is other
        _refuse(self)

    def __ne__(self, other: object) -> Any:
        return not self == other
