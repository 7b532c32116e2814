"""From links to a spectrum: sources, propagators, correlators and masses."""

from jali.hadrons.baryons import CHARGE, DIQUARK, PROJECTORS, Nucleon, nucleon
from jali.hadrons.contract import contract
from jali.hadrons.currents import pcac_mass
from jali.hadrons.masses import (
    EffectiveMass,
    Fit,
    Plateau,
    effective_mass,
    fit_correlator,
    fold,
    plateau,
    to_gvar,
    to_pyerrors,
)
from jali.hadrons.mesons import GAMMAS, MESONS, Mesons, mesons
from jali.hadrons.propagator_files import load_propagator, load_source, propagator_info, save_propagator
from jali.hadrons.sinks import wall_sink
from jali.hadrons.smearing import gaussian_smear, wuppertal_smear
from jali.hadrons.sources import noise_source, point_source, wall_source, with_momentum
from jali.hadrons.staggered import STAGGERED_MESONS, StaggeredMesons, staggered_mesons

__all__ = [
    "CHARGE",
    "DIQUARK",
    "GAMMAS",
    "MESONS",
    "PROJECTORS",
    "STAGGERED_MESONS",
    "EffectiveMass",
    "Fit",
    "Mesons",
    "Nucleon",
    "Plateau",
    "StaggeredMesons",
    "contract",
    "effective_mass",
    "fit_correlator",
    "fold",
    "gaussian_smear",
    "load_propagator",
    "load_source",
    "mesons",
    "noise_source",
    "nucleon",
    "pcac_mass",
    "plateau",
    "point_source",
    "propagator_info",
    "save_propagator",
    "staggered_mesons",
    "to_gvar",
    "to_pyerrors",
    "wall_sink",
    "wall_source",
    "with_momentum",
    "wuppertal_smear",
]
