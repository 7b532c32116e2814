"""Arrays of numbers on a device have the bits of the host, in graphs too, whatever number of threads a block has."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from ptx import ptx_text
from shadow import assert_same_bits

import jali
from jali import Complex, Field, Lattice, Real
from jali._core import gpu_prelude
from jali.codegen import kernel_cache
from jali.codegen.number_array_kernels import matrix_kernel
from jali.errors import LayoutError
from jali.lattice.scalar_array_kernels import elements_of

# of the prelude: results, matrices, and whether the matrix is Hermitian
FUNCTIONS = {
    "sums": (1, 2, False),
    "multiply": (1, 2, False),
    "cholesky": (1, 1, True),
    "log_det": (1, 1, True),
    "solve": (1, 2, False),
    "qr": (2, 1, False),
    "eigh": (2, 1, True),
}


def values(shape, kind, seed=1):
    rng = np.random.default_rng(seed)
    found = rng.normal(size=shape)
    return found if kind == "real" else found + 1j * rng.normal(size=shape)


def results_of(lattice, n, kind):
    """What there is of arrays, in arrays of NumPy."""
    m, v, s = lattice.scalars(values((n, n), kind)), lattice.scalars(values(n, kind, 2)), lattice.scalar(0.75)
    h = m @ m.dagger()
    made = [h, m + v, s * m, m / v, 1 / m, m**3, jali.exp(m), abs(m), m.T[::-1, 0], m.conj().imag]
    made += [
        jali.where(abs(m) < s, m, 2),
        (abs(m) < 1) & ~(m == v),
        jali.atan2(m.real, v.real),
        jali.sin(m.real),
    ]
    made += [
        h.cholesky(),
        h.log_det(),
        (-h).cholesky(),
        m.solve(v),
        m.inverse(),
        *m.qr(),
        *h.eigh(),
        h.trace(),
    ]
    made += [
        m.sum(),
        m.sum(0),
        m.sum(1),
        m @ v,
        v @ v,
        (m.T[::-1] @ m[1:].T),
        jali.stack([m[0, 0], s, 2.0]),
        jali.stack([v, v], 1),
    ]
    return jali.read(*made)


@pytest.mark.short(1)
@pytest.mark.parametrize("kind", ["complex", "real"])
def test_bits_are_those_of_the_host(kind, device):
    for n in (2, 7, 16):
        found, expected = (results_of(Lattice(2, device=where), n, kind) for where in (device, "cpu"))
        for k, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same_bits(np.asarray(one), np.asarray(other), f"result {k}, order {n}")


def test_large_arrays_and_memory_that_is_used_again(device):
    lattice = Lattice(2, device=device)
    m = values((64, 64), "complex")
    a = lattice.scalars(m)
    for k in range(20):
        b = a * k
        assert np.array_equal(b.read(), m * k)
    assert np.array_equal(a.read(), m)
    assert complex(b[63, 62]) == m[63, 62] * 19


def test_sums_of_fields_meet_arrays(device):
    @jali.site_function
    def moments(X, f, first, second):
        first += f[X]
        second += f[X] * f[X]

    found = []
    for where in ("cpu", device):
        lattice = Lattice(4, 4, device=where)
        f = Field(lattice, Real())
        f[...] = values((4, 4), "real")
        gram = jali.stack([jali.stack([*lattice.sum(moments, f, wait=False)]), lattice.scalars([0.5, 3.0])])
        factor = (gram @ gram.T).cholesky()

        @jali.site_function
        def scale(X, f, m, s):
            f[X] = (m @ m)[0, 1] * f[X] + s

        scale(f, factor.T, factor[1, 0])
        m = lattice.scalars(values((4, 4), "real"))

        def step(f=f, m=m, scale=scale):
            scale(f, m[:2, 1:3], 0.5)
            m.assign(m / 2)

        jali.graph(step, lattice).run(3)
        found.append([factor.read(), f[...]])
    for one, other in zip(*found, strict=True):
        assert_same_bits(one, other, "factor")


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_repetitions_of_graphs_are_calls(kind, device):
    found = []
    for where, recorded in (("cpu", False), (device, False), (device, True)):
        lattice = Lattice(2, device=where)
        h = lattice.scalars(values((4, 4), kind))
        h = h @ h.dagger()
        v, n = lattice.scalars(values((4, 2), kind, 2)), lattice.scalar(0)

        def step(h=h, v=v, n=n):
            q, r = (h @ v).qr()
            w, _ = (q.dagger() @ (h @ q)).eigh()
            v.assign(q)
            n.assign(n + 1)
            return w, r[0, 0], (w > 1e9).any()

        if recorded:
            graph = jali.graph(step, lattice)
            assert float(n) == 0
            assert graph.run_until(graph.result[2], at_most=7, check_interval=2) == 7
            results = graph.read()
        else:
            for _ in range(7):
                made = step()
            results = jali.read(*made)
        found.append([*results, v.read(), float(n)])
    for other in found[1:]:
        for one, expected in zip(other, found[0], strict=True):
            assert_same_bits(np.asarray(one), np.asarray(expected), "after 7 steps")


@jali.site_function
def two_sums(X, f, z, first, second):
    first += f[X]
    second += z[X] * f[X]


@jali.site_function
def rescale(X, f, s):
    f[X] = f[X] / s


@jali.site_function
def gram(X, f, z, matrix, vector, number):
    v = jali.vector([f[X], z[X]])
    matrix += v.outer(v)
    vector += v
    number += f[X]


def sums_of_slices(lattice, recorded):
    """What three steps leave: sums of the last, an array that was carried, a field."""
    f, z = Field(lattice, Real()), Field(lattice, Complex())
    f[...], z[...] = values((4, 6), "real"), values((4, 6), "complex")
    total = lattice.scalars(np.zeros(4))

    def step():
        one, two = lattice.sum(two_sums, f, z, per=0, wait=False)
        again, _ = lattice.sum(two_sums, f, z, per=(1, 0), wait=False)
        matrix, vector, number = lattice.sum(gram, f, z, wait=False)
        total.assign(total + one + abs(two) + again.sum(0) + number + abs((matrix @ vector)[1]))
        rescale(f, jali.sqrt(abs(two).sum()))
        return two

    if recorded:
        graph = jali.graph(step, lattice)
        graph.run(3)
        return *graph.read(), total.read(), f[...]
    for _ in range(3):
        last = step()
    return last.read(), total.read(), f[...]


def test_sums_that_are_arrays_stay_in_graphs_too(device):
    found = [
        sums_of_slices(Lattice(4, 6, device=where), recorded)
        for where in ("cpu", device)
        for recorded in (False, True)
    ]
    for other in found[1:]:
        for one, expected in zip(other, found[0], strict=True):
            assert_same_bits(one, expected, "after 3 steps")


@jali.site_function
def weigh(X, f, m):
    f[X] = m[0, 1]


def test_arrays_of_two_places_do_not_meet(device):
    here, there = Lattice(2).scalars(np.eye(2)), Lattice(2, device=device).scalars(np.eye(2))
    scalar = Lattice(2, device=device).scalar(1.0)
    for refused in (
        lambda: here + there,
        lambda: here @ there,
        lambda: here.solve(there),
        lambda: here + scalar,
        lambda: scalar * here,
        lambda: here.assign(there),
        lambda: jali.stack([here[0], there[0]]),
        lambda: jali.stack([here[0, 0], scalar]),
        lambda: jali.read(here, there),
        lambda: weigh(Field(Lattice(2, device=device), Real()), here),
    ):
        with pytest.raises(LayoutError, match=r"do not meet|numbers of one device|read it with read\(\)"):
            refused()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_nvrtc_takes_the_functions_of_matrices(function, nvrtc):
    head = "#define JALI_LANES 1\n#define JALI_REAL double\n#define JALI_THREADS 128\n#define JALI_BLOCKS 1\n"
    for is_complex in (False, True):
        text = matrix_kernel(function, *FUNCTIONS[function][:2], is_complex, gpu=True)
        assert ".entry kernel" in ptx_text(nvrtc, head + gpu_prelude() + text)


THREADS = """
#include <pthread.h>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>
#define JALI_LANES 1
#define JALI_REAL double
%s
#define JALI_GPU 1
#define JALI_SHARED static
static thread_local int64_t thread;
static int64_t threads;
static pthread_barrier_t barrier;
JALI_INLINE int64_t thread_in_block() { return thread; }
JALI_INLINE int64_t threads_in_block() { return threads; }
static void meet() { pthread_barrier_wait(&barrier); }
%s

