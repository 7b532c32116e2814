"""Files: gauge configurations in the community's formats, checkpoints of any fields, and arrays that NumPy and h5py read.

Formats are recognised by content; every rank reads and writes only its own box; checksums are verified by
default; files appear under their names only when complete. Does not depend on fields, lattices or MPI: data
are NumPy arrays on a `Box`, and ranks are any object with the interface of `RankGroup`.
"""

from .arrays import ArrayFile, open_arrays, write_arrays
from .boxes import Box
from .checkpoint import Checkpoint, open_checkpoint, write_checkpoint
from .configuration import ConfigurationFile, open_configuration, recognise
from .ensemble import SavedConfiguration, saved_configurations
from .formats.ildg import write_ildg
from .formats.nersc import write_nersc
from .parallel import RankGroup, SingleRank
from .unitarity import reunitarise, unitarity_deviation

__all__ = [
    "ArrayFile",
    "Box",
    "Checkpoint",
    "ConfigurationFile",
    "RankGroup",
    "SavedConfiguration",
    "SingleRank",
    "open_arrays",
    "open_checkpoint",
    "open_configuration",
    "recognise",
    "reunitarise",
    "saved_configurations",
    "unitarity_deviation",
    "write_arrays",
    "write_checkpoint",
    "write_ildg",
    "write_nersc",
]
