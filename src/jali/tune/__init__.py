"""The fastest of several implementations on this machine: measured, stored in a readable file, and explained.

There are two kinds of question. *launch*: how a kernel is compiled for and started on a device (`launch_config`). *halo*: by
which halo policy a kernel's halos travel. No answer changes a bit of any result.

Agreement of ranks (D9). A launch question is answered by each rank for itself and never communicates: its answer changes
nothing that another rank could see but time, and ranks may have parts of different sizes, or none. A halo question is asked by
all ranks together, at a launch that exchanges halos and is therefore collective: times are combined by their maximum over ranks
before anything is decided, so that all ranks decide alike, and a remembered answer counts only where all ranks remember the
same.

`JALI_TUNE` sets when to measure: see `MODES`. `experiment` sets such choices, and some that are never measured,
explicitly. `jali tune show` and `jali tune forget` read and empty the files.
"""

from jali.tune.autotuner import Autotuner, Impossible, alone, over_ranks
from jali.tune.entry import Candidate, Entry, Question
from jali.tune.experiment import experiment
from jali.tune.launch_config import DEFAULT_LAUNCH, LaunchConfig, room_for, variants_for
from jali.tune.store import Store, stores, tune_directory
from jali.tune.tuner import MODES, Tuner, mode, tuner_of

__all__ = [
    "DEFAULT_LAUNCH",
    "MODES",
    "Autotuner",
    "Candidate",
    "Entry",
    "Impossible",
    "LaunchConfig",
    "Question",
    "Store",
    "Tuner",
    "alone",
    "experiment",
    "mode",
    "over_ranks",
    "room_for",
    "stores",
    "tune_directory",
    "tuner_of",
    "variants_for",
]
