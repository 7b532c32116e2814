"""From links to a spectrum: sources, propagators, correlators and masses."""

from jali.hadrons.baryons import CHARGE, DIQUARK, PROJECTORS, Nucleon, nucleon
from jali.hadrons.contract import contract
from jali.hadrons.currents import pcac_mass
from jali.hadrons.mesons import GAMMAS, MESONS, Mesons, mesons
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
    "Mesons",
    "Nucleon",
    "StaggeredMesons",
    "contract",
    "gaussian_smear",
    "mesons",
    "noise_source",
    "nucleon",
    "pcac_mass",
    "point_source",
    "staggered_mesons",
    "wall_sink",
    "wall_source",
    "with_momentum",
    "wuppertal_smear",
]
