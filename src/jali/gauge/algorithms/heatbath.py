"""Heat bath: every link drawn from its conditional distribution (`jali.gauge.heatbath`)."""

from jali.gauge.algorithms import Algorithm
from jali.gauge.updates import heat_bath_sweep

ALGORITHM = Algorithm("heat bath", heat_bath_sweep, by_subgroups=True)
