"""How the steps of a recursion are repeated: one by one, or as graphs of several, and from one solve to the next.

The numbers of a graph are read while the next one runs already, where that is not near the end of a solve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jali.errors import RecordingError
from jali.solvers.operators import changing_numbers

if TYPE_CHECKING:
    from jali.solvers.krylov import Krylov

# iterations of a graph, as long as a step has no more: recording them takes as long as some tens
TOGETHER = 8
UNDER_WAY = 2  # graphs at once: one whose numbers are read, and the next


class Found(NamedTuple):
    """Numbers of a step: |r|^2 of each iteration, what `check` looks at, and the bound of a rule, if there is one."""

    squares: list[Any]
    watched: list[Any]
    limit: list[Any]


class Repeated:
    """So many steps of a run as a graph."""

    def __init__(self, run: Krylov, turns: int):
        self.run = run
        self.turns = turns
        self.iterations = turns * run.steps
        self.graph = run.vectors.graph(run.b, self._steps, kept=UNDER_WAY)
        run.flops = self.graph.flops / self.iterations

    def _steps(self) -> list[Any]:
        """|r|^2 of the iterations, what is looked at, and the bound of a rule, step by step."""
        found = self.run.run(self.turns)
        self.counts = [len(part) for part in found[0]]
        return [number for step in found for part in step for number in part]

    def read(self) -> list[Found]:
        """What the first repetition found whose numbers have not been read; waits for it."""
        numbers = iter(self.graph.kept.next())
        return [
            Found(*([next(numbers) for _ in range(count)] for count in self.counts))
            for _ in range(self.turns)
        ]


class Repetitions:
    """The steps of a run: one by one, or as graphs of `turns` of them, and of fewer towards the end.

    Before the host reads what a graph found, a device gets the next one, where that is not near the end, if `ahead`.
    """

    def __init__(self, run: Krylov, turns: int, records: bool, exactly: bool, ahead: bool):
        self.run, self.turns, self.records, self.exactly, self.ahead = run, turns, records, exactly, ahead
        self.graphs: dict[tuple[int, int], Repeated] = run.graphs
        self.under_way: Repeated | None = None
        self.first = not run.graphs

    def of(self, run: Krylov) -> Repetitions:
        """The same of another run."""
        return Repetitions(run, self.turns, self.records, self.exactly, self.ahead)

    def iterate(self) -> None:
        """As many steps as there is a graph for. Raises RecordingError where `exactly` so many were to be recorded, and cannot be."""
        run = self.run
        left = min(run.remaining(), run.maxiter - run.iterations)
        repeated = self.under_way or self._begun(left)
        if repeated is None:
            run.iterate()  # the first one makes the kernels
            self.first = False
            return
        self.under_way = None
        same = self.graphs.get((repeated.turns, run.form)) is repeated
        if (
            self.ahead
            and same
            and repeated.graph.on_device
            and left >= 2 * repeated.iterations <= 2 * run.iterations
        ):
            repeated.graph.run()
            self.under_way = repeated
        run.note_all(repeated.read())

    def _begun(self, left: float) -> Repeated | None:
        """A graph that now runs; None where a step is to be done by itself."""
        run, turns = self.run, self.turns
        # what a graph does after the last iteration is lost
        if not self.exactly and turns > 2 and left < turns * run.steps:
            turns = 2
        if not self.records or self.first or run.iterations + turns * run.steps > run.maxiter:
            return None
        try:
            if (turns, run.form) not in self.graphs:
                self.graphs[turns, run.form] = Repeated(run, turns)
        except RecordingError:
            if self.exactly:
                raise
            self.turns, self.records = 1, False
            return None
        repeated = self.graphs[turns, run.form]
        repeated.graph.run()
        return repeated

    def finish(self) -> None:
        """Reads what is under way."""
        repeated, self.under_way = self.under_way, None
        if repeated is not None:
            self.run.note_all(repeated.read())

    def discard(self) -> None:
        """Called where the recursion waits: what is under way changes nothing, and is not read."""
        if self.under_way is not None:
            self.under_way.graph.kept.forget()
            self.under_way = None


class Workspace:
    """Vectors, kernels and graphs of a solve of fields, for the next ones with the same operator: `cg(A, b, workspace=workspace)`.

    A solve that follows with the same solver, operator, options and form of b begins at once, with the same bits; another one makes its own. It keeps the
    vectors of the last solve in memory until it is deleted.
    """

    def __init__(self) -> None:
        self._run: Krylov | None = None
        self._arguments: tuple[Any, ...] = ()
        self._form: Any = None
        self._numbers: Any = None

    def run_of(self, kind: type[Krylov], A: Any, b: Any, x0: Any, *arguments: Any) -> Krylov:
        """The run of the last solve, begun again, where it fits; else a new one."""
        *fixed, rtol, atol, inner = arguments
        run, self._run = self._run, None  # a solve that fails leaves nothing
        if (
            type(run) is kind
            and run.of == A
            and run.inner_operator is inner
            and self._numbers == _numbers_of(A, inner)
            and all(one is other or one == other for one, other in zip(fixed, self._arguments, strict=True))
            and callable(getattr(b, "is_like", None))
            and b.is_like(self._form)
            and (x0 is None or x0.is_like(self._form))
        ):
            run.bring_up_to_date()
            run.solve(b, x0, rtol, atol)
        else:
            run = kind(A, b, x0, *arguments)
            self._arguments, self._form, self._numbers = tuple(fixed), b, _numbers_of(A, inner)
        self._run = run
        return run


def _numbers_of(A: Any, inner: Any) -> Any:
    return changing_numbers(A), None if inner is None else changing_numbers(inner.A)
