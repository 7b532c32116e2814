"""No stale number: what a traced function reads of functions, classes and objects by `inspect` and its like, without running them.

Each case changes a factor from 2 to 3 where only introspection sees it, and the next run has the new one.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import inspect
import operator
import types
import typing

import numpy as np
import pytest

import jali
from jali import Field, Lattice, Real, TraceError

CASES = {}


def case(make):
    """A case: makes (a function without arguments that finds the factor, a change of it)."""
    CASES[make.__name__.replace("_", " ")] = make
    return make


def default_of(function, name="k"):
    return inspect.signature(function).parameters[name].default


@case
def default_by_signature():
    def helper(x, k=2.0):
        return k * x

    return lambda: default_of(helper), lambda: setattr(helper, "__defaults__", (3.0,))


@case
def default_of_a_global_by_signature():
    return lambda: default_of(GLOBAL_HELPER), lambda: setattr(GLOBAL_HELPER, "__defaults__", (3.0,))


def GLOBAL_HELPER(x, k=2.0):
    return k * x


@case
def contents_of_a_default_by_signature():
    def helper(x, k=[2.0]):  # noqa: B006
        return k[0] * x

    return lambda: default_of(helper)[0], lambda: operator.setitem(helper.__defaults__[0], 0, 3.0)


@case
def keyword_default_by_signature():
    def helper(x, *, k=2.0):
        return k * x

    return lambda: default_of(helper), lambda: helper.__kwdefaults__.update(k=3.0)


@case
def new_keyword_defaults_by_signature():
    def helper(x, *, k=2.0):
        return k * x

    return lambda: default_of(helper), lambda: setattr(helper, "__kwdefaults__", {"k": 3.0})


@case
def default_by_its_attribute():
    def helper(x, k=2.0):
        return k * x

    return lambda: helper.__defaults__[0], lambda: setattr(helper, "__defaults__", (3.0,))


@case
def default_by_getattr():
    def helper(x, k=2.0):
        return k * x

    return lambda: getattr(helper, "__defaults__")[0], lambda: setattr(helper, "__defaults__", (3.0,))  # noqa: B009


@case
def default_by_attrgetter():
    def helper(x, k=2.0):
        return k * x

    get = operator.attrgetter("__defaults__")
    return lambda: get(helper)[0], lambda: setattr(helper, "__defaults__", (3.0,))


@case
def keyword_default_by_its_attribute():
    def helper(x, *, k=2.0):
        return k * x

    return lambda: helper.__kwdefaults__["k"], lambda: helper.__kwdefaults__.update(k=3.0)


@case
def default_by_getfullargspec():
    def helper(x, k=2.0):
        return k * x

    return lambda: inspect.getfullargspec(helper).defaults[0], lambda: setattr(helper, "__defaults__", (3.0,))


@case
def default_of_a_method_by_signature():
    class Model:
        def energy(self, x, k=2.0):
            return k * x

    model = Model()
    return lambda: default_of(model.energy), lambda: setattr(Model.energy, "__defaults__", (3.0,))


@case
def default_of_a_static_method_by_signature():
    class Model:
        @staticmethod
        def energy(x, k=2.0):
            return k * x

    return lambda: default_of(Model.energy), lambda: setattr(Model.energy, "__defaults__", (3.0,))


@case
def default_of_a_constructor_by_signature():
    class Model:
        def __init__(self, k=2.0):
            self.k = k

    return lambda: default_of(Model), lambda: setattr(Model.__init__, "__defaults__", (3.0,))


@case
def default_of_a_callable_object_by_signature():
    class Model:
        def __call__(self, x, k=2.0):
            return k * x

    model = Model()
    return lambda: default_of(model), lambda: setattr(Model.__call__, "__defaults__", (3.0,))


@case
def default_of_a_partial_by_signature():
    def helper(x, k=2.0):
        return k * x

    part = functools.partial(helper, 1.0)
    return lambda: default_of(part), lambda: setattr(helper, "__defaults__", (3.0,))


@case
def keyword_of_a_partial_by_signature():
    def helper(x, k=1.0):
        return k * x

    part = functools.partial(helper, k=2.0)
    return lambda: default_of(part), lambda: part.keywords.update(k=3.0)


@case
def keyword_of_a_partial():
    part = functools.partial(max, k=2.0)
    return lambda: part.keywords["k"], lambda: part.keywords.update(k=3.0)


@case
def argument_of_a_new_partial_of_an_object():
    box = types.SimpleNamespace(part=functools.partial(max, 2.0))
    return lambda: box.part.args[0], lambda: setattr(box, "part", functools.partial(max, 3.0))


@case
def default_of_a_partial_method():
    class Model:
        def energy(self, x, k=1.0):
            return k * x

        half = functools.partialmethod(energy, k=2.0)

    return (
        lambda: inspect.signature(Model.half).parameters["k"].default,
        lambda: Model.__dict__["half"].keywords.update(k=3.0),
    )


@case
def default_of_what_is_wrapped():
    def helper(x, k=2.0):
        return k * x

    @functools.wraps(helper)
    def wrapper(*given):
        return helper(*given)

    return lambda: default_of(wrapper), lambda: setattr(helper, "__defaults__", (3.0,))


@case
def another_function_is_wrapped():
    def helper(x, k=2.0):
        return k * x

    def other(x, k=3.0):
        return k * x

    @functools.wraps(helper)
    def wrapper(*given):
        return helper(*given)

    return lambda: default_of(wrapper), lambda: setattr(wrapper, "__wrapped__", other)


@case
def a_function_is_wrapped_later():
    def helper(x, k=2.0):
        return k * x

    def other(x, k=3.0):
        return k * x

    return lambda: default_of(helper), lambda: setattr(helper, "__wrapped__", other)


@case
def a_signature_is_given_later():
    def helper(x, k=2.0):
        return k * x

    def other(x, k=3.0):
        return k * x

    return lambda: default_of(helper), lambda: setattr(helper, "__signature__", inspect.signature(other))


@case
def default_of_a_cached_function():
    @functools.lru_cache
    def helper(x, k=2.0):
        return k * x

    return lambda: default_of(helper), lambda: setattr(helper.__wrapped__, "__defaults__", (3.0,))


@case
def default_of_a_property():
    class Model:
        @property
        def k(self, value=2.0):
            return value

    return lambda: default_of(Model.k.fget, "value"), lambda: setattr(Model.k.fget, "__defaults__", (3.0,))


@case
def default_of_a_site_function():
    @jali.site_function
    def helper(X, f, k=2.0):
        f[X] = k

    return lambda: default_of(helper.function), lambda: setattr(helper.function, "__defaults__", (3.0,))


@case
def number_of_arguments_of_a_function():
    def helper(x, y):
        return x * y

    def other(x, y, z):
        return x * y * z

    return lambda: float(helper.__code__.co_argcount), lambda: setattr(helper, "__code__", other.__code__)


@case
def number_of_parameters_by_signature():
    def helper(x, y):
        return x * y

    def other(x, y, z):
        return x * y * z

    return lambda: float(len(inspect.signature(helper).parameters)), lambda: setattr(
        helper, "__code__", other.__code__
    )


@case
def annotation_of_a_function():
    def helper(x):
        return x

    helper.__annotations__["x"] = 2.0
    return lambda: helper.__annotations__["x"], lambda: helper.__annotations__.update(x=3.0)


@case
def annotation_by_signature():
    def helper(x):
        return x

    helper.__annotations__["x"] = 2.0
    return (
        lambda: inspect.signature(helper).parameters["x"].annotation,
        lambda: helper.__annotations__.update(x=3.0),
    )


@case
def annotation_by_get_annotations():
    def helper(x):
        return x

    helper.__annotations__["x"] = 2.0
    return lambda: inspect.get_annotations(helper)["x"], lambda: setattr(
        helper, "__annotations__", {"x": 3.0}
    )


@case
def annotation_of_a_class():
    class Model:
        k: float

    Model.__annotations__["k"] = 2.0
    return lambda: inspect.get_annotations(Model)["k"], lambda: Model.__annotations__.update(k=3.0)


@case
def hint_with_a_number():
    class Model:
        k: typing.Annotated[float, 2.0]

    Model.__annotations__["k"] = typing.Annotated[float, 2.0]

    def change():
        Model.__annotations__["k"] = typing.Annotated[float, 3.0]

    return lambda: typing.get_type_hints(Model, include_extras=True)["k"].__metadata__[0], change


@case
def docstring_as_a_number():
    def helper():
        """2.0"""

    return lambda: float(helper.__doc__), lambda: setattr(helper, "__doc__", "3.0")


@case
def docstring_by_getdoc():
    def helper():
        """2.0"""

    return lambda: float(inspect.getdoc(helper)), lambda: setattr(helper, "__doc__", "3.0")


@case
def name_as_a_number():
    def helper():
        pass

    helper.__name__ = "2"
    return lambda: float(helper.__name__), lambda: setattr(helper, "__name__", "3")


@case
def name_of_a_class_as_a_number():
    class Model:
        pass

    Model.__name__ = "2"
    return lambda: float(Model.__name__), lambda: setattr(Model, "__name__", "3")


@case
def closure_by_getclosurevars():
    k = 2.0

    def helper(x):
        return k * x

    def change():
        nonlocal k
        k = 3.0

    return lambda: inspect.getclosurevars(helper).nonlocals["k"], change


@case
def attribute_that_a_function_gets_later():
    def helper(x):
        return x

    return lambda: getattr(helper, "k", 2.0), lambda: setattr(helper, "k", 3.0)


@case
def attribute_of_a_function_that_does_not_run():
    def helper(x):
        return x

    helper.k = 2.0
    return lambda: helper.k, lambda: setattr(helper, "k", 3.0)


@case
def attributes_of_a_function_are_replaced():
    def helper(x):
        return x

    helper.k = 2.0
    return lambda: helper.k, lambda: setattr(helper, "__dict__", {"k": 3.0})


@case
def attribute_of_a_function_by_vars():
    def helper(x):
        return x

    helper.k = 2.0
    return lambda: vars(helper)["k"], lambda: setattr(helper, "k", 3.0)


@case
def attribute_that_a_function_that_runs_gets_later():
    def helper():
        return getattr(helper, "k", 2.0)

    return helper, lambda: setattr(helper, "k", 3.0)


@case
def default_by_a_computed_name():
    def helper(x, k=2.0):
        return k * x

    return lambda: getattr(helper, "__" + "defaults__")[0], lambda: setattr(helper, "__defaults__", (3.0,))


@case
def default_of_a_dataclass_field():
    @dataclasses.dataclass
    class Model:
        k: float = 2.0

    return lambda: dataclasses.fields(Model)[0].default, lambda: setattr(
        dataclasses.fields(Model)[0], "default", 3.0
    )


@case
def metadata_of_a_dataclass_field():
    numbers = {"k": 2.0}

    @dataclasses.dataclass
    class Model:
        k: float = dataclasses.field(default=1.0, metadata=numbers)

    return lambda: dataclasses.fields(Model)[0].metadata["k"], lambda: numbers.update(k=3.0)


@case
def default_of_a_dataclass_by_signature():
    @dataclasses.dataclass
    class Model:
        k: float = 2.0

    return lambda: default_of(Model), lambda: setattr(Model.__init__, "__defaults__", (3.0,))


@case
def numbers_of_a_dataclass_by_asdict():
    @dataclasses.dataclass
    class Model:
        k: float = 2.0

    model = Model()
    return lambda: dataclasses.asdict(model)["k"], lambda: setattr(model, "k", 3.0)


@case
def default_of_a_named_tuple():
    Pair = collections.namedtuple("Pair", "x k", defaults=[2.0])
    return lambda: Pair._field_defaults["k"], lambda: Pair._field_defaults.update(k=3.0)


@case
def default_of_a_named_tuple_by_signature():
    Pair = collections.namedtuple("Pair", "x k", defaults=[2.0])
    return lambda: default_of(Pair), lambda: setattr(Pair.__new__, "__defaults__", (3.0,))


@case
def registered_implementation():
    @functools.singledispatch
    def helper(x, k=2.0):
        return k

    return lambda: helper.dispatch(int)(1.0), lambda: helper.register(int, lambda x: 3.0)


@case
def member_by_getmembers():
    class Model:
        k = 2.0

    return lambda: dict(inspect.getmembers(Model))["k"], lambda: setattr(Model, "k", 3.0)


@case
def member_by_getattr_static():
    class Model:
        k = 2.0

    return lambda: inspect.getattr_static(Model, "k"), lambda: setattr(Model, "k", 3.0)


@case
def member_of_an_enumeration_by_iteration():
    Level = enum.Enum("Level", {"k": [2.0]})
    return lambda: next(iter(Level)).value[0], lambda: operator.setitem(Level.k.value, 0, 3.0)


@case
def default_of_a_bound_argument():
    def helper(x, k=2.0):
        return k * x

    def bound():
        arguments = inspect.signature(helper).bind(1.0)
        arguments.apply_defaults()
        return arguments.arguments["k"]

    return bound, lambda: setattr(helper, "__defaults__", (3.0,))


@case
def signature_that_is_kept():
    def helper(x, k=2.0):
        return k * x

    box = types.SimpleNamespace(signature=inspect.signature(helper))

    def change():
        helper.__defaults__ = (3.0,)
        box.signature = inspect.signature(helper)

    return lambda: box.signature.parameters["k"].default, change


@case
def order_of_base_classes():
    class One:
        k = 2.0

    class Two:
        k = 3.0

    class Model(One):
        pass

    return lambda: Model.__mro__[1].k, lambda: setattr(Model, "__bases__", (Two,))


@case
def type_variable_with_a_bound():
    box = types.SimpleNamespace(variable=typing.TypeVar("T", bound=typing.Literal[2]))

    def change():
        box.variable = typing.TypeVar("T", bound=typing.Literal[3])

    return lambda: float(box.variable.__bound__.__args__[0]), change


@pytest.fixture(scope="module")
def pair():
    lattice = Lattice(4)
    out, a = Field(lattice, Real()), Field(lattice, Real())
    a[...] = 1.0
    return out, a


@pytest.mark.parametrize("name", CASES)
def test_what_introspection_sees_is_watched(name, pair):
    out, a = pair
    expression, change = CASES[name]()

    @jali.site_function
    def scale(X, out, a):
        out[X] = expression() * a[X]

    if name == "closure by getclosurevars":
        with pytest.raises(TraceError, match="cell_contents, which jali cannot watch"):
            scale(out, a)
        return
    try:
        for _ in range(3):
            scale(out, a)
            assert np.all(out[...] == 2.0)
        assert sum(map(len, scale._programs.values())) == 1, "what did not change is not traced again"
        change()
        scale(out, a)
        assert np.all(out[...] == 3.0)
    finally:
        GLOBAL_HELPER.__defaults__ = (2.0,)
