"""Deviation from the group and the way back."""

import numpy as np
import pytest
from handmade import random_links

from jali.io import reunitarise, unitarity_deviation


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_group_elements_deviate_by_rounding_only_and_stay(n) -> None:
    links = random_links((2, 3, 2, 2), n)
    assert unitarity_deviation(links) < 1e-14
    assert np.abs(reunitarise(links) - links).max() < (1e-14 if n > 1 else 1e-15)


def test_deviation_is_the_largest_element_of_u_u_dagger_minus_one() -> None:
    links = random_links((4, 4, 4, 4))
    links[3, 2, 1, 0, 2] *= 1.001
    assert unitarity_deviation(links) == pytest.approx(1.001**2 - 1, abs=1e-12)
    assert unitarity_deviation(links[:0]) == 0.0


@pytest.mark.parametrize("n", [2, 3, 4])
def test_reunitarised_matrices_are_special_unitary_and_near(n) -> None:
    links = random_links((3, 2, 2, 3), n)
    noise = np.random.default_rng(1).normal(size=links.shape) * 1e-4
    result = reunitarise(links + noise)
    assert unitarity_deviation(result) < 1e-14
    assert np.abs(np.linalg.det(result) - 1).max() < 1e-14
    assert np.abs(result - links).max() < 2e-3


def test_single_precision_stays_single_precision() -> None:
    links = random_links((2, 2, 2, 2)).astype(np.complex64)
    result = reunitarise(links)
    assert result.dtype == np.complex64
    assert unitarity_deviation(result) < 3e-7
