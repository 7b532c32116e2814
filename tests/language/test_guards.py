"""No stale number: by whatever way a number comes into a traced function, a change of it changes the next run, or is refused."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import dataclasses
import datetime
import enum
import functools
import gc
import hashlib
import io
import itertools
import logging
import math
import operator
import os
import random
import signal
import sqlite3
import sys
import threading
import time
import types
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import jali
from jali import Field, Lattice, Real
from jali.codegen.stage_cache import COUNTS
from jali.gauge import SU, GaugeField
from jali.gauge.smearing import _stout

WAYS: dict[str, Any] = {}
SETTINGS = SimpleNamespace(coupling=2.0)
BELOW = 2.0
OTHER = 2.0


def way(case):
    """A case: makes (site function of X, out, a and perhaps more, further arguments, a change). The factor is 2 before it, 3 after."""
    WAYS[case.__name__.replace("_", " ")] = case
    return case


def plain(expression):
    """out = factor * a, where the expression is called while tracing."""

    @jali.site_function
    def f(X, out, a):
        out[X] = expression() * a[X]

    return f


@jali.site_function
def apply(X, out, a, potential):
    out[X] = potential(a[X])


# ---- functions, methods, partials and callable objects as arguments -----------------------------------


@way
def closure_of_an_argument():
    k = 2.0

    def potential(x):
        return k * x

    def change():
        nonlocal k
        k = 3.0

    return apply, (potential,), change


@way
def global_of_an_argument():
    return apply, (lambda x: BELOW * x,), lambda: globals().update(BELOW=3.0)


@way
def default_of_an_argument():
    def potential(x, k=2.0):
        return k * x

    return apply, (potential,), lambda: setattr(potential, "__defaults__", (3.0,))


@way
def keyword_default_of_an_argument():
    def potential(x, *, k=2.0):
        return k * x

    return apply, (potential,), lambda: potential.__kwdefaults__.update(k=3.0)


@way
def code_of_an_argument():
    def potential(x):
        return 2.0 * x

    def triple(x):
        return 3.0 * x

    return apply, (potential,), lambda: setattr(potential, "__code__", triple.__code__)


@way
def attribute_of_an_argument_that_is_a_function():
    def potential(x):
        return potential.k * x

    potential.k = 2.0
    return apply, (potential,), lambda: setattr(potential, "k", 3.0)


class Potential:
    scale = 1.0

    def __init__(self, k):
        self.k = k

    def times(self, x):
        return self.k * self.scale * x

    def __call__(self, x):
        return self.k * self.scale * x


@way
def attribute_of_a_function_that_is_not_called():
    def settings():
        pass

    settings.k = 2.0
    return plain(lambda: settings.k), (), lambda: setattr(settings, "k", 3.0)


@way
def bound_method_as_an_argument():
    potential = Potential(2.0)
    return apply, (potential.times,), lambda: setattr(potential, "k", 3.0)


@way
def callable_object_as_an_argument():
    potential = Potential(2.0)
    return apply, (potential,), lambda: setattr(potential, "k", 3.0)


@way
def class_attribute_of_a_callable_argument():
    class Mine(Potential):
        scale = 1.0

    return apply, (Mine(2.0),), lambda: setattr(Mine, "scale", 1.5)


@way
def argument_with_a_hash_by_value():
    @dataclasses.dataclass(unsafe_hash=True)
    class Scale:
        k: float

        def __call__(self, x):
            return self.k * x

    scale = Scale(2.0)
    return apply, (scale,), lambda: setattr(scale, "k", 3.0)


@way
def argument_without_a_hash():
    @dataclasses.dataclass
    class Scale:
        k: float

        def __call__(self, x):
            return self.k * x

    scale = Scale(2.0)
    return apply, (scale,), lambda: setattr(scale, "k", 3.0)


@way
def partial_with_an_object_as_an_argument():
    settings = SimpleNamespace(k=2.0)
    action = functools.partial(lambda s, x: s.k * x, settings)
    return apply, (action,), lambda: setattr(settings, "k", 3.0)


@way
def keyword_of_a_partial_as_an_argument():
    action = functools.partial(lambda x, k: k * x, k=2.0)
    return apply, (action,), lambda: action.keywords.update(k=3.0)


@way
def wrapped_function_as_an_argument():
    settings = [2.0]

    def decorate(function):
        @functools.wraps(function)
        def call(x):
            return function(x)

        return call

    return apply, (decorate(lambda x: settings[0] * x),), lambda: settings.__setitem__(0, 3.0)


@way
def function_inside_a_list_of_arguments():
    k = [1.5]

    @jali.site_function
    def f(X, out, a, terms):
        out[X] = sum(term(a[X]) for term in terms)

    return f, ([lambda x: 0.5 * x, lambda x: k[0] * x],), lambda: k.__setitem__(0, 2.5)


@way
def numpy_truth_as_an_argument():
    @jali.site_function
    def f(X, out, a, fine):
        out[X] = (3.0 if fine else 2.0) * a[X]

    given = [np.False_]

    class Now:  # what is given is looked up at each run
        def __iter__(self):
            return iter(given)

    return f, Now(), lambda: given.__setitem__(0, np.True_)


# ---- numbers of objects inside containers ----------------------------------------------------------------


@way
def object_in_a_list():
    terms = [SimpleNamespace(k=2.0)]
    return plain(lambda: terms[0].k), (), lambda: setattr(terms[0], "k", 3.0)


@way
def object_in_a_tuple_in_a_dictionary():
    terms = {"kinetic": (SimpleNamespace(k=2.0),)}
    return plain(lambda: terms["kinetic"][0].k), (), lambda: setattr(terms["kinetic"][0], "k", 3.0)


@way
def object_in_an_array_of_objects():
    terms = np.array([SimpleNamespace(k=2.0), None], object)
    return plain(lambda: terms[0].k), (), lambda: setattr(terms[0], "k", 3.0)


@way
def list_in_an_attribute():
    settings = SimpleNamespace(table=[1.0, 2.0])
    return plain(lambda: settings.table[1]), (), lambda: settings.table.__setitem__(1, 3.0)


@way
def function_in_a_dictionary():
    k = [2.0]
    table = {"square": lambda: k[0]}
    return plain(lambda: table["square"]()), (), lambda: k.__setitem__(0, 3.0)


@way
def another_function_in_a_dictionary():
    table = {"square": lambda: 2.0}
    return plain(lambda: table["square"]()), (), lambda: table.update(square=lambda: 3.0)


@way
def order_of_a_dictionary():
    table = {"x": 2.0, "y": 3.0}
    return plain(lambda: next(iter(table.values()))), (), lambda: table.update(x=table.pop("x"))


@way
def longer_list():
    table = [2.0]
    return plain(lambda: sum(table)), (), lambda: table.append(1.0)


@way
def set_of_numbers():
    table = {2.0}
    return plain(lambda: sum(table)), (), lambda: table.add(1.0)


@way
def deque_of_numbers():
    table = collections.deque([2.0])
    return plain(lambda: table[0]), (), lambda: table.appendleft(3.0)


@way
def chain_of_maps():
    first = {}
    table = collections.ChainMap(first, {"k": 2.0})
    return plain(lambda: table["k"]), (), lambda: first.update(k=3.0)


@way
def user_dictionary_and_ordered_dictionary():
    user, ordered = collections.UserDict(k=1.0), collections.OrderedDict(k=2.0)
    return plain(lambda: user["k"] * ordered["k"]), (), lambda: user.update(k=1.5)


@way
def default_dictionary():
    table = collections.defaultdict(lambda: 2.0)
    return plain(lambda: table["k"]), (), lambda: table.update(k=3.0)


@way
def view_of_a_mapping():
    table = {"k": 2.0}
    view = types.MappingProxyType(table)
    return plain(lambda: view["k"]), (), lambda: table.update(k=3.0)


@way
def named_tuple_of_objects():
    class Point(NamedTuple):
        x: Any

    point = Point(SimpleNamespace(k=2.0))
    return plain(lambda: point.x.k), (), lambda: setattr(point.x, "k", 3.0)


@way
def numpy_array_in_place():
    table = np.full(4096, 2.0)  # likewise
    return plain(lambda: table[1]), (), lambda: table.__setitem__(1, 3.0)


@way
def array_in_a_list_of_attributes():
    settings = SimpleNamespace(tables=[np.array([2.0])])
    return plain(lambda: settings.tables[0][0]), (), lambda: settings.tables[0].fill(3.0)


@way
def memory_of_other_kinds():
    one, two, three = array.array("d", [2.0]), bytearray(b"\x01"), ctypes.c_double(1.0)
    return (
        plain(lambda: one[0] * two[0] * three.value),
        (),
        lambda: setattr(three, "value", 1.5),
    )


@way
def element_of_an_array_of_the_array_module():
    table = array.array("d", [2.0] * 4096)  # the longest that a function may capture
    return plain(lambda: table[0]), (), lambda: table.__setitem__(0, 3.0)


@way
def element_of_a_memory_view():
    table = bytearray(b"\x02")
    view = memoryview(table)
    return plain(lambda: float(view[0])), (), lambda: table.__setitem__(0, 3)


# ---- the environment -------------------------------------------------------------------------------------


def _environment(read):
    def case():
        os.environ["JALI_TEST_COUPLING"] = "2"
        return plain(read), (), lambda: os.environ.update(JALI_TEST_COUPLING="3")

    return case


WAYS["os.environ[...]"] = _environment(lambda: float(os.environ["JALI_TEST_COUPLING"]))
WAYS["os.environ.get"] = _environment(lambda: float(os.environ.get("JALI_TEST_COUPLING", "7")))
WAYS["os.getenv"] = _environment(lambda: float(os.getenv("JALI_TEST_COUPLING", "7")))
WAYS["a copy of os.environ"] = _environment(lambda: float(dict(os.environ)["JALI_TEST_COUPLING"]))
GETENV = os.getenv
WAYS["os.getenv by another name"] = _environment(lambda: float(GETENV("JALI_TEST_COUPLING", "7")))


@way
def arguments_of_the_command():
    sys.argv.append("2")
    return plain(lambda: float(sys.argv[-1])), (), lambda: sys.argv.__setitem__(-1, "3")


# ---- names and attributes -------------------------------------------------------------------------------


@way
def global_of_a_function_that_is_called():
    return plain(lambda: _other()), (), lambda: globals().update(OTHER=3.0)


def _other():
    return OTHER


@way
def object_passed_to_a_function_that_reads_its_attribute():
    settings = SimpleNamespace(hidden=2.0)

    def read(what):
        return what.hidden

    return plain(lambda: read(settings)), (), lambda: setattr(settings, "hidden", 3.0)


@way
def nested_comprehension():
    settings = SimpleNamespace(k=1.0)
    return plain(lambda: sum(settings.k for _ in range(2))), (), lambda: setattr(settings, "k", 1.5)


@way
def function_inside_the_function():
    k = [2.0]

    @jali.site_function
    def f(X, out, a):
        def inner(y):
            return (lambda z: k[0] * z)(y)

        out[X] = inner(a[X])

    return f, (), lambda: k.__setitem__(0, 3.0)


@way
def closure_made_elsewhere():
    def make(k):
        def scale():
            return k[0]

        return scale

    k = [2.0]
    scale = make(k)
    return plain(lambda: scale()), (), lambda: k.__setitem__(0, 3.0)


@way
def attribute_with_a_fixed_name():
    settings = SimpleNamespace(k=2.0)
    return plain(lambda: getattr(settings, "k")), (), lambda: setattr(settings, "k", 3.0)  # noqa: B009


@way
def attribute_with_a_computed_name():
    settings = SimpleNamespace(coupling=2.0)
    return plain(lambda: getattr(settings, "coup" + "ling")), (), lambda: setattr(settings, "coupling", 3.0)


@way
def attribute_by_the_dictionary_of_an_object():
    settings = SimpleNamespace(k=2.0)
    return (
        plain(lambda: vars(settings)["k"] * settings.__dict__["k"] / 2),
        (),
        lambda: setattr(settings, "k", math.sqrt(6)),
    )


@way
def attribute_getter():
    settings, get = SimpleNamespace(coupling=2.0), operator.attrgetter("coupling")
    return plain(lambda: get(settings)), (), lambda: setattr(settings, "coupling", 3.0)


@way
def attribute_by_a_pattern():
    @dataclasses.dataclass
    class Settings:
        coupling: float

    settings = Settings(2.0)

    def read():
        match settings:
            case Settings(coupling=c):
                return c

    return plain(read), (), lambda: setattr(settings, "coupling", 3.0)


@way
def attribute_that_did_not_exist():
    class Settings:
        k = 2.0

    settings = Settings()
    return plain(lambda: settings.k), (), lambda: setattr(settings, "k", 3.0)


@way
def attribute_of_a_base_class():
    class Base:
        k = 2.0

    class Settings(Base):
        pass

    return plain(lambda: Settings.k), (), lambda: setattr(Base, "k", 3.0)


@way
def attribute_of_a_class_of_classes():
    class Meta(type):
        k = 2.0

    class Settings(metaclass=Meta):
        pass

    return plain(lambda: Settings.k), (), lambda: setattr(Meta, "k", 3.0)


@way
def attribute_with_a_computed_name_that_did_not_exist():
    class Settings:
        coupling = 2.0

    settings = Settings()
    return plain(lambda: getattr(settings, "coup" + "ling")), (), lambda: setattr(settings, "coupling", 3.0)


@way
def attribute_with_a_computed_name_of_a_module_and_a_class():
    module = types.ModuleType("settings_of_the_user")
    module.Settings = type("Settings", (), {"coupling": 2.0, "__module__": "settings_of_the_user"})
    return (
        plain(lambda: getattr(getattr(module, "Sett" + "ings"), "coup" + "ling")),
        (),
        lambda: setattr(module.Settings, "coupling", 3.0),
    )


@way
def module_of_the_user_with_a_name_of_pythons():
    module = types.ModuleType("statistics")
    module.__file__ = "/home/user/statistics.py"
    exec("k = 2.0\ndef coupling():\n    return k", module.__dict__)
    return plain(lambda: module.coupling()), (), lambda: setattr(module, "k", 3.0)


@way
def slot():
    class Settings:
        __slots__ = ("k",)

    settings = Settings()
    settings.k = 2.0
    return plain(lambda: settings.k), (), lambda: setattr(settings, "k", 3.0)


@way
def what_a_property_reads():
    class Settings:
        def __init__(self):
            self._k = 2.0

        @property
        def k(self):
            return self._k

    settings = Settings()
    return plain(lambda: settings.k), (), lambda: setattr(settings, "_k", 3.0)


@way
def another_property():
    class Settings:
        k = property(lambda self: 2.0)

    settings = Settings()
    return plain(lambda: settings.k), (), lambda: setattr(Settings, "k", property(lambda self: 3.0))


@way
def cached_property():
    class Settings:
        @functools.cached_property
        def k(self):
            return 2.0

    settings = Settings()
    return plain(lambda: settings.k), (), lambda: setattr(settings, "k", 3.0)


@way
def descriptor():
    class Number:
        value = 2.0

        def __get__(self, owner, kind):
            return self.value

    number = Number()
    settings = type("Settings", (), {"k": number})()
    return plain(lambda: settings.k), (), lambda: setattr(number, "value", 3.0)


@way
def attributes_made_up_by_getattr():
    class Settings:
        def __init__(self):
            self._values = {"k": 2.0}

        def __getattr__(self, name):
            try:
                return self._values[name]
            except KeyError:
                raise AttributeError(name) from None

    settings = Settings()
    return plain(lambda: settings.k), (), lambda: settings._values.update(k=3.0)


@way
def elements_made_up_by_getitem():
    class Table:
        scale = 1.0

        def __getitem__(self, k):
            return self.scale * k

    table = Table()
    return plain(lambda: table[2]), (), lambda: setattr(table, "scale", 1.5)


@way
def operator_of_an_object():
    class Coupling:
        def __init__(self, k):
            self.k = k

        def __mul__(self, other):
            return self.k * other

    coupling = Coupling(2.0)
    return plain(lambda: coupling), (), lambda: setattr(coupling, "k", 3.0)


@way
def static_method_and_class_method():
    class Settings:
        k = 2.0

        @classmethod
        def read(cls):
            return cls.k

        @staticmethod
        def one():
            return OTHER - OTHER + 1

    return plain(lambda: Settings.read() * Settings.one()), (), lambda: setattr(Settings, "k", 3.0)


@way
def replaced_method():
    class Settings:
        def k(self):
            return 2.0

    settings = Settings()
    return plain(lambda: settings.k()), (), lambda: setattr(Settings, "k", lambda self: 3.0)


@way
def instance_of_another_class():
    class Two:
        def k(self):
            return 2.0

    class Three:
        def k(self):
            return 3.0

    settings = Two()
    return plain(lambda: settings.k()), (), lambda: setattr(settings, "__class__", Three)


@way
def data_class():
    @dataclasses.dataclass
    class Settings:
        k: float = 2.0

    settings = Settings()
    return plain(lambda: settings.k), (), lambda: setattr(settings, "k", 3.0)


@way
def frozen_data_class_that_is_replaced():
    @dataclasses.dataclass(frozen=True)
    class Settings:
        k: float = 2.0

    settings = Settings()

    def change():
        nonlocal settings
        settings = dataclasses.replace(settings, k=3.0)

    return plain(lambda: settings.k), (), change


@way
def enumeration():
    class Kind(enum.Enum):
        SOFT = 2.0
        HARD = 3.0

    kind = Kind.SOFT

    def change():
        nonlocal kind
        kind = Kind.HARD

    return plain(lambda: kind.value), (), change


@way
def module_of_the_user():
    settings = types.ModuleType("settings_of_the_user")
    settings.k = 2.0
    return plain(lambda: settings.k), (), lambda: setattr(settings, "k", 3.0)


@way
def import_inside_the_function():
    module = types.ModuleType("settings_of_jali_tests")
    module.k = 2.0
    sys.modules["settings_of_jali_tests"] = module

    def read():
        from settings_of_jali_tests import k

        return k

    return plain(read), (), lambda: setattr(module, "k", 3.0)


@way
def evaluated_text():
    return plain(lambda: eval("SETTINGS.coupling")), (), lambda: setattr(SETTINGS, "coupling", 3.0)


@way
def sign_of_a_zero():
    k = 0.0

    def change():
        nonlocal k
        k = -0.0

    return plain(lambda: 2.0 if math.copysign(1.0, k) > 0 else 3.0), (), change


@way
def type_of_a_number():
    k = 1

    def change():
        nonlocal k
        k = 1.0

    return plain(lambda: 2.0 if isinstance(k, int) else 3.0), (), change


# ---- what the interpreter keeps -----------------------------------------------------------------------


@way
def context_variable():
    variable = contextvars.ContextVar("k")
    variable.set(2.0)
    return plain(lambda: variable.get()), (), lambda: variable.set(3.0)


@way
def number_of_a_thread():
    local = threading.local()
    local.k = 2.0
    return plain(lambda: local.k), (), lambda: setattr(local, "k", 3.0)


@way
def object_behind_a_weak_reference():
    settings = Potential(2.0)
    reference = weakref.ref(settings)
    held = [settings]
    return plain(lambda: reference().k), (), lambda: setattr(held[0], "k", 3.0)


@way
def cached_function():
    k = 2.0

    @functools.lru_cache
    def coupling():
        return k

    def change():
        nonlocal k
        k = 3.0
        coupling.cache_clear()

    return plain(lambda: coupling()), (), change


@way
def object_in_a_cache():
    @functools.cache
    def settings():
        return Potential(2.0)

    return plain(lambda: settings().k), (), lambda: setattr(settings(), "k", 3.0)


@way
def object_in_a_bounded_cache():
    @functools.lru_cache(maxsize=4)
    def settings(name):
        return Potential(2.0)

    settings("b")
    return plain(lambda: settings("a").k), (), lambda: setattr(settings("a"), "k", 3.0)


@way
def closure_from_a_cache_that_was_filled_before():
    table = [2.0]

    @functools.lru_cache
    def weighted():
        return lambda: table[0]

    class Weights:
        @property
        def weight(self):
            return weighted()

    weights = Weights()
    weights.weight()
    return plain(lambda: weights.weight()), (), lambda: table.__setitem__(0, 3.0)


@way
def method_of_a_list_by_another_name():
    table = [2.0]
    get = table.__getitem__
    return plain(lambda: get(0)), (), lambda: table.__setitem__(0, 3.0)


@way
def site_function_in_a_site_function():
    k = [2.0]

    @jali.site_function
    def inner(X, out, a):
        out[X] = k[0] * a[X]

    @jali.site_function
    def f(X, out, a):
        inner(X, out, a)

    return f, (), lambda: k.__setitem__(0, 3.0)


@way
def single_dispatch():
    k = [2.0]

    @functools.singledispatch
    def coupling(x):
        return k[0]

    return plain(lambda: coupling(1)), (), lambda: k.__setitem__(0, 3.0)


@pytest.fixture
def pair():
    lattice = Lattice(4, 4)
    a, out = Field(lattice, Real()), Field(lattice, Real())
    a[...] = np.arange(16.0).reshape(4, 4) + 1
    return out, a


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """Globals, arguments and modules that cases change."""
    for name in ("BELOW", "OTHER"):
        monkeypatch.setitem(globals(), name, 2.0)
    monkeypatch.setattr(SETTINGS, "coupling", 2.0)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setitem(sys.modules, "settings_of_jali_tests", None)
    monkeypatch.setenv("JALI_TEST_COUPLING", "0")


@pytest.mark.short(2)
@pytest.mark.parametrize("name", WAYS)
def test_a_change_is_seen_by_the_next_run(name, pair):
    out, a = pair
    f, more, change = WAYS[name]()
    for _ in range(2):
        f(out, a, *more)
        assert np.array_equal(out[...], 2.0 * a[...])
    assert len(f._latest) == 1 or f is apply, "what did not change is not traced again"
    change()
    for _ in range(2):
        f(out, a, *more)
        assert np.allclose(out[...], 3.0 * a[...], rtol=1e-15)


@pytest.mark.parametrize("name", WAYS)
def test_what_did_not_change_is_traced_once(name, pair):
    out, a = pair
    f, more, change = WAYS[name]()
    assert change
    before = sum(map(len, f._programs.values()))
    for _ in range(4):
        f(out, a, *more)
    assert sum(map(len, f._programs.values())) == before + 1


def test_a_change_and_back_finds_the_launch_of_before(pair):
    out, a = pair
    k = 2.0
    f = plain(lambda: k)
    for value in (2.0, 3.0, 2.0, 3.0, 2.0):
        k = value
        f(out, a)
        assert np.array_equal(out[...], value * a[...])
    assert len(f._bound) == 2


def test_a_function_that_is_made_again_with_the_same_numbers_is_not_traced_again(pair):
    out, a = pair

    def make(k):
        return lambda: k

    action = make(2.0)
    f = plain(lambda: action())
    for k in (2.0, 2.0, 3.0):
        action = make(k)
        f(out, a)
        assert np.array_equal(out[...], k * a[...])
    assert sum(map(len, f._programs.values())) == 2


STANDING = Potential(2.0)

# ---- what only hostile programs change ------------------------------------------------------------------


def _special(method):
    class Number:
        pass

    setattr(Number, method, lambda self, *_: 2.0)
    number = Number()
    return number, lambda: setattr(Number, method, lambda self, *_: 3.0)


@way
def special_method_that_is_replaced():
    number, change = _special("__call__")
    return plain(lambda: number()), (), change


@way
def conversion_that_is_replaced():
    number, change = _special("__float__")
    return plain(lambda: float(number)), (), change


@way
def special_method_where_attributes_are_looked_up_by_name():
    number, change = _special("__call__")
    return plain(lambda: getattr(number, "__call__")()), (), change  # noqa: B009, B004


@way
def another_itemgetter():
    getters = [operator.itemgetter(0)]
    return plain(lambda: getters[0]([2.0, 3.0])), (), lambda: getters.__setitem__(0, operator.itemgetter(1))


@way
def another_methodcaller():
    getters = [operator.methodcaller("index", "c")]
    return (
        plain(lambda: float(getters[0]("abcd"))),
        (),
        lambda: getters.__setitem__(0, operator.methodcaller("index", "d")),
    )


@way
def attribute_of_a_partial():
    bound = functools.partial(float, 2.0)
    bound.factor = 2.0
    return plain(lambda: bound.factor), (), lambda: setattr(bound, "factor", 3.0)


@way
def state_of_a_partial():
    bound = functools.partial(float, 2.0)
    return plain(lambda: bound()), (), lambda: bound.__setstate__((float, (3.0,), {}, {}))


@way
def row_of_a_structured_array():
    table = np.array([(2.0,)], dtype=[("mass", "f8")])
    row = table[0]
    return plain(lambda: float(row["mass"])), (), lambda: table["mass"].__setitem__(0, 3.0)


@way
def attribute_of_an_array():
    class Table(np.ndarray):
        pass

    table = np.zeros(1).view(Table)
    table.factor = 2.0
    return plain(lambda: table.factor), (), lambda: setattr(table, "factor", 3.0)


@way
def attribute_of_a_field():
    field = Field(Lattice(4, 4), Real())
    field.coupling = 2.0
    return plain(lambda: field.coupling), (), lambda: setattr(field, "coupling", 3.0)


@way
def attribute_of_a_site_function():
    f = plain(lambda: f.coupling)
    f.coupling = 2.0
    return f, (), lambda: setattr(f, "coupling", 3.0)


@way
def arguments_of_an_exception():
    error = ValueError(2.0)
    return plain(lambda: error.args[0]), (), lambda: setattr(error, "args", (3.0,))


@way
def attribute_of_a_parent_through_super():
    class Parent:
        mass = 2.0

    class Child(Parent):
        mass = 7.0

    above = super(Child, Child())
    return plain(lambda: above.mass), (), lambda: setattr(Parent, "mass", 3.0)


@way
def match_arguments_of_a_class():
    class Point:
        __match_args__ = ("x",)
        x, y = 2.0, 3.0

    point = Point()

    def first():
        match point:
            case Point(value):
                return value

    return plain(first), (), lambda: setattr(Point, "__match_args__", ("y",))


@way
def attribute_in_a_format():
    thing = SimpleNamespace(mass=2.0)
    return plain(lambda: float("{.mass}".format(thing))), (), lambda: setattr(thing, "mass", 3.0)  # noqa: UP032


@way
def getattr_that_is_handed_on():
    thing = SimpleNamespace(mass=2.0)
    return plain(lambda: sum(map(getattr, [thing], ["mass"]))), (), lambda: setattr(thing, "mass", 3.0)


@way
def bound_getattribute():
    thing = SimpleNamespace(mass=2.0)
    look = thing.__getattribute__
    return plain(lambda: look("mass")), (), lambda: setattr(thing, "mass", 3.0)


def test_builtins_that_a_program_adds_or_replaces_are_watched(pair, monkeypatch):
    import builtins

    out, a = pair
    monkeypatch.setattr(builtins, "jali_test_coupling", 2.0, raising=False)
    f = plain(lambda: jali_test_coupling + abs(0.0))  # noqa: F821
    f(out, a)
    assert np.array_equal(out[...], 2.0 * a[...])
    monkeypatch.setattr(builtins, "jali_test_coupling", 3.0)
    f(out, a)
    assert np.array_equal(out[...], 3.0 * a[...])
    monkeypatch.setattr(builtins, "abs", lambda x: 1.0)
    f(out, a)
    assert np.array_equal(out[...], 4.0 * a[...])


@pytest.mark.parametrize("maxsize", [None, 8])
def test_functions_of_a_cache_are_known_again(pair, maxsize):
    out, a = pair

    @functools.lru_cache(maxsize)
    def weighted(c):
        def g(X, f):
            return c * f[X]

        return g

    class Weights:
        c = 2.0

        @property
        def weigh(self):
            return weighted(self.c)

    weights = Weights()
    kept = [weighted(c) for c in (5.0, 2.0, 3.0)]

    @jali.site_function
    def f(X, out, a):
        out[X] = weights.weigh(X, a)

    for c in (2.0, 3.0):
        weights.c = c
        f(out, a)
        assert np.array_equal(out[...], c * a[...])
    made = COUNTS["traced"].made
    for c in (2.0, 5.0, 3.0):  # hits, in another order
        assert weighted(c) in kept
    f(out, a)
    assert COUNTS["traced"].made == made


def test_a_closure_of_jali_that_cannot_be_seen_is_refused_where_it_is_called():
    U = GaugeField(Lattice(4, 4), SU(2)).cold_start()
    V = U.copy()
    hidden = itertools.repeat(_stout((0, 1)).function)

    @jali.site_function
    def f(X, V, U):
        next(hidden)(X, V, U, 0.1, X.directions()[0])

    with pytest.raises(jali.TraceError, match=r"hides its closure \(axes\)") as caught:
        f(V, U)
    assert str(caught.value).endswith(f"{__file__}:{f.function.__code__.co_firstlineno + 2}")


# ---- what is refused ----------------------------------------------------------------------------------------

POINTED = ctypes.pointer(ctypes.c_double(2.0))
HOLDING = np.array([(2.0, None)], dtype=[("mass", "f8"), ("more", "O")])
VECTORISED = np.frompyfunc(SimpleNamespace(mass=2.0).__getattribute__, 1, 1)

REFUSED: dict[str, Any] = {
    "what a pointer points to": lambda: POINTED.contents.value,
    "structures that hold objects": lambda: float(HOLDING["mass"][0]),
    "np.frompyfunc": lambda: float(VECTORISED("mass")),
    "os.path.exists": lambda: 1.0 + os.path.exists("nowhere"),
    "Path.exists": lambda: 1.0 + Path("nowhere").exists(),
    "globals of a frame": lambda: sys._getframe().f_globals["BELOW"],
    "globals of a function": lambda: plain.__globals__["BELOW"],
    "contents of a cell": lambda: plain(float).function.__closure__[0].cell_contents(2.0),
    "subclasses": lambda: 1.0 + len(Potential.__subclasses__()),
    "the collector": lambda: 1.0 + len(gc.get_objects()),
    "time.time": lambda: time.time(),
    "time.perf_counter": lambda: time.perf_counter() * 0 + 1,
    "datetime.now": lambda: datetime.datetime.now().second,
    "date.today": lambda: datetime.date.today().day,
    "random.random": lambda: random.random(),
    "random.uniform": lambda: random.uniform(1, 2),
    "np.random.random": lambda: np.random.random(),
    "a generator of NumPy": functools.partial(lambda rng: rng.normal(), np.random.default_rng(1)),
    "a generator of Python": functools.partial(lambda rng: rng.gauss(0, 1), random.Random(1)),
    "os.urandom": lambda: os.urandom(1)[0],
    "an iterator": functools.partial(lambda it: next(it), iter([1.0, 2.0, 3.0])),
    "a counter": functools.partial(lambda it: next(it), itertools.count(1)),
    "a generator that is used up": functools.partial(lambda it: sum(it), (x for x in (1.0, 2.0))),
    "a file": lambda: float(len(open(__file__).read())),  # noqa: SIM115
    "a file by its path": lambda: float(len(Path(__file__).read_text())),
    "an open file": functools.partial(lambda file: float(file.readline()), io.StringIO("1\n2\n")),
    "globals()": lambda: globals()["BELOW"],
    "a list that grows": functools.partial(lambda table: table.append(1.0) or sum(table), [1.0]),
    "a list that is used up": functools.partial(lambda table: table.pop(), [1.0, 2.0, 3.0]),
    "an attribute that counts": functools.partial(
        lambda s: setattr(s, "n", s.n + 1) or 1.0, SimpleNamespace(n=0)
    ),
    "a weak proxy": functools.partial(lambda p: p.k, weakref.proxy(STANDING)),
    "a large array": functools.partial(lambda t: t[0], np.zeros(5000)),
    "the table of modules": lambda: sys.modules[__name__].BELOW,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_watched_is_refused_at_the_line_of_the_user(name, pair):
    out, a = pair
    f = plain(REFUSED[name])
    with pytest.raises(jali.TraceError, match="pass .*as (an )?argument") as error:
        f(out, a)
    assert not f._bound
    assert "plain" in str(error.value) or __file__ in str(error.value) or "f captures" in str(error.value)


@pytest.mark.parametrize(
    ("table", "read", "kind"),
    [
        (hashlib.sha256(b"x"), lambda table: float(table.digest()[0]), "_hashlib.HASH"),
        (sqlite3.connect(":memory:"), lambda table: 1.0 + table.total_changes, "sqlite3.Connection"),
    ],
)
def test_an_object_of_compiled_code_is_refused_by_name(table, read, kind, pair):
    out, a = pair
    with pytest.raises(jali.TraceError, match=f"captures table, a {kind}"):
        plain(lambda: read(table))(out, a)


def test_a_refusal_that_the_function_catches_is_a_refusal_still(pair):
    out, a = pair

    def read():
        try:
            return time.time()
        except jali.TraceError:
            return 1.0

    with pytest.raises(jali.TraceError, match="time.time"):
        plain(read)(out, a)


def test_values_of_a_field_are_not_read_while_tracing(pair):
    out, a = pair
    with pytest.raises(jali.TraceError, match="read from Python while a site function is traced"):
        plain(lambda: a[0, 0])(out, a)
    with pytest.raises(jali.TraceError, match="read from Python while a site function is traced"):
        plain(lambda: a.local().sum())(out, a)


def test_a_symbol_that_is_kept_is_refused(pair):
    out, a = pair
    kept = {}

    @jali.site_function
    def f(X, out, a):
        out[X] = kept.setdefault("a", a[X])

    with pytest.raises(jali.TraceError, match="keeps a symbol of the trace"):
        f(out, a)


def test_profilers_stay_in_place_while_functions_are_traced(pair):
    import cProfile

    out, a = pair
    profile = cProfile.Profile()
    profile.enable()
    plain(lambda: 2.0)(out, a)
    sorted([3, 1, 2])
    profile.disable()
    names = {getattr(entry.code, "co_name", entry.code) for entry in profile.getstats()}
    assert "<built-in method builtins.sorted>" in names

    seen = []
    sys.setprofile(lambda *event: seen.append(event[1]))
    try:
        plain(lambda: 2.0)(out, a)
        seen.clear()
        len([])
        assert seen
    finally:
        sys.setprofile(None)


class Simulation:
    """An object as programs have it, of which a site function reads one number."""

    def __init__(self):
        self.coupling = 2.0
        self.rng, self.random = np.random.default_rng(1), jali.Random(1)
        self.configuration = np.zeros(10**5)
        self.history = [float(k) for k in range(200_000)]
        self.connection, self.iterator = sqlite3.connect(":memory:"), itertools.count()
        self.lock, self.thread = threading.Lock(), threading.current_thread()

    def action(self, x):
        return self.coupling * x


@pytest.mark.parametrize("how", ["attribute", "method", "getattr of a fixed name"])
def test_an_object_is_followed_as_far_as_the_code_mentions_it(how, pair):
    out, a = pair
    simulation = Simulation()
    f = {
        "attribute": plain(lambda: simulation.coupling),
        "method": plain(lambda: simulation.action(1.0)),
        "getattr of a fixed name": plain(
            lambda: getattr(simulation, "coupling", None) + hasattr(simulation, "none") * 1.0
        ),
    }[how]
    f(out, a)
    simulation.history.append(1.0)
    f(out, a)
    assert len(f._programs) == len(f._bound) == 1
    simulation.coupling = 3.0
    f(out, a)
    assert np.array_equal(out[...], 3.0 * a[...])


def test_code_of_the_library_that_jali_calls_is_nobodys(pair):
    """Else names of its own would be followed in all objects, or every name, since some of it uses getattr."""
    out, a = pair
    f = plain(lambda: SETTINGS.coupling)
    f(out, a)
    ((traced,),) = f._programs.values()
    assert not traced.guards.seen.any
    assert set(traced.guards.seen.names) <= {"coupling", "f", "<lambda>"}


def test_finalizers_callbacks_and_handlers_of_signals_and_messages_are_no_part_of_the_function(pair):
    out, a = pair
    calls = []

    def tick(*_):
        calls.append(time.time())

    class Resource:
        def __del__(self):
            tick()

    class Handler(logging.Handler):
        def emit(self, record):
            tick()

    logger = logging.Logger("jali test")
    logger.addHandler(Handler())

    def expression():
        resource = Resource()
        reference = weakref.ref(resource, lambda _: tick())
        weakref.finalize(resource, lambda: tick())
        del resource
        assert reference() is None
        logger.warning("traced")
        signal.raise_signal(signal.SIGUSR1)
        return 2.0

    before = signal.signal(signal.SIGUSR1, tick)
    try:
        plain(expression)(out, a)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(calls) == 10  # it is traced twice
    assert np.array_equal(out[...], 2.0 * a[...])


def test_what_the_collector_calls_is_no_part_of_the_function(pair):
    """Its callbacks and finalizers run in the middle of anything, and may look at the time."""
    out, a = pair

    def look(*_):
        time.perf_counter()

    def expression():
        for _ in range(5000):
            cycle = []
            cycle.append(cycle)
        return 2.0

    gc.callbacks.append(look)
    try:
        plain(expression)(out, a)
    finally:
        gc.callbacks.remove(look)
    assert gc.isenabled()
    assert np.array_equal(out[...], 2.0 * a[...])


def test_site_functions_that_saw_themselves_are_collected(pair):
    out, a = pair

    def make():
        table = [2.0]

        @jali.site_function
        def f(X, out, a):
            out[X] = table[0] * a[X]

        table.append(f)  # what is watched holds the function that watches
        f(out, a)
        return weakref.ref(f)

    gone = make()
    gc.collect()
    assert gone() is None
