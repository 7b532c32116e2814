"""Take noise from a volume: the x that is near y and has small second derivatives:

    (1 + L^H L / 10) x = y

reads y from noisy.npy and writes x to smooth.npy, both flat.
"""

import sys

from jali.arrays import load, save
from jali.linops import Identity, Laplacian

dims = tuple(map(int, sys.argv[1:4]))
y = load("noisy.npy")
L = Laplacian(dims, axes=(0, 1, 2), weights=(1, 1, 1), sampling=(1, 1, 1))
A = Identity(len(y)) + 0.1 * (L.H @ L)
x = A / y
save("smooth.npy", x)
