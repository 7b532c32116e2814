"""jali: lattice and stencil physics, written once at a site, run at the speed of the hardware on any number of ranks."""

from jali import early as early  # before what takes time
from jali import settings as settings
from jali import start as start  # a wrong value is reported first
from jali.codegen.types import SU, Algebra, Complex, Hermitian, Integer, Matrix, Real, Spinor, Vector
from jali.comm import virtual_ranks
from jali.devices import use_device
from jali.errors import (
    CompileError,
    DeviceError,
    FileFormatError,
    JaliError,
    LayoutError,
    ParameterError,
    RankError,
    RecordingError,
    ShapeError,
    SingularError,
    StorageError,
    TraceError,
    UnsetError,
)
from jali.lattice import (
    ALL,
    EVEN,
    ODD,
    PARITIES,
    Boundary,
    Colouring,
    Condition,
    Domain,
    Field,
    Graph,
    Lattice,
    Random,
    Scalar,
    SiteFunction,
    graph,
    read,
    site_function,
)
from jali.lattice.functions import (
    acos,
    arg,
    asin,
    atan,
    atan2,
    ceil,
    complex_,
    concatenate,
    cos,
    cosh,
    diagonal,
    exp,
    floor,
    identity,
    log,
    matrix,
    maximum,
    minimum,
    power,
    round_,
    sign,
    sin,
    sinh,
    sqrt,
    stack,
    tan,
    tanh,
    vector,
    where,
    zero,
)
from jali.version import __version__

complex, round = complex_, round_  # Python's names, so not in __all__: `from jali import *` hides nothing
del complex_, round_

TYPE_CHECKING = False  # as of `typing`, which is not imported before `early`
if TYPE_CHECKING:
    from jali import actions as actions
    from jali import arrays as arrays
    from jali import compat as compat
    from jali import derivatives as derivatives
    from jali import examples as examples
    from jali import fermions as fermions
    from jali import fft as fft
    from jali import gauge as gauge
    from jali import hadrons as hadrons
    from jali import hmc as hmc
    from jali import io as io
    from jali import linops as linops
    from jali import planner as planner
    from jali import profile as profile
    from jali import solvers as solvers
    from jali import statistics as statistics
    from jali import torch as torch
    from jali import tune as tune
    from jali import vectors as vectors
    from jali.actions.formulas import action
    from jali.actions.protocol import Action
    from jali.derivatives.functions import adjoint, conjugate, gradient, pullback, tangent, transpose
    from jali.derivatives.tape import Tape
    from jali.derivatives.totals import Total
    from jali.fermions.dirac import Dirac
    from jali.lattice.block_sums import block_sums
    from jali.lattice.bound_call import Call
    from jali.lattice.colours import join
    from jali.lattice.inspection import KernelReport, inspect
    from jali.lattice.loading import load
    from jali.lattice.saving import save
    from jali.lattice.scalar_arrays import ScalarArray
    from jali.lattice.update_simulation import PolicyPrediction, UpdateSimulation
    from jali.solvers.choice import solve

__all__ = [
    "ALL",
    "EVEN",
    "ODD",
    "PARITIES",
    "SU",
    "Action",
    "Algebra",
    "Boundary",
    "Call",
    "Colouring",
    "CompileError",
    "Complex",
    "Condition",
    "DeviceError",
    "Dirac",
    "Domain",
    "Field",
    "FileFormatError",
    "Graph",
    "Hermitian",
    "Integer",
    "JaliError",
    "KernelReport",
    "Lattice",
    "LayoutError",
    "Matrix",
    "ParameterError",
    "PolicyPrediction",
    "Random",
    "RankError",
    "Real",
    "RecordingError",
    "Scalar",
    "ScalarArray",
    "ShapeError",
    "SingularError",
    "SiteFunction",
    "Spinor",
    "StorageError",
    "Tape",
    "Total",
    "TraceError",
    "UnsetError",
    "UpdateSimulation",
    "Vector",
    "__version__",
    "acos",
    "action",
    "adjoint",
    "arg",
    "asin",
    "atan",
    "atan2",
    "block_sums",
    "ceil",
    "concatenate",
    "conjugate",
    "cos",
    "cosh",
    "diagonal",
    "exp",
    "floor",
    "gradient",
    "graph",
    "identity",
    "inspect",
    "join",
    "load",
    "log",
    "matrix",
    "maximum",
    "minimum",
    "power",
    "pullback",
    "read",
    "save",
    "settings",
    "sign",
    "sin",
    "sinh",
    "site_function",
    "solve",
    "sqrt",
    "stack",
    "tan",
    "tangent",
    "tanh",
    "transpose",
    "use_device",
    "vector",
    "virtual_ranks",
    "where",
    "zero",
]

# Names that are imported later, and where they are: packages, and what is in one.
_LATER = {
    **{
        name: f"jali.{name}"
        for name in (
            *(
                "actions",
                "arrays",
                "compat",
                "derivatives",
                "examples",
                "fermions",
                "fft",
                "gauge",
                "hadrons",
                "hmc",
                "io",
                "linops",
                "planner",
                "profile",
            ),
            *("solvers", "statistics", "torch", "tune", "vectors"),
        )
    },
    "Action": "jali.actions.protocol",
    "Call": "jali.lattice.bound_call",
    **{
        name: "jali.derivatives.functions"
        for name in ("adjoint", "conjugate", "gradient", "pullback", "tangent", "transpose")
    },
    "action": "jali.actions.formulas",
    "Dirac": "jali.fermions.dirac",
    "KernelReport": "jali.lattice.inspection",
    "PolicyPrediction": "jali.lattice.update_simulation",
    "ScalarArray": "jali.lattice.scalar_arrays",
    "Tape": "jali.derivatives.tape",
    "Total": "jali.derivatives.totals",
    "UpdateSimulation": "jali.lattice.update_simulation",
    "block_sums": "jali.lattice.block_sums",
    "inspect": "jali.lattice.inspection",
    "join": "jali.lattice.colours",
    "load": "jali.lattice.loading",
    "save": "jali.lattice.saving",
    "solve": "jali.solvers.choice",
}

if not TYPE_CHECKING:  # type checkers know the names

    def __getattr__(name):
        """Public packages, and names that most programs do not use, are imported at their first use."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        try:
            module = import_module(_LATER[name])
        except ModuleNotFoundError as error:  # another library's, which is missing; `hasattr` is False
            raise AttributeError(f"module {__name__!r} has no attribute {name!r} here: {error}") from None
        value = globals()[name] = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__, *_LATER})
