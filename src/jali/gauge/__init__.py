"""Lattice gauge theory: U(1) and SU(n) in two and more dimensions, written in the site language.

For example::

    U = GaugeField(jali.Lattice(8, 8, 8, 8), SU(3)).hot_start(seed=1)
    rng = jali.Random(2)
    for _ in range(100):
        sweep(U, 5.7, rng)
    print(plaquette(U))
"""

from jali.codegen.types import SU, Algebra
from jali.gauge.actions import WilsonAction
from jali.gauge.clover import (
    FieldStrength,
    energy_density,
    field_strength,
    measure_field_strength,
    topological_charge,
)
from jali.gauge.field import GaugeField
from jali.gauge.flow import Flow, FlowPoint, reference_time, reference_width, wilson_flow
from jali.gauge.literature import Reference, plaquette_reference
from jali.gauge.loops import wilson_loop, wilson_loops
from jali.gauge.markov_chain import Measurement, simulate
from jali.gauge.observables import (
    link_trace,
    plaquette,
    plaquettes,
    polyakov_lines,
    polyakov_loop,
)
from jali.gauge.plaquettes import plaquette_trace
from jali.gauge.smearing import ape_smear, stout_smear
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
    "Algebra",
    "FieldStrength",
    "Flow",
    "FlowPoint",
    "GaugeField",
    "Measurement",
    "Reference",
    "WilsonAction",
    "ape_smear",
    "energy_density",
    "exhausted_attempts",
    "field_strength",
    "heat_bath_sweep",
    "link_trace",
    "measure_field_strength",
    "metropolis_sweep",
    "overrelaxation_sweep",
    "plaquette",
    "plaquette_reference",
    "plaquette_trace",
    "plaquettes",
    "polyakov_lines",
    "polyakov_loop",
    "reference_time",
    "reference_width",
    "simulate",
    "staple",
    "staple_sum",
    "stout_smear",
    "sweep",
    "topological_charge",
    "wilson_flow",
    "wilson_loop",
    "wilson_loops",
]
