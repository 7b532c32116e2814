"""Pictures of distributed arrays show which rank has what."""

from __future__ import annotations

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition
from jali.errors import ShapeError

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from jali.arrays.plotting import plot_distributed_array, plot_local_arrays  # noqa: E402


@pytest.fixture(autouse=True)
def close_figures() -> object:
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
def test_owners_of_elements_are_drawn(axis: object) -> None:
    def program() -> tuple[int, object, np.ndarray]:
        x = DistributedArray((7, 10), axis=axis)  # type: ignore[arg-type]
        # One thread at a time: pyplot is not for several.
        found = None
        for rank in range(4):
            if rank == x.rank:
                found = np.array(plot_distributed_array(x).axes[0].images[0].get_array())
            x.communicator.barrier()
        return x.rank, x.layout.box, found

    for rank, box, drawn in comm.virtual_ranks(4, program):
        assert drawn.shape == (7, 10)
        assert np.all(drawn[tuple(slice(*ends) for ends in box)] == rank)
        assert np.count_nonzero(drawn == rank) == np.prod([end - begin for begin, end in box])


def test_arrays_that_all_have_are_of_one_color_and_vectors_are_columns() -> None:
    image = plot_distributed_array(DistributedArray((5, 3), partition=Partition.BROADCAST)).axes[0].images[0]
    assert np.all(image.get_array() == 0)
    assert plot_distributed_array(DistributedArray(6)).axes[0].images[0].get_array().shape == (6, 1)


def test_parts_are_drawn_beside_each_other_with_one_scale() -> None:
    whole = np.arange(35.0).reshape(7, 5)
    drawn: list[tuple[list[np.ndarray], set[tuple[float, float]], str]] = []

    def program() -> None:
        x = DistributedArray.to_dist(whole)
        if x.rank != 0:
            x.asarray()  # it is collective, and pyplot is not for several threads
            return
        figure = plot_local_arrays(x, "parts")
        images = [image for axes in figure.axes for image in axes.images]
        values = [np.array(image.get_array()) for image in images]
        drawn.append((values, {image.get_clim() for image in images}, figure.get_suptitle()))

    comm.virtual_ranks(3, program)
    ((parts, scales, title),) = drawn
    assert np.array_equal(np.concatenate(parts), whole)
    assert [len(part) for part in parts] == [3, 2, 2]
    assert scales == {(0.0, 34.0)}
    assert title == "parts"


def test_limits_are_those_given_and_other_dimensions_are_refused() -> None:
    x = DistributedArray.to_dist(np.arange(12.0).reshape(3, 4) * (1 + 1j))
    image = plot_local_arrays(x, vmin=-1, vmax=50).axes[0].images[0]
    assert image.get_clim() == (-1, 50)
    assert np.array_equal(image.get_array(), np.arange(12.0).reshape(3, 4))
    with pytest.raises(ShapeError, match=r"not of shape \(2, 3, 4\)"):
        plot_distributed_array(DistributedArray((2, 3, 4)))
    with pytest.raises(ShapeError, match="plot_local_arrays"):
        plot_local_arrays(DistributedArray((2, 3, 4)))
