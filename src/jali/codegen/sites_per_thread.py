"""Several sites per thread of a device: the same text for any number of them (`prelude/sites_per_thread.hpp` selects them).

The emitter computes all values of a site before it writes the first, so a thread may do so for several: fields are loaded for
all of its sites, then values are computed site by site, then everything is stored and added up. No operation is done
otherwise than for one site per thread, so no bit changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jali.codegen.ir import SiteProgram
from jali.codegen.passes import Analysis
from jali.codegen.storage_formats import WIDEST_PACKET
from jali.codegen.writer import Lowering


@dataclass
class SitesPerThread:
    """The text around the computation of one site: declarations and loads before it, effects after it."""

    before: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    sums: list[str] = field(default_factory=list)

    def load(self, name: str, pointer: str, reals: int, ctype: str = "real") -> str:
        """Loads an element of all sites ahead; returns the expression for that of site j."""
        self.before += [
            f"{ctype} {name}_of[EACH][{reals}];",
            f"load_sites<{reals}>({name}_of, {pointer}, own);",
        ]
        return f"{name}_of[j]"

    def store(self, name: str, pointer: str, reals: int, ctype: str = "real", counted: str = "") -> str:
        """Stores an element of all sites at the end; returns the array that takes that of site j."""
        self.before.append(f"{ctype} {name}[EACH][{reals}];")
        self.stores.append(f"store_sites<{reals}>({pointer}, own, {name}{counted});")
        return f"{name}[j]"

    def add(self, component: int, statement: str, ctype: str = "real") -> str:
        """Contributes to a sum at the end by a statement about `{value}`; returns what is to be set for site j."""
        name = f"term{component}"
        self.before.append(f"{ctype} {name}[EACH];")
        self.sums.append(statement.format(value=f"{name}[j]"))
        return f"{name}[j]"

    def text(self, of_site: list[str], counts: bool, part: str) -> list[str]:
        """The loop over tiles of a part of the grid around the lines of a site. `counts`: a site that is not there must not be
        computed."""
        out = [f"    JALI_FOR_EACH_TILE({part}, tile, begin, end) {{"]
        out.append("        const thread_sites own = sites_of_thread(tile, begin, end, blocks);")
        out += ["        " + line for line in self.before]
        out += ["        JALI_UNROLL", "        for (int j = 0; j < EACH; ++j) {"]
        if counts:
            out.append("            if (!own.there[j]) continue;")
        out.append("            const int64_t x = own.x[j];")
        out += of_site
        out.append("        }")
        out += ["        " + line for line in self.stores]
        if self.sums:
            out += ["        JALI_UNROLL", "        for (int j = 0; j < EACH; ++j) {"]
            out.append("            if (!own.there[j]) continue;")
            out += ["            " + line for line in self.sums]
            out.append("        }")
        return [*out, "    }"]


def most_neighbours(program: SiteProgram, lowering: Lowering, analysis: Analysis) -> int:
    """How many neighbouring sites make accesses of 16 bytes of all fields; 1 where other sites are read."""
    if (
        not lowering.gpu
        or program.batch
        or lowering.tables
        or any(any(offset) for offsets in analysis.reads.values() for offset in offsets)
    ):
        return 1
    packets = []
    for slot in {*analysis.reads, *analysis.writes}:
        storage = program.fields[slot].storage
        first = storage.memory[0]
        in_array = lowering.access(slot, (0,) * program.ndim).in_array
        by_itself = in_array or not storage.format.scalar  # taken site by site
        packets.append(WIDEST_PACKET if by_itself else first.unit_bytes * first.packet_units)
    return WIDEST_PACKET // max(packets) if packets else 1
