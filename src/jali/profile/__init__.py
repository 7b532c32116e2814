"""What a program does with its time: spans of kernels, halos, collectives and waits, beside the roofs of the machine.

    with jali.profile.recording() as r:
        sweep(U, 5.7, rng)
    print(r.table())
    r.write_trace("trace.json")  # for ui.perfetto.dev

`jali profile PARAMETERS.toml` does it for the sweeps of a simulation.
"""

from jali.profile.load import Load, LoadMeter, loads
from jali.profile.marks import benchmark, benchmarks, mark
from jali.profile.recording import Recording, recording
from jali.profile.roofs import Roofs, measure_roofs
from jali.profile.spans import COMPUTING, PHASES, Span
from jali.profile.table import Overlap, ProfileEntry, Table, make_table
from jali.profile.trace import trace_events

__all__ = [
    "COMPUTING",
    "PHASES",
    "Load",
    "LoadMeter",
    "Overlap",
    "ProfileEntry",
    "Recording",
    "Roofs",
    "Span",
    "Table",
    "benchmark",
    "benchmarks",
    "loads",
    "make_table",
    "mark",
    "measure_roofs",
    "recording",
    "trace_events",
]
