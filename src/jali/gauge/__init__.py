"""Lattice gauge theory: U(1) and SU(n) in two and more dimensions, written in the site language.

For example::

    U = GaugeField(jali.Lattice(8, 8, 8, 8), SU(3)).hot_start(seed=1)
    rng = jali.Random(2)
    for _ in range(100):
        sweep(U, 5.7, rng)
    print(plaquette(U))
"""

from jali.actions.protocol import Action
from jali.codegen.types import SU, Algebra
from jali.gauge.actions import (
    LoopAction,
    anisotropic_action,
    charge_action,
    clover_energy_action,
    dbw2_action,
    iwasaki_action,
    loop_action,
    rectangle_action,
    symanzik_action,
    tadpole_symanzik_action,
    wilson_action,
)
from jali.gauge.clover import (
    FieldStrength,
    energy_density,
    field_strength,
    measure_field_strength,
    topological_charge,
)
from jali.gauge.field import GaugeField
from jali.gauge.flow import Flow, FlowPoint, reference_time, reference_width, wilson_flow
from jali.gauge.gauge_fixing import GaugeFixing, coulomb_gauge, landau_gauge
from jali.gauge.groups import gaussian_algebra, haar_random, project
from jali.gauge.heatbath import heat_bath_link
from jali.gauge.higgs import adjoint_higgs_action, higgs_action, higgs_means
from jali.gauge.literature import Reference, plaquette_reference
from jali.gauge.loops import wilson_loop, wilson_loops
from jali.gauge.markov_chain import Measurement, simulate
from jali.gauge.metropolis import metropolis_link
from jali.gauge.observables import (
    link_trace,
    plaquette,
    plaquettes,
    polyakov_lines,
    polyakov_loop,
)
from jali.gauge.overrelaxation import overrelax_link
from jali.gauge.plaquettes import plaquette_trace
from jali.gauge.smearing import ape_smear, hyp_smear, stout_smear
from jali.gauge.staples import staple, staple_sum
from jali.gauge.updates import (
    exhausted_attempts,
    heat_bath_sweep,
    metropolis_sweep,
    overrelaxation_sweep,
    sweep,
)

__all__ = [
    "SU",
    "Action",
    "Algebra",
    "FieldStrength",
    "Flow",
    "FlowPoint",
    "GaugeField",
    "GaugeFixing",
    "LoopAction",
    "Measurement",
    "Reference",
    "adjoint_higgs_action",
    "anisotropic_action",
    "ape_smear",
    "charge_action",
    "clover_energy_action",
    "coulomb_gauge",
    "dbw2_action",
    "energy_density",
    "exhausted_attempts",
    "field_strength",
    "gaussian_algebra",
    "haar_random",
    "heat_bath_link",
    "heat_bath_sweep",
    "higgs_action",
    "higgs_means",
    "hyp_smear",
    "iwasaki_action",
    "landau_gauge",
    "link_trace",
    "loop_action",
    "measure_field_strength",
    "metropolis_link",
    "metropolis_sweep",
    "overrelax_link",
    "overrelaxation_sweep",
    "plaquette",
    "plaquette_reference",
    "plaquette_trace",
    "plaquettes",
    "polyakov_lines",
    "polyakov_loop",
    "project",
    "rectangle_action",
    "reference_time",
    "reference_width",
    "simulate",
    "staple",
    "staple_sum",
    "stout_smear",
    "sweep",
    "symanzik_action",
    "tadpole_symanzik_action",
    "topological_charge",
    "wilson_action",
    "wilson_flow",
    "wilson_loop",
    "wilson_loops",
]
