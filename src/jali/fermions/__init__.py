"""Fermions: gamma matrices that act on spinors inside site functions, and Dirac operators."""

from jali.fermions.applications import Adjoint, Applications
from jali.fermions.bases import from_basis, to_basis
from jali.fermions.clover import CloverDirac, clover_blocks_at
from jali.fermions.dirac import Dirac
from jali.fermions.domain_wall import DomainWallDirac
from jali.fermions.even_odd import EvenOdd
from jali.fermions.fat_links import (
    FAT7,
    HISQ_LEVEL_2,
    HISQLinks,
    PathCoefficients,
    asqtad_coefficients,
    asqtad_links,
    fatten,
    hisq_epsilon,
    hisq_links,
    long_links,
    unitary_links,
)
from jali.fermions.laplace import Laplace
from jali.fermions.schwarz import CutDirac, SchwarzBlocks
from jali.fermions.spin import SpinMatrix, gamma, gamma5, project, reconstruct
from jali.fermions.staggered import HISQ, Asqtad, ImprovedStaggered, Staggered, staggered_phase_at
from jali.fermions.twisted_mass import TwistedCloverDirac, TwistedMassDirac
from jali.fermions.wilson import WilsonDirac, wilson_at, wilson_hop_at

__all__ = [
    "FAT7",
    "HISQ",
    "HISQ_LEVEL_2",
    "Adjoint",
    "Applications",
    "Asqtad",
    "CloverDirac",
    "CutDirac",
    "Dirac",
    "DomainWallDirac",
    "EvenOdd",
    "HISQLinks",
    "ImprovedStaggered",
    "Laplace",
    "PathCoefficients",
    "SchwarzBlocks",
    "SpinMatrix",
    "Staggered",
    "TwistedCloverDirac",
    "TwistedMassDirac",
    "WilsonDirac",
    "asqtad_coefficients",
    "asqtad_links",
    "clover_blocks_at",
    "fatten",
    "from_basis",
    "gamma",
    "gamma5",
    "hisq_epsilon",
    "hisq_links",
    "long_links",
    "project",
    "reconstruct",
    "staggered_phase_at",
    "to_basis",
    "unitary_links",
    "wilson_at",
    "wilson_hop_at",
]
