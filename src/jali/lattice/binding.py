"""Binds a compiled kernel to fields, a domain and the core's launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jali import _core
from jali.codegen.emit import FIRST_WORD, KernelText, Variant, Word
from jali.codegen.ir import SiteProgram
from jali.lattice.field import Field


class BoundKernel:
    """One kernel with its argument words and its launch. `words` and `floats` are two views of the same memory."""

    def __init__(
        self,
        program: SiteProgram,
        text: KernelText,
        variant: Variant,
        fields: list[Field],
        lattice: Any,
        layout: Any,
        sites: Any,
        sums: Any,
        address: int,
        source: Path,
    ):
        self.program = program
        self.text = text
        self.variant = variant
        self.fields = fields
        self.lattice = lattice
        self.layout = layout
        self.sites = sites
        self.source = source
        self.words = np.zeros(FIRST_WORD + len(text.words), np.uint64)
        self.floats = memoryview(self.words).cast("B").cast("d")
        self._held: list[Any] = []  # arrays whose addresses are in the words
        self.scalar_words: list[tuple[int, Word]] = []
        self.random_words: list[tuple[int, Word]] = []
        patches = []
        for k, word in enumerate(text.words):
            index = FIRST_WORD + k
            if word.what == "field":
                patches.append((index, fields[word.slot].storage))
            elif word.what in ("scalar", "key", "call"):
                (self.scalar_words if word.what == "scalar" else self.random_words).append((index, word))
            else:
                self.words[index] = self._address(word)
        reads = []
        for slot, offsets in text.analysis.reads.items():
            for offset in offsets:
                parities = layout.reach(sites.parities, list(offset))
                reads.append((fields[slot].storage, list(offset), parities))
        writes = [(fields[slot].storage, sites.parities) for slot in text.analysis.writes]
        nsums = sum(t.reals for t in program.sums)
        slices, nslices = None, 1
        if sums is not None and sums.per is not None:
            slices = lattice.slices_of(sums.per, layout)
            nslices = lattice.extents[sums.per]
        self.launch = _core.Launch(
            layout=layout,
            communicator=lattice.communicator.core,
            pool=lattice.pool,
            kernel=address,
            words=self.words,
            patches=patches,
            reads=reads,
            writes=writes,
            begin=sites.begin,
            end=sites.end,
            blocks=sites.blocks,
            masks=sites.masks,
            nsums=nsums if program.sums else 0,
            slices=slices,
            nslices=nslices,
            fast=bool(sums is not None and sums.fast),
            ncounters=1 if text.analysis.bodies else 0,
        )

    def _address(self, word: Word) -> int:
        if word.what == "blocks":
            return int(self.layout.nblocks)
        table = self.layout.neighbours(list(word.offset), word.windings)
        if word.what == "table":
            array = table.entries
        elif word.what == "permutations":
            array = table.permutations
        else:
            field = self.fields[word.slot]
            array = field.boundary.factors(field.element, table.windings, field.precision)
        self._held += [table, array]
        return int(array.ctypes.data)
