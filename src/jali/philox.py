"""Random numbers by global index: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC'11) of arrays of counters.

Every rank, in any order, draws the same number for an element: a counter is the global index of a site, a datum, or a wave
vector. Arrays may be of NumPy, CuPy or PyTorch, since words of 32 bits lie in signed ones of 64 here. `jali.Random` draws by
the same rounds in kernels; its counters hold more, so its numbers are others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of

WORD = (1 << 32) - 1
ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
PIECE = 1 << 18  # numbers that are computed at a time


def philox(counters: Sequence[Any], key: int) -> tuple[Any, Any, Any, Any]:
    """Four random words, from 0 to 2^32 - 1, for each counter.

    `counters` are four arrays of int64, or numbers, which are broadcast; of each the lowest 32 bits count, so negative indices are
    counters too. Of `key` 64 bits count.
    """
    a, b, c, d = (counter & WORD for counter in counters)
    first, second = key & WORD, key >> 32 & WORD
    for _ in range(ROUNDS):
        left, right = (
            a * MULTIPLIERS[0],
            c * MULTIPLIERS[1],
        )  # modulo 2^64, with a sign that the masks take away
        a = (right >> 32 & WORD) ^ b ^ first
        c = (left >> 32 & WORD) ^ d ^ second
        b, d = right & WORD, left & WORD
        first, second = first + WEYL[0] & WORD, second + WEYL[1] & WORD
    return a, b, c, d


def uniform(words: Any) -> Any:
    """Numbers in double precision, uniform in the open interval (0, 1), of which each word is one."""
    return (namespace_of(words).astype(words, np.float64) + 0.5) * 2.0**-32


def uniform_box(
    extents: Sequence[int],
    origin: Sequence[int],
    box: Sequence[int],
    shape: Sequence[int],
    dtype: Any,
    seed: int,
) -> np.ndarray:
    """Numbers uniform in (-1, 1) of a box of a lattice, `(*box, *shape)`, each of which belongs to a site and a component.

    `extents` are those of the whole, of which the box is a part from `origin` on; complex numbers have such real and imaginary parts. A uniform
    distribution takes no function whose last bit depends on where in an array a number lies.
    """
    extents, origin, box, shape = (tuple(map(int, one)) for one in (extents, origin, box, shape))
    if not box:  # one number is the only one of a line
        return uniform_box((1,), (0,), (1,), shape, dtype, seed).reshape(shape)
    dtype, found = np.dtype(dtype), np.empty((*box, *shape), dtype)
    component = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    rows = max(1, PIECE // max(1, math.prod(found.shape[1:])))
    for first in range(0, box[0], rows):
        site = np.zeros((1,) * len(box), np.int64)
        for axis, (begin, size, extent) in enumerate(zip(origin, box, extents, strict=True)):
            along = np.arange(begin, begin + size, dtype=np.int64)
            along = along[first : first + rows] if axis == 0 else along
            site = site * extent + along.reshape((1,) * axis + (-1,) + (1,) * (len(box) - axis - 1))
        site = site.reshape(site.shape + (1,) * len(shape))
        re, im, *_ = (2 * uniform(words) - 1 for words in philox((site, site >> 32, component, 0), seed))
        found[first : first + rows] = re + 1j * im if dtype.kind == "c" else re
    return found
