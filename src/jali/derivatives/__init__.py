"""Derivatives of site functions and of calls in a row."""

from jali.derivatives.functions import adjoint, conjugate, gradient, pullback, tangent, transpose

__all__ = ["adjoint", "conjugate", "gradient", "pullback", "tangent", "transpose"]
