"""Lattices, fields and site functions."""

from jali.lattice import whole_fields as whole_fields  # fields compute by it
from jali.lattice.boundary import Boundary
from jali.lattice.domain import ALL, EVEN, ODD, PARITIES, Colouring, Domain
from jali.lattice.field import Field
from jali.lattice.graphs import Graph, graph
from jali.lattice.lattice import Lattice
from jali.lattice.random import Random
from jali.lattice.scalars import Condition, Scalar, read
from jali.lattice.sites import SiteFunction, site_function

__all__ = [
    "ALL",
    "EVEN",
    "ODD",
    "PARITIES",
    "Boundary",
    "Colouring",
    "Condition",
    "Domain",
    "Field",
    "Graph",
    "Lattice",
    "Random",
    "Scalar",
    "SiteFunction",
    "graph",
    "read",
    "site_function",
]
