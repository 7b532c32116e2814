"""A question to the tuner and its answer, with what was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from jali.version import __version__


@dataclass(frozen=True)
class Question:
    """A question: `kind` ("launch" or "halo") about a kernel, by name and by digest of its source, where it runs
    (`volume`: positions, extents, for halos also ranks, grid and transport) and with which version of jali."""

    kind: str
    kernel: str
    digest: str
    volume: str
    version: str = __version__


@dataclass(frozen=True)
class Candidate:
    """One candidate and its median time in seconds, None where it was not measured; `note` is the reason, or a
    remark."""

    name: str
    seconds: float | None
    note: str = ""


@dataclass(frozen=True)
class Entry:
    """An answer. `default` is what runs where nothing is known; `measured` is a date (ISO 8601)."""

    question: Question
    chosen: str
    default: str
    candidates: tuple[Candidate, ...]
    measured: str

    def why(self) -> str:
        """The candidates with their times, the fastest first, and what became of them."""
        ordered = sorted(
            self.candidates, key=lambda c: (c.seconds is None, c.seconds or 0.0, c.name != self.chosen)
        )
        width = max([len(c.name) for c in ordered], default=0)
        lines = [f"{self.question.kernel} ({self.question.kind}) on {self.question.volume}: {self.chosen}"]
        for candidate in ordered:
            time = "-" if candidate.seconds is None else _microseconds(candidate.seconds)
            words = [w for w in (self._role(candidate), candidate.note) if w]
            lines.append(f"  {candidate.name:<{width}}  {time:>12}  {'; '.join(words)}".rstrip())
        return "\n".join(lines)

    def summary(self) -> str:
        """The choice and what it gains, in a few words."""
        times = {c.name: c.seconds for c in self.candidates}
        chosen, default = times.get(self.chosen), times.get(self.default)
        if self.chosen == self.default:
            return f"{self.chosen}: the default, nothing was faster among {len(self.candidates)}"
        if chosen is None or default is None or chosen <= 0:
            return f"{self.chosen}: the fastest of {len(self.candidates)}"
        return f"{self.chosen}: {default / chosen:.2f} times as fast as {self.default}, of {len(self.candidates)}"

    def _role(self, candidate: Candidate) -> str:
        roles = []
        if candidate.name == self.chosen:
            roles.append("chosen")
        if candidate.name == self.default:
            roles.append("default")
        return ", ".join(roles)

    def same_answer(self, other: Entry) -> bool:
        """Whether both are equal, apart from when they were measured."""
        return (self.question, self.chosen, self.default, self.candidates) == (
            other.question,
            other.chosen,
            other.default,
            other.candidates,
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values; times in microseconds, as text."""
        found = asdict(self.question)
        found |= {"chosen": self.chosen, "default": self.default, "measured": self.measured}
        found["candidates"] = [
            {"name": c.name, "microseconds": None if c.seconds is None else round(1e6 * c.seconds, 3)}
            | ({"note": c.note} if c.note else {})
            for c in self.candidates
        ]
        return found

    @classmethod
    def from_json(cls, found: Any) -> Entry:
        """The reverse of `as_json`. Raises KeyError, TypeError or ValueError for anything else."""
        words = [found[name] for name in ("kind", "kernel", "digest", "volume", "version")]
        words += [found["chosen"], found["default"], found["measured"]]
        if not all(isinstance(word, str) for word in words):
            raise TypeError("an entry holds words")
        candidates = tuple(
            Candidate(
                str(c["name"]),
                None if c["microseconds"] is None else float(c["microseconds"]) / 1e6,
                str(c.get("note", "")),
            )
            for c in found["candidates"]
        )
        return cls(Question(*words[:5]), words[5], words[6], candidates, words[7])


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f} us"
