"""Values of one field into another that is stored otherwise, or whose sites lie otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jali import _core
from jali.lattice.borrowed_arrays import in_rows
from jali.lattice.domain import EVEN, ODD
from jali.lattice.overflow import Found, OverflowCount, PastCount, raise_on_all_ranks

if TYPE_CHECKING:
    from jali.lattice.field import Field


def recode_on_host(to: Field, source: Field, precision: str) -> None:
    """Takes the values of a field whose sites lie otherwise. Collective where a value may overflow."""
    from jali.codegen.emit import counts_overflow
    from jali.codegen.recode import copy_program, recode

    sites, overflow = recode(source._exported_box(), source.stored, to.stored, precision)
    to._import_box(sites)
    if counts_overflow(copy_program(source.stored, to.stored, precision, 1)):
        found = Found(overflow, f"assigning {source.name} to {to.name}")
        raise_on_all_ranks(to.lattice.communicator, [PastCount(found)])


def recode_on_lattice(to: Field, source: Field, precision: str) -> Callable[[], Any]:
    """What takes the values of a field that has the same layout and is stored otherwise."""
    from jali.codegen import kernel_cache
    from jali.codegen.accesses import access_of
    from jali.codegen.emit import counts_overflow, emit
    from jali.codegen.recode import copy_program, parameters_of_copy
    from jali.codegen.writer import Lowering
    from jali.tune import DEFAULT_LAUNCH

    lattice, gpu = to.lattice, to.lattice.gpu
    program = copy_program(source.stored, to.stored, precision, lattice.ndim)
    rows = in_rows((source, to)) if gpu is not None else frozenset()
    here = (0,) * lattice.ndim
    accesses = frozenset(access_of(slot, here, True, in_array=True) for slot in rows)
    text = emit(program, Lowering(to.layout.lanes, gpu=gpu is not None, accesses=accesses))
    config = DEFAULT_LAUNCH
    address, function = 0, None
    if gpu is not None:
        how = config.bound, config.blocks, config.sites, config.width
        function, _ = kernel_cache.load_on_device(gpu, program.name, text.text, program.precision, *how)
    else:
        address, _ = kernel_cache.load(program.name, text.text, to.layout.lanes, program.precision)
    parameters, patches = parameters_of_copy(text, source.storage, to.storage)
    launch = _core.Launch(
        layout=to.layout,
        communicator=lattice.communicator.core,
        pool=lattice.pool,
        kernel=address,
        parameters=parameters,
        patches=patches,
        reads=[],
        writes=[(to.storage, to.storage.parities)],
        begin=0 if to.over is not ODD else to.layout.even_blocks,
        end=to.layout.nblocks if to.over is not EVEN else to.layout.even_blocks,
        ncounters=2 if counts_overflow(program) else 0,
        gpu_kernel=function,
        threads=config.threads,
        name="recode",
    )
    if counts_overflow(program):
        to.add_overflow_count(OverflowCount(launch.counters, f"assigning {source.name} to {to.name}"))
    return launch.run
