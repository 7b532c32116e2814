"""The vector protocol: the operations that solvers need, below arrays and solvers.

`Vectors` has the operations of one kind of vector: zeros, copies, inner products and fused updates. An entry of `VECTOR_KINDS`
tests whether it is for a vector; another kind of vector is one more entry (`register`). Here are lists of vectors and arrays of
NumPy, CuPy and PyTorch; `jali.lattice.vectors` adds fields, `jali.arrays.vectors` distributed arrays and stacks of them.
Solvers use nothing else of their vectors.
"""

from __future__ import annotations

import importlib

from jali.vectors.arrays import (
    ArrayVectors,
    TorchVectors,
    addable,
    assign,
    combined,
    factor_of,
    inner_by_library,
    type_in,
)
from jali.vectors.lists import ListVectors, list_like
from jali.vectors.protocol import Vectors, WithoutGraphs
from jali.vectors.registry import (
    LISTS,
    VectorKind,
    add,
    array_of,
    check_alike,
    is_list,
    like,
    random,
    register,
    vectors_of,
)
from jali.vectors.sums import each, summed, sums

add(
    VectorKind(LISTS, is_list, lambda x: ListVectors(), by_class=True),
    VectorKind(
        "CuPy array",
        array_of("cupy", "ndarray"),
        lambda x: ArrayVectors(importlib.import_module("cupy")),
        by_class=True,
    ),
    VectorKind(
        "PyTorch tensor",
        array_of("torch", "Tensor"),
        lambda x: TorchVectors(importlib.import_module("torch")),
        by_class=True,
    ),
    VectorKind(
        "NumPy array",
        array_of("numpy", "ndarray"),
        lambda x: ArrayVectors(importlib.import_module("numpy")),
        by_class=True,
    ),  # the last, since classes of other libraries may be heirs of it
)

__all__ = [
    "ArrayVectors",
    "ListVectors",
    "TorchVectors",
    "VectorKind",
    "Vectors",
    "WithoutGraphs",
    "addable",
    "assign",
    "check_alike",
    "combined",
    "each",
    "factor_of",
    "inner_by_library",
    "like",
    "list_like",
    "random",
    "register",
    "summed",
    "sums",
    "type_in",
    "vectors_of",
]
