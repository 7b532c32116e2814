"""The numbers of the HiCCL paper that `paper.py` is held against, digitised from its figures (GB/s of p * d / t).

Reading errors: 0.2 GB/s for Delta, 0.7 for Perlmutter and Frontier, 1.4 for Aurora. None: no bar, or one too small to
read. The parameters are those of its Table 5; the stripe is the number of GPUs per node.
"""

from __future__ import annotations

MACHINES = ("delta", "perlmutter", "frontier", "aurora")
COLLECTIVES = (
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
)
READING_ERROR = {"delta": 0.2, "perlmutter": 0.7, "frontier": 0.7, "aurora": 1.4}

# Topology -> (factors, library per level); direct: one level.
PARAMETERS = {
    "delta": {
        "direct": ((16,), ("nccl",)),
        "tree": ((2, 2, 4), ("nccl", "nccl", "ipc")),
        "ring": ((4, 4), ("nccl", "ipc")),
    },
    "perlmutter": {
        "direct": ((16,), ("nccl",)),
        "tree": ((2, 2, 4), ("nccl", "nccl", "ipc")),
        "ring": ((4, 4), ("nccl", "ipc")),
    },
    "frontier": {
        "direct": ((32,), ("mpi",)),
        "tree": ((2, 2, 4, 2), ("mpi", "mpi", "ipc", "ipc")),
        "ring": ((4, 4, 2), ("mpi", "ipc", "ipc")),
    },
    "aurora": {
        "direct": ((48,), ("mpi",)),
        "tree": ((2, 2, 6, 2), ("mpi", "mpi", "ipc", "ipc")),
        "ring": ((4, 6, 2), ("mpi", "ipc", "ipc")),
    },
}

# Variant -> value per collective in the order above; "ring" variants exist for broadcast and reduce only.
FIGURE_8: dict[str, dict[str, tuple[float | None, ...]]] = {
    "delta": {
        "mpi": (0.8, 0.5, 2.7, 3.9, 1.3, 1.2, 0.5, 1.3),
        "vendor": (13.2, 13.2, None, None, 14.2, 13.9, 7.1, None),
        "direct": (2.0, 2.2, 28.3, 28.3, 5.1, 4.9, 2.5, 4.9),
        "hierarchical ring": (6.2, 5.9, None, None, None, None, None, None),
        "hierarchical": (9.5, 8.3, 29.6, 31.3, 19.3, 19.1, 9.5, 4.7),
        "striped ring": (8.6, 7.6, None, None, None, None, None, None),
        "striped": (11.5, 11.0, None, None, None, None, None, None),
        "pipelined ring": (15.2, 14.9, None, None, None, None, None, None),
        "pipelined": (11.8, 11.2, 31.8, 31.8, 18.8, 19.5, 9.3, 4.5),
    },
    "perlmutter": {
        "mpi": (6.0, 0.6, 4.6, 4.0, 20.2, 1.9, 14.1, 11.4),
        "vendor": (69.0, 67.0, None, None, 78.5, 77.9, 39.9, None),
        "direct": (1.9, 1.9, 31.8, 31.8, 16.2, 16.2, 8.0, 16.2),
        "hierarchical ring": (7.3, 6.7, None, None, None, None, None, None),
        "hierarchical": (10.1, 9.4, 94.8, 94.1, 77.2, 71.1, 37.2, 18.2),
        "striped ring": (26.3, 25.0, None, None, None, None, None, None),
        "striped": (37.2, 34.5, None, None, None, None, None, None),
        "pipelined ring": (72.4, 68.4, None, None, None, None, None, None),
        "pipelined": (45.3, 43.3, 122.6, 120.6, 85.3, 80.6, 41.2, 19.5),
    },
    "frontier": {
        "mpi": (4.3, None, 17.3, 14.6, 24.8, 1.6, 0.9, 11.2),
        "vendor": (35.1, 35.7, None, None, 37.8, 37.8, 22.1, None),
        "direct": (0.9, 0.9, 32.3, 30.3, 7.7, 5.7, 3.6, 6.4),
        "hierarchical ring": (4.3, 5.0, None, None, None, None, None, None),
        "hierarchical": (5.7, 6.4, 87.6, 53.5, 40.5, 38.5, 18.0, 9.8),
        "striped ring": (22.8, 19.3, None, None, None, None, None, None),
        "striped": (22.8, 20.0, None, None, None, None, None, None),
        "pipelined ring": (48.0, 43.3, None, None, None, None, None, None),
        "pipelined": (46.0, 39.2, 126.6, 110.9, 76.7, 61.7, 36.4, 11.2),
    },
    "aurora": {
        "mpi": (6.4, None, None, 2.3, 10.5, None, None, 6.4),
        "vendor": (1.0, 10.5, None, None, 15.9, 2.3, 14.6, None),
        "direct": (None, None, 16.8, 19.6, 5.9, 5.9, 3.2, 5.9),
        "hierarchical ring": (5.9, 4.6, None, None, None, None, None, None),
        "hierarchical": (8.7, 8.7, 113.8, 122.0, 59.2, 53.7, 30.5, 4.6),
        "striped ring": (31.9, 27.8, None, None, None, None, None, None),
        "striped": (45.5, 37.3, None, None, None, None, None, None),
        "pipelined ring": (74.2, 59.2, None, None, None, None, None, None),
        "pipelined": (64.7, 53.7, 161.6, 172.6, 98.8, 63.3, 38.7, 7.3),
    },
}
VARIANTS = (
    "direct",
    "hierarchical ring",
    "hierarchical",
    "striped ring",
    "striped",
    "pipelined ring",
    "pipelined",
)
