"""Guards of a trace: what a traced function saw besides its symbols, checked before every run, so that a changed coupling is never stale.

A traced function may use numbers that are not its arguments: globals, closures, defaults, attributes and elements of objects that
it reaches from there or from arguments that are fixed while tracing, the same in functions that it calls. They become constants
of the kernel. `trace_with_guards` traces a function and returns `Guards`; before every run `Guards.hold` checks that all of this is
as it was.

What decides is the code that ran (`executed_code.py`): of modules and objects, the names that this code mentions are followed; of
containers, everything. What is immutable is compared by value, what is made of other things through these, functions by their
code, closure and defaults. An object of compiled code whose contents cannot be seen is refused, and so is a function that gives
another formula when it is traced once more.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from jali.codegen.executed_code import DYNAMIC, HIDING, INTROSPECTED, ExecutedCode, imported, mentioned
from jali.codegen.guard_discovery import GuardDiscovery, Seen
from jali.codegen.ir import SiteProgram
from jali.codegen.rewriting import reachable
from jali.errors import TraceError

Result = TypeVar("Result")


class Guards:
    """What one trace saw. `hold` is cheap where the same objects are where they were."""

    def __init__(self, executed: ExecutedCode, statics: Iterable[Any], name: str):
        user, library = executed.of("user"), executed.of("library")
        codes = {id(code): code for code, _ in user + library}
        names, foreign = (
            frozenset().union(*(mentioned(code).attributes for code, _ in ran)) for ran in (user, library)
        )
        names |= executed.looked_up["user"]
        foreign |= executed.looked_up["library"]
        introspects = executed.introspects()
        if introspects:
            names |= INTROSPECTED
        for hiding in sorted((names & HIDING) | (foreign & {"cell_contents"})):
            raise TraceError(
                f"{name} captures what can be seen through {hiding}, which jali cannot watch for changes; mention what is "
                "needed by its name, or pass it as an argument"
            )
        self.seen = Seen(
            name,
            tuple(sorted((names | foreign) - DYNAMIC)),
            foreign - names,
            (*statics, *executed.context_variables),
            self._find_roots(user, library),
            codes,
            executed.any_attribute or introspects or bool(DYNAMIC & names),
        )
        known = self.seen.any
        discovery = GuardDiscovery(self.seen)
        if self.seen.any != known:
            discovery = GuardDiscovery(self.seen)
        self._check_closures(user, discovery, executed.lines)
        self._records, self._core_guards, self._probes = (
            discovery.records,
            discovery.core_guards,
            discovery.probes,
        )

    def __len__(self) -> int:
        """Number of objects that are compared."""
        return len(self._records)

    def hold(self) -> bool:
        """Whether the function would read the same values as before."""
        if not self._core_guards.check():
            return self._equal()
        for probe, seen in self._probes:
            now = probe()
            if len(now) != len(seen) or not all(map(operator.is_, now, seen)):
                return self._equal()
        return True

    def _equal(self) -> bool:
        """The same for objects that are other objects of equal contents, such as numbers that were computed again."""
        try:
            discovery = GuardDiscovery(self.seen)
        except TraceError:  # something new that cannot be guarded: a new trace reports it
            return False
        if discovery.records != self._records:
            return False
        self._core_guards, self._probes = discovery.core_guards, discovery.probes
        return True

    def _find_roots(self, user: Any, library: Any) -> list[tuple[Any, tuple[str, ...]]]:
        """Dictionaries of modules, and the names in them that the code mentions."""
        spaces: dict[int, tuple[Any, set[str]]] = {id(sys.modules): (sys.modules, set())}
        for code, space in user:
            names = mentioned(code).names
            spaces.setdefault(id(space), (space, set()))[1].update(names)
            spaces.setdefault(id(vars(builtins)), (vars(builtins), set()))[1].update(names - space.keys())
            for level, module in mentioned(code).imports:
                spaces[id(sys.modules)][1].update(imported(level, module, space))
        if any(space is os.__dict__ for _, space in library):
            spaces.setdefault(id(os.__dict__), (os.__dict__, set()))[1].add("environ")
        return [(space, tuple(sorted(names))) for space, names in spaces.values() if names]

    def _check_closures(self, user: Any, discovery: GuardDiscovery, lines: Mapping[int, str]) -> None:
        """Refuses functions that ran, have closures, and are nowhere where they can be checked again."""
        inner: set[int] = set()
        for code, _ in user:
            _add_inner(code, inner)
        for code, _ in user:
            hidden = code.co_freevars not in ((), ("__class__",))
            if hidden and id(code) not in inner and id(code) not in discovery.functions:
                raise TraceError(
                    f"{self.seen.name} calls {code.co_qualname} in a way that "
                    f"hides its closure ({', '.join(code.co_freevars)}); call it by name, or pass it as an argument\n"
                    f"  at {lines[id(code)]}"
                )


def trace_with_guards(
    function: Callable[..., Any], statics: Iterable[Any], work: Callable[[], list[SiteProgram]]
) -> tuple[list[SiteProgram], Guards]:
    """Programs that `work` makes by tracing `function`, and the guards for what it saw; `statics`: arguments that are no symbols.

    It is traced twice, since what a function takes from an iterator, a clock or a source of random numbers is only seen so.
    Raises TraceError for what cannot be watched, and for a function whose formula is another each time.
    """
    executed = ExecutedCode()
    programs = executed.run(work)
    guards = Guards(executed, [function, *statics], function.__name__)
    where = inspect.unwrap(function)
    code = getattr(where, "__func__", where).__code__
    advice = (
        "take what changes by itself (random numbers, iterators, counters, times) outside, and pass it as an argument\n"
        f"  at {code.co_filename}:{code.co_firstlineno}"
    )
    try:
        again = work()
    except Exception as error:
        raise TraceError(f"{function.__name__} cannot be traced a second time ({error}); {advice}") from error
    if _signature(programs) != _signature(again):
        raise TraceError(f"{function.__name__} is another formula each time it is traced; {advice}")
    if not guards.hold():
        raise TraceError(
            f"{function.__name__} changes what it sees (a global, a list, an attribute) each time it is traced; {advice}"
        )
    return programs, guards


def _signature(programs: list[SiteProgram]) -> Any:
    """What programs compute, comparable with `==`."""
    numbers: dict[int, int] = {}
    nodes: list[Any] = []
    for node in reachable(effect.value for program in programs for effect in program.effects):
        numbers[node.number] = len(nodes)
        attrs = repr(node.attrs) if node.attrs else ""  # distinguishes 0.0 from -0.0
        nodes.append((node.op, [numbers[a.number] for a in node.args], attrs, node.type))
    effects = [
        (
            p.name,
            [
                (type(e).__name__, e.slot, *(getattr(e, a, ()) for a in _ATTRIBUTES), numbers[e.value.number])
                for e in p.effects
            ],
        )
        for p in programs
    ]
    loops = [[(loop.limit, loop.first_draw, loop.draws) for loop in p.loops] for p in programs]
    return nodes, effects, loops


_ATTRIBUTES = "offset", "how", "label"  # that effects may have


def _add_inner(code: types.CodeType, found: set[int]) -> None:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found.add(id(constant))
            _add_inner(constant, found)
