"""Random programs: operations that are defined for the types at hand, drawn one after the other.

Shared subexpressions are part of the draw; values are kept of order one, so that rounding stays small. `jali` itself or the NumPy
interpreter (`numpy_sites`) is the `J` of a step.
"""

from __future__ import annotations

from jali import Complex, Matrix, Real, Vector


def element_of(kind, shape):
    if not shape:
        return Real() if kind == "real" else Complex()
    return Vector(*shape, kind=kind) if len(shape) == 1 else Matrix(*shape, kind=kind)


class Generator:
    """Draws a program: a list of steps, each a function of (J, values so far), with the type of its result.

    `numbers` is a `random.Random` that decides everything.
    """

    def __init__(self, numbers):
        self.random = numbers
        self.n = self.random.choice([1, 2, 2, 3, 3, 4])
        self.steps = []
        self.types = []

    def pick(self, accept):
        """Index of a random value whose (kind, shape) is accepted; recent values are likelier."""
        found = [k for k, t in enumerate(self.types) if accept(*t)]
        if not found:
            return None
        return self.random.choice(found[-6:] if self.random.random() < 0.7 else found)

    def add(self, step, kind, shape):
        self.steps.append(step)
        self.types.append((kind, tuple(shape)))

    def grow(self):
        """Adds one value, if the drawn operation applies to something that is there."""
        getattr(self, "_" + self.random.choice(OPERATIONS))()

    def any(self):
        return self.pick(lambda kind, shape: True)

    def number(self):
        return self.pick(lambda kind, shape: kind == "real" and not shape)

    def scalar(self):
        return self.pick(lambda kind, shape: not shape)

    def square(self):
        return self.pick(lambda kind, shape: len(shape) == 2 and shape[0] == shape[1])

    def like(self, k):
        return self.pick(lambda kind, shape: shape == self.types[k][1])

    def join(self, *indices):
        return "complex" if any(self.types[k][0] == "complex" for k in indices) else "real"

    def _sum(self):
        a = self.any()
        b = self.like(a)
        sign = self.random.choice([1, -1])
        self.add(
            lambda J, v: 0.5 * (v[a] + v[b] if sign > 0 else v[a] - v[b]), self.join(a, b), self.types[a][1]
        )

    def _multiply_add(self):
        a = self.square()
        if a is None:
            return
        b, c = self.like(a), self.like(a)
        n = self.types[a][1][0]
        order = self.random.randrange(3)
        step = [
            lambda J, v: (v[c] + v[a] * v[b]) / (n + 1),
            lambda J, v: (v[a] * v[b] - v[c]) / (n + 1),
            lambda J, v: (v[c] - v[a].dagger() * v[b]) / (n + 1),
        ][order]
        self.add(step, self.join(a, b, c), self.types[a][1])

    def _scale(self):
        a, s = self.any(), self.scalar()
        if s is None:
            return
        flip = self.random.random() < 0.5
        self.add(lambda J, v: v[a] * v[s] if flip else v[s] * v[a], self.join(a, s), self.types[a][1])

    def _scaled_sum(self):
        a, s = self.any(), self.number()
        if s is None:
            return
        b = self.like(a)
        minus = self.random.random() < 0.5
        self.add(
            lambda J, v: 0.5 * v[b] - v[s] * v[a] if minus else v[s] * v[a] + 0.5 * v[b],
            self.join(a, b, s),
            self.types[a][1],
        )

    def _constant(self):
        a = self.any()
        z = self.random.choice([1, -1, 1j, -1j, 0.5, 0.5 - 0.5j, 2, -0.25])
        kind = "complex" if isinstance(z, complex) else self.types[a][0]
        self.add(lambda J, v: z * v[a], kind, self.types[a][1])

    def _product(self):
        a = self.pick(lambda kind, shape: len(shape) == 2)
        if a is None:
            return
        rows, inner = self.types[a][1]
        b = self.pick(lambda kind, shape: len(shape) > 0 and shape[0] == inner)
        if b is None:
            return
        self.add(lambda J, v: v[a] * v[b] / inner, self.join(a, b), (rows, *self.types[b][1][1:]))

    def _adjoint_product(self):
        a = self.pick(lambda kind, shape: len(shape) == 2)
        if a is None:
            return
        inner, rows = self.types[a][1]
        b = self.pick(lambda kind, shape: len(shape) == 2 and shape[0] == inner)
        if b is None:
            return
        self.add(lambda J, v: v[a].dagger() * v[b] / inner, self.join(a, b), (rows, self.types[b][1][1]))

    def _negative(self):
        a = self.any()
        self.add(lambda J, v: -v[a], *self.types[a])

    def _conj(self):
        a = self.any()
        self.add(lambda J, v: v[a].conj(), *self.types[a])

    def _dagger(self):
        a = self.pick(lambda kind, shape: len(shape) == 2)
        if a is not None:
            self.add(lambda J, v: v[a].dagger(), self.types[a][0], self.types[a][1][::-1])

    def _transpose(self):
        a = self.pick(lambda kind, shape: len(shape) == 2)
        if a is not None:
            self.add(lambda J, v: v[a].transpose(), self.types[a][0], self.types[a][1][::-1])

    def _trace(self):
        a = self.square()
        if a is not None:
            n = self.types[a][1][0]
            self.add(lambda J, v: v[a].trace() / n, self.types[a][0], ())

    def _trace_product(self):
        a = self.square()
        if a is None:
            return
        b = self.like(a)
        n = self.types[a][1][0]
        daggers = self.random.randrange(4)

        def step(J, v):
            x = v[a].dagger() if daggers & 1 else v[a]
            y = v[b].dagger() if daggers & 2 else v[b]
            return (x * y).trace().real / n**2

        self.add(step, "real", ())

    def _part(self):
        a = self.pick(lambda kind, shape: kind == "complex")
        if a is not None:
            imag = self.random.random() < 0.5
            self.add(lambda J, v: v[a].imag if imag else v[a].real, "real", self.types[a][1])

    def _determinant(self):
        a = self.square()
        if a is not None:
            self.add(lambda J, v: v[a].det() / 6, self.types[a][0], ())

    def _inverse(self):
        a = self.square()
        if a is None:
            return
        n = self.types[a][1][0]

        def step(J, v):
            safe = v[a] / (1 + v[a].norm2()) + 2 * J.identity(n)
            return safe.inverse()

        self.add(step, self.types[a][0], (n, n))

    def _exponential(self):
        a = self.square()
        if a is not None:
            self.add(lambda J, v: (v[a] / (1 + v[a].norm2())).exp(), *self.types[a])

    def _rotation(self):
        a = self.square()
        if a is not None:
            self.add(lambda J, v: v[a].traceless_antihermitian().exp(), *self.types[a])

    def _project(self):
        a = self.square()
        if a is not None:
            self.add(lambda J, v: v[a].traceless_antihermitian(), *self.types[a])

    def _unitary(self):
        a = self.square()
        if a is None:
            return
        n = self.types[a][1][0]
        self.add(lambda J, v: (v[a] / (1 + v[a].norm2()) + 1.5 * J.identity(n)).reunitarise(), *self.types[a])

    def _norm(self):
        a = self.any()
        size = max(1, len(self.types[a][1]))
        self.add(lambda J, v: v[a].norm2() / (size + v[a].norm2()), "real", ())

    def _dot(self):
        a = self.any()
        b = self.like(a)
        self.add(lambda J, v: v[a].dot(v[b]) / 4, self.join(a, b), ())

    def _outer(self):
        a = self.pick(lambda kind, shape: len(shape) == 1)
        if a is None:
            return
        b = self.pick(lambda kind, shape: len(shape) == 1)
        self.add(lambda J, v: v[a].outer(v[b]), self.join(a, b), self.types[a][1] + self.types[b][1])

    def _component(self):
        a = self.pick(lambda kind, shape: len(shape) > 0)
        if a is None:
            return
        index = tuple(self.random.randrange(n) for n in self.types[a][1])
        self.add(lambda J, v: v[a][index if len(index) > 1 else index[0]], self.types[a][0], ())

    def _block(self):
        a = self.pick(lambda kind, shape: len(shape) == 2 and min(shape) > 1)
        if a is None:
            return
        rows, columns = self.types[a][1]
        self.add(lambda J, v: v[a][1:, : columns - 1], self.types[a][0], (rows - 1, columns - 1))

    def _matrix(self):
        parts = [self.scalar() for _ in range(4)]
        if None not in parts:
            a, b, c, d = parts
            self.add(lambda J, v: J.matrix([[v[a], v[b]], [v[c], v[d]]]), self.join(*parts), (2, 2))

    def _vector(self):
        parts = [self.scalar() for _ in range(self.n)]
        if None not in parts:
            self.add(lambda J, v: J.vector([v[p] for p in parts]), self.join(*parts), (self.n,))

    def _complex(self):
        a, b = self.number(), self.number()
        if a is not None:
            self.add(lambda J, v: J.complex(v[a], v[b]), "complex", ())

    def _function(self):
        a = self.number()
        if a is None:
            return
        name = self.random.choice(
            ["sin", "cos", "tanh", "atan", "exp", "cosh", "log", "sqrt", "floor", "asin"]
        )
        safe = {
            "exp": lambda J, x: J.exp(J.sin(x)),
            "cosh": lambda J, x: J.cosh(J.tanh(x)),
            "log": lambda J, x: J.log(1 + x * x),
            "sqrt": lambda J, x: J.sqrt(x * x + 0.5),
            # A jump at a generic place, not at 0, where exact zeros of open boundaries would sit on it.
            "floor": lambda J, x: J.floor(3 * J.sin(x) + 0.3701),
            "asin": lambda J, x: J.asin(x / (1 + abs(x))),
        }.get(name, lambda J, x: getattr(J, name)(x))
        self.add(lambda J, v: safe(J, v[a]), "real", ())

    def _two_numbers(self):
        a, b = self.number(), self.number()
        if a is None:
            return
        which = self.random.randrange(4)
        step = [
            lambda J, v: J.minimum(v[a], v[b]),
            lambda J, v: J.maximum(v[a], v[b]),
            lambda J, v: J.atan2(v[a], v[b] + 1.7),
            lambda J, v: v[a] / (1.1 + v[b] * v[b]),
        ][which]
        self.add(step, "real", ())

    def _where(self):
        a, x, y = self.any(), self.number(), self.number()
        if x is None:
            return
        b = self.like(a)
        shift = self.random.uniform(-0.4, 0.4)
        logic = self.random.randrange(3)

        def step(J, v):
            p, q = v[x] < v[y] + shift, v[x] * 2 > shift
            return J.where([p, p & ~q, p | q][logic], v[a], v[b])

        self.add(step, self.join(a, b), self.types[a][1])

    def _complex_function(self):
        a = self.pick(lambda kind, shape: kind == "complex" and not shape)
        if a is not None:
            self.add(lambda J, v: J.exp(v[a] / (1 + v[a].norm2())), "complex", ())

    def _quotient(self):
        a, b = self.any(), self.pick(lambda kind, shape: kind == "complex" and not shape)
        if b is not None:
            self.add(lambda J, v: v[a] / (v[b] / (1 + v[b].norm2()) + 2), "complex", self.types[a][1])

    def _tame(self):
        a = self.any()
        self.add(lambda J, v: v[a] / (1 + v[a].norm2()), *self.types[a])


OPERATIONS = sorted(
    name[1:] for name in vars(Generator) if name.startswith("_") and not name.startswith("__")
)
