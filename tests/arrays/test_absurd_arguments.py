"""Arguments of another kind, of whatever size, are short errors that say what they should be, and none is taken for something else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Layout, StackedDistributedArray, layout_of, load, save
from jali.errors import LayoutError, ParameterError

LONG = "x" * 100_000


def array() -> DistributedArray:
    return DistributedArray.to_dist(np.arange(12.0).reshape(4, 3))


def stack() -> StackedDistributedArray:
    return StackedDistributedArray([array(), array()])


def layout(**arguments: Any) -> Layout:
    return layout_of(comm.current(), **{"shape": (4, 3), **arguments})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: array().astype(LONG), r"\(100002 characters\) is no type of elements of numpy"),
        (lambda: array().astype("\udc80"), r"'\\udc80' is no type of elements of numpy"),
        (lambda: array().astype(np.zeros((9, 9))), "a numpy.ndarray of shape .* is no type of elements"),
        (lambda: array().sum(dtype="\udc80"), "is no type of elements that NumPy has"),
        (lambda: DistributedArray(4, dtype=LONG), "is no type of elements of numpy"),
        (lambda: DistributedArray(4, engine=["numpy"]), r"engine \['numpy'\] is none; there are numpy"),
        (lambda: array().as_engine({}), "engine {} is none"),
        (lambda: DistributedArray(2**70), r"extents below 2\^62, this one is \(1180591620717411303424,\)"),
        (lambda: DistributedArray(b"\x04"), "a global shape is a whole number or several, not b"),
        (lambda: DistributedArray(True), "a global shape is a whole number or several, not True"),
        (lambda: DistributedArray(4, grid=(True,)), r"a grid is a whole number or several, not \(True,\)"),
        (lambda: layout(mask=np.zeros((1, 9))), "a mask has a number for each of 1 rank, not a numpy.nd"),
        (lambda: layout_of(None, 4), "the ranks of a communicator of jali, not None"),
        (lambda: DistributedArray.of(3, np.zeros(3)), "one of jali.arrays.layout_of, not 3"),
        (lambda: array().to_field("Vector(3)"), r"one such as jali.Vector\(3\), not 'Vector\(3\)'"),
        (lambda: array().dot(array(), vdot="no"), "vdot is True or False, not 'no'"),
        (lambda: stack().dot(stack(), vdot=np.zeros(9)), "vdot is True or False, not a numpy.ndarray"),
        (lambda: array().asarray(masked="no"), "masked is True or False, not 'no'"),
        (lambda: load("x.npy", verify="no"), "verify is True or False, not 'no'"),
        (lambda: save("x.npy", array(), format=["npy"]), r"written and read as .*, not \['npy'\]"),
        (lambda: array().var(ddof="1"), "ddof is a number that is taken off .*, not '1'"),
        (lambda: array().std(ddof=math.nan), "ddof is a number that is taken off .*, not nan"),
        (lambda: array().transpose(1.5), "an order of axes has a whole number for each, not 1.5"),
        (lambda: array().ravel(LONG), "'C', 'F', 'A' or 'K', not 'x.*100002 characters"),
        (lambda: array().reshape(2**70), r"extents below 2\^62"),
        (lambda: array().reshape((6, 2), LONG), "axis 'x.*100002 characters. does not exist"),
        (lambda: array().norm(math.nan), "the order of a norm is a number, not nan"),
        (lambda: stack().norm(LONG), "the order of a norm is a number, not 'x"),
        (lambda: StackedDistributedArray(3), "several distributed arrays, not 3"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ParameterError, LayoutError), match=message) as caught:
        call()
    assert len(str(caught.value)) < 400


def test_shapes_may_be_numbers_of_numpy() -> None:
    for shape in (np.int64(4), np.array(4), np.array([4]), [np.uint8(4)], (n for n in [4])):
        assert DistributedArray(shape).global_shape == (4,)
