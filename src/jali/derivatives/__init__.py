"""Derivatives of site functions and of calls in a row."""

from jali.derivatives.functions import adjoint, conjugate, gradient, pullback, tangent, transpose
from jali.derivatives.tape import Tape
from jali.derivatives.totals import Total

__all__ = ["Tape", "Total", "adjoint", "conjugate", "gradient", "pullback", "tangent", "transpose"]
