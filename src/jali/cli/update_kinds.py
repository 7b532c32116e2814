"""The update that `update.algorithm` of a parameter file names."""

from __future__ import annotations

from jali.cli.schema import HMC, RunParameters
from jali.cli.sweeps import Sweeps
from jali.cli.trajectories import Trajectories
from jali.cli.updates import Update


def update_kind(parameters: RunParameters) -> type[Update]:
    """The class of the update."""
    return Trajectories if parameters.update.algorithm == HMC else Sweeps