// A function of matrices by a block of so many threads.
template <class F>
std::vector<double> by_block(int64_t count, int n, int reals, bool hermitian, F function) {
    std::vector<double> a(reals * n * n), out(2 * reals * n * n);
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j)
            for (int c = 0; c < reals; ++c) {
                const int p = hermitian && i < j ? j : i, q = hermitian && i < j ? i : j;
                a[reals * (i * n + j) + c] = hermitian && i == j ? n + 3.0 : (7 * p + 13 * q + 5 * c) %% 19 / 19.0 - 0.4;
            }
    const uint64_t im = reals == 2 ? uint64_t(a.data() + 1) : 0;
    const given_matrix given = {a.data(), (const double*)im, n, n, reals * n, reals};
    const uint64_t one = uint64_t(out.data()), two = uint64_t(out.data() + reals * n * n);
    threads = count;
    pthread_barrier_init(&barrier, nullptr, unsigned(count));
    std::vector<std::thread> block;
    for (int64_t t = 0; t < count; ++t)
        block.emplace_back([&, t] {
            thread = t;
            function(kept_matrix{one, one}, kept_matrix{two, two}, given);
        });
    for (auto& t : block) t.join();
    pthread_barrier_destroy(&barrier);
    return out;
}

int main() {
    int different = 0;
    const auto check = [&](const char* name, int reals, bool hermitian, auto function) {
        for (int n : {1, 2, 5, 16}) {
            const auto expected = by_block(1, n, reals, hermitian, function);
            for (int64_t count : {3, 20}) {
                const auto found = by_block(count, n, reals, hermitian, function);
                if (std::memcmp(found.data(), expected.data(), sizeof(double) * found.size()) == 0) continue;
                std::printf("%%s of %%d reals, order %%d, differs with %%d threads\\n", name, reals, n, int(count));
                ++different;
            }
        }
    };
    %s
    return different;
}
"""


def test_bits_do_not_depend_on_the_threads_of_a_block(tmp_path):
    """The fake devices have one."""
    calls = []
    for name, (results, matrices, is_hermitian) in FUNCTIONS.items():
        terms = ["row" if name == "sums" else "given", "given"][:matrices]
        arguments = ", ".join(["one", "two"][:results] + terms)
        for reals, number in ((1, "real"), (2, "complex_lane")):
            body = f"[](kept_matrix one, kept_matrix two, given_matrix given) {{ auto row = given; row.rows = 1; {name}<{number}>({arguments}); }}"
            calls.append(f'check("{name}", {reals}, {str(is_hermitian).lower()}, {body});')
    dense = matrix_kernel("qr", 2, 1, False, gpu=True).split("struct arguments")[0]
    (tmp_path / "threads.cpp").write_text(THREADS % (kernel_cache.prelude(), dense, "\n    ".join(calls)))
    compiler = [
        "c++",
        "-std=c++20",
        "-O1",
        "-ffp-contract=off",
        "-pthread",
        "-w",
        "threads.cpp",
        "-o",
        "threads",
    ]
    subprocess.run(compiler, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "threads"], capture_output=True, text=True, timeout=300).stdout == ""


def test_a_program_of_elements_is_found_once():
    before = elements_of.cache_info().misses
    a = Lattice(2).scalars([1.0, 2.0])
    for k in range(5):
        a = a * a + k
    assert elements_of.cache_info().misses <= before + 2
