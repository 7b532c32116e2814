"""The operations of the site language, each described once (`jali.codegen.operation`), in files by idea.

`leaves` what is given, `conversions` components and kinds, `arithmetic`, `matrices`, `parts` of complex values, `groups`, `cholesky`
of Hermitian matrices, `elementary` functions, `choices` and comparisons, `integers`, `draws` of random numbers, `rejection_loops`,
`terms` of sums, `halo_items` that other ranks send. Importing this package puts all of them on the list.
"""

from jali.codegen.language import (
    arithmetic,
    choices,
    cholesky,
    conversions,
    draws,
    elementary,
    groups,
    halo_items,
    integers,
    leaves,
    matrices,
    parts,
    rejection_loops,
    terms,
)

__all__ = [
    "arithmetic",
    "choices",
    "cholesky",
    "conversions",
    "draws",
    "elementary",
    "groups",
    "halo_items",
    "integers",
    "leaves",
    "matrices",
    "parts",
    "rejection_loops",
    "terms",
]
