"""Parameter files: strict, helpful about mistakes, and echoed exactly."""

from __future__ import annotations

import dataclasses
import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jali.cli.parameters import load_parameters, parse_parameters, render_parameters, resolve_key
from jali.cli.schema import (
    REQUIRED,
    ParameterSpec,
    RunParameters,
    group_name,
    parameter_specs,
    schema_markdown,
    toml_value,
)
from jali.errors import FileFormatError, ParameterError

SMALLEST = """\
[lattice]
extents = [8, 8, 8, 16]

[gauge]
group = "SU(3)"
beta = 5.7
"""


def complaint(text: str, *overrides: str) -> str:
    with pytest.raises(ParameterError) as caught:
        parse_parameters(text, "su3.toml", overrides)
    return str(caught.value)


def test_smallest_file_gets_every_default_with_its_type():
    parameters = parse_parameters(SMALLEST)
    assert parameters.lattice.extents == (8, 8, 8, 16)
    assert parameters.lattice.grid == ()
    assert parameters.gauge.beta == 5.7
    assert parameters.update.overrelaxation == 4
    assert parameters.update.heatbath == 1
    assert parameters.run.precision == "float64"
    assert parameters.measure.polyakov is True
    assert parameters.volume == 8**3 * 16
    for spec in parameter_specs():
        value = getattr(getattr(parameters, spec.section), spec.name)
        assert spec.check(value) == value
        if spec.default is not REQUIRED:
            assert value == spec.default
            assert type(value) is type(spec.default)


def test_parameters_cannot_be_changed():
    parameters = parse_parameters(SMALLEST)
    with pytest.raises(dataclasses.FrozenInstanceError):
        parameters.gauge.beta = 6.0  # type: ignore[misc]


def test_every_default_passes_its_own_check_and_every_key_is_documented():
    for spec in parameter_specs():
        value = spec.example if spec.default is REQUIRED else spec.default
        assert spec.check(value) == value
        assert spec.doc.endswith(".")
        assert len(spec.doc) > 10


def test_integer_is_accepted_where_a_number_is_needed_and_becomes_a_float():
    beta = parse_parameters(SMALLEST.replace("5.7", "6")).gauge.beta
    assert type(beta) is float
    assert beta == 6.0


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("SU(3)", "SU(3)"),
        ("SU3", "SU(3)"),
        ("su(2)", "SU(2)"),
        (" SU ( 12 ) ", "SU(12)"),
        ("u1", "U(1)"),
        ("U(1)", "U(1)"),
    ],
)
def test_group_spellings_mean_one_name(spelling, name):
    assert group_name(spelling) == name
    assert parse_parameters(SMALLEST.replace("SU(3)", spelling)).gauge.group == name


@pytest.mark.parametrize(
    "spelling", ["SU(1)", "U(2)", "SU", "SO(3)", "SU(3", "SU(0)", "3", "", "SU(-2)", "SU(2.0)"]
)
def test_other_groups_are_refused_with_what_would_be_right(spelling):
    message = complaint(SMALLEST.replace("SU(3)", spelling))
    assert message.startswith("su3.toml, line 5: group = ")
    assert '"U(1)" or "SU(N)" with N from 2' in message


def test_mistyped_key_names_file_line_and_the_nearest_key():
    message = complaint(SMALLEST + "bta = 5.8\n")
    assert message == 'su3.toml, line 7: [gauge] has no key "bta"; did you mean "beta"?'


def test_american_spelling_is_led_to_the_right_key():
    message = complaint(SMALLEST + "[update]\nthermalization = 10\n")
    assert 'line 8: [update] has no key "thermalization"; did you mean "thermalisation"?' in message


def test_key_of_another_section_is_sent_there():
    message = complaint(SMALLEST + "sweeps = 10\n")
    assert message == 'su3.toml, line 7: "sweeps" is not a key of [gauge]; it belongs under [update]'


def test_key_outside_any_section_is_sent_home():
    assert complaint("beta = 6.0\n" + SMALLEST) == (
        'su3.toml, line 1: "beta" stands outside any section; it belongs under [gauge]'
    )


def test_key_unlike_any_other_lists_those_of_its_section():
    message = complaint(SMALLEST + "[run]\nqqqq = 1\n")
    assert "line 8" in message
    assert "its keys are seed, stream, precision" in message


def test_mistyped_section_names_the_nearest_and_a_strange_one_lists_all():
    assert "line 7: there is no section [updates]; did you mean [update]?" in complaint(
        SMALLEST + "[updates]\nx = 1\n"
    )
    assert "[lattice], [gauge], [update], [hmc], [run], [measure]" in complaint(SMALLEST + "[zzz]\nx = 1\n")


def test_all_problems_are_reported_at_once():
    message = complaint(
        SMALLEST.replace("5.7", '"5.7"') + "bta = 1\n[run]\nseed = -1\n[update]\nsweeps = 2.0\n"
    )
    assert len(message.splitlines()) == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[update]\nsweeps = 2.0", "sweeps = 2.0, not an integer (write 2); must be an integer, 0 or more"),
        ("[update]\nsweeps = true", "sweeps = true; must be an integer, 0 or more"),
        ('[update]\nsweeps = "20"', 'sweeps = "20", a string; must be an integer, 0 or more'),
        ("[update]\nheatbath = 0", "heatbath = 0; must be an integer, 1 or more"),
        (
            "[update]\nmetropolis_step = 0",
            "metropolis_step = 0; must be a number above 0 and at most 3.14159 (radians)",
        ),
        ("[update]\nmetropolis_step = nan", "metropolis_step = nan; must be"),
        ("[update]\nmetropolis_step = inf", "metropolis_step = inf; must be"),
        ('[update]\nalgorithm = "hmd"', 'algorithm = "hmd"; must be one of "heatbath", "'),
        ("[run]\nprecision = 64", 'precision = 64; must be one of "float64", "float32"'),
        ("[run]\nseed = -1", "seed = -1; must be an integer from 0 to 9223372036854775807"),
        ("[measure]\nflow = 1", "flow = 1; must be true or false"),
        ("[measure]\nflow = {a = 1}", "flow = {a = 1}; must be true or false"),
        ("[measure]\nflow_step = 2026-01-01", "flow_step = 2026-01-01; must be a number"),
    ],
)
def test_wrong_values_are_refused_with_line_and_what_would_be_right(line, message):
    assert f"su3.toml, line 8: {message}" in complaint(SMALLEST + line + "\n")


@pytest.mark.parametrize(
    "extents", ["[8]", "[8, 8, 8, 8, 8]", "[]", "[8, 0]", "[8, -8]", "[8, 8.0]", "[8, true]", "8", '"8x8"']
)
def test_impossible_extents_are_refused(extents):
    message = complaint(SMALLEST.replace("[8, 8, 8, 16]", extents))
    assert (
        message == f"su3.toml, line 2: extents = {extents}; must be a list of 2 to 4 integers, each 1 or more"
    )


@pytest.mark.parametrize("beta", ["-0.1", "nan", "inf", "true", "[5.7]"])
def test_impossible_couplings_are_refused(beta):
    assert f"line 6: beta = {beta}; must be a number, 0 or more" in complaint(SMALLEST.replace("5.7", beta))


def test_missing_required_keys_are_named_with_an_example():
    message = complaint("[gauge]\nbeta = 6.0\n")
    assert "extents is missing under [lattice]; for example extents = [8, 8, 8, 8]" in message
    assert 'group is missing under [gauge]; for example group = "SU(3)"' in message


def test_grid_must_fit_the_lattice():
    assert "line 3: grid has 2 entries for a lattice of 4 directions [8, 8, 8, 16]" in complaint(
        SMALLEST.replace("16]", "16]\ngrid = [1, 2]")
    )
    assert "grid puts 9 ranks on the 8 sites of direction 1; use at most 8" in complaint(
        SMALLEST.replace("16]", "16]\ngrid = [1, 9, 1, 1]")
    )
    assert parse_parameters(SMALLEST.replace("16]", "16]\ngrid = [1, 3, 1, 16]")).lattice.grid == (
        1,
        3,
        1,
        16,
    )


def test_start_file_and_start_must_agree():
    assert 'line 7: start is "file", so start_file must name' in complaint(SMALLEST + 'start = "file"\n')
    assert 'line 7: start_file is given, but start is "hot"' in complaint(
        SMALLEST + 'start_file = "a.lime"\n'
    )
    both = parse_parameters(SMALLEST + 'start = "file"\nstart_file = "a.lime"\n')
    assert both.gauge.start_file == "a.lime"


def test_flow_step_must_not_exceed_the_flow_time():
    text = SMALLEST + "[measure]\nflow = true\nflow_time = 0.1\nflow_step = 0.2\n"
    assert "line 10: flow_step 0.2 is longer than flow_time = 0.1" in complaint(text)


def test_what_is_not_toml_is_refused_with_the_line():
    message = complaint("[gauge\nbeta = 1\n")
    assert message.startswith("su3.toml is not TOML:")
    assert "line 1" in message


def test_every_way_of_writing_a_key_is_understood_and_located():
    for text in (
        'lattice.extents = [4, 4]\ngauge.group = "U1"\ngauge.beta = -1\n',
        'lattice = {extents = [4, 4]}\n\ngauge = {group = "U1", beta = -1}\n',
        '[lattice]\n"extents" = [4, 4]\n[gauge] # here\ngroup = "U1"\n  beta  = -1\n',
    ):
        last = len(text.splitlines())
        assert complaint(text).startswith(f"su3.toml, line {last}: beta = -1")


def test_section_given_as_a_value_is_refused():
    assert "gauge = 3 stands where a section is needed; write [gauge]" in complaint(
        "gauge = 3\n" + SMALLEST.split("\n[")[0]
    )


# --- overrides ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("beta=6.0", "gauge.beta", 6.0),
        ("gauge.beta = 6", "gauge.beta", 6.0),
        ("group=SU2", "gauge.group", "SU(2)"),
        ("device=cuda", "run.device", "cuda"),
        ('run.device="cuda:1"', "run.device", "cuda:1"),
        ("group=SU(2)", "gauge.group", "SU(2)"),
        ('group="U1"', "gauge.group", "U(1)"),
        ("extents=[4,4]", "lattice.extents", (4, 4)),
        ("extents=4,4,4", "lattice.extents", (4, 4, 4)),
        ("precision=float32", "run.precision", "float32"),
        ("measure.flow=true", "measure.flow", True),
        ("sweeps=1_000", "update.sweeps", 1000),
    ],
)
def test_overrides_are_read_as_toml_with_bare_words_as_strings(override, path, value):
    section, name = path.split(".")
    parameters = parse_parameters(SMALLEST, overrides=[override])
    assert getattr(getattr(parameters, section), name) == value


@pytest.mark.parametrize("text", ["123", "2026-01-01", "a=b", "with space.lime", "true", "[x]", "C:\\data"])
def test_unquoted_text_is_taken_literally_where_a_string_is_wanted(text):
    parameters = parse_parameters(SMALLEST, overrides=["start=file", f"start_file={text}"])
    assert parameters.gauge.start_file == text


def test_later_overrides_win_and_can_supply_what_the_file_lacks():
    parameters = parse_parameters("", overrides=["extents=4,4", "group=U1", "beta=1", "beta=2"])
    assert parameters.gauge.beta == 2.0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("betta=6", '--set betta=6: there is no parameter "betta"; did you mean "gauge.beta"?'),
        ("gauge.betta=6", 'did you mean "gauge.beta"?'),
        ("beta", "--set beta: write --set key=value"),
        ("=6", "--set =6: write --set key=value"),
        ("beta=six", '--set beta=six: beta = "six", a string; must be a number, 0 or more'),
        ("beta=", '--set beta=: beta = "", a string; must be a number'),
        ("beta=6\n[run]\nseed=3", "a string; must be a number"),
        ("lattice=8,8", '"lattice" is a section; write one of its parameters: lattice.extents, lattice.grid'),
        ("extents=8,0", "extents = [8, 0]; must be a list of 2 to 4 integers, each 1 or more"),
        ("zzzz=1", "the parameters are lattice.extents"),
    ],
)
def test_wrong_overrides_are_refused_with_what_would_be_right(override, message):
    assert message in complaint(SMALLEST, override)


def test_ambiguous_short_key_lists_the_candidates():
    table = [
        ParameterSpec("run", "every", int, 1, "One."),
        ParameterSpec("measure", "every", int, 1, "Two."),
        ParameterSpec("measure", "flow", bool, False, "Three."),
    ]
    with pytest.raises(ParameterError, match=r'"every" is ambiguous; write one of run.every, measure.every'):
        resolve_key("every", table)
    assert resolve_key("measure.every", table) is table[1]
    assert resolve_key("flow", table) is table[2]


# --- files -------------------------------------------------------------------------------------------------


def test_file_is_read_and_unreadable_ones_are_named(tmp_path):
    path = tmp_path / "su3.toml"
    path.write_text(SMALLEST)
    assert load_parameters(path) == parse_parameters(SMALLEST)
    assert load_parameters(str(path), ["beta=6"]).gauge.beta == 6
    with pytest.raises(ParameterError, match=r"cannot read the parameter file .*absent\.toml: No such file"):
        load_parameters(tmp_path / "absent.toml")
    with pytest.raises(FileFormatError, match="is a folder; a parameter file"):
        load_parameters(tmp_path)
    path.write_bytes(b"[gauge]\n\xff\xfe")
    with pytest.raises(ParameterError, match="byte 8 is not UTF-8"):
        load_parameters(path)


# --- echo --------------------------------------------------------------------------------------------------


def strategy_for(spec: ParameterSpec) -> st.SearchStrategy:
    if spec.parse == "group":
        return st.sampled_from(["U(1)", "SU(2)", "SU(3)", "SU(11)"])
    if spec.parse == "device":
        return st.sampled_from(["", "cpu", "cuda", "cuda:3", "hip"])
    if spec.entry:
        return st.just(())
    if spec.choices and spec.is_list:
        return st.sampled_from(spec.choices).map(lambda name: (name,))
    if spec.choices:
        return st.sampled_from(spec.choices)
    if spec.is_list:
        return st.lists(st.integers(1, 10**4), min_size=4, max_size=4).map(tuple)
    if spec.kind is bool:
        return st.booleans()
    if spec.kind is str:
        return st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    if spec.kind is int:
        return st.integers(int(spec.low or 0), int(spec.high or spec.ceiling or 2**63 - 1))
    low = spec.low if spec.low is not None else 5e-324
    return st.floats(low, spec.high or 1e300)


@st.composite
def any_parameters(draw: st.DrawFn) -> RunParameters:
    sections: dict[str, dict] = {}
    for spec in parameter_specs():
        sections.setdefault(spec.section, {})[spec.name] = draw(strategy_for(spec))
    sections["lattice"]["grid"] = ()
    sections["gauge"]["start"] = "file" if sections["gauge"]["start_file"] else "cold"
    sections["measure"]["flow"] = False
    sections["hmc"]["tune_steps"] = 0.0
    if sections["gauge"]["group"] != "SU(3)":
        sections["run"]["save_format"] = "ildg"
    hints = {
        f.name: type(getattr(parse_parameters(SMALLEST), f.name)) for f in dataclasses.fields(RunParameters)
    }
    return RunParameters(**{name: hints[name](**keys) for name, keys in sections.items()})


@pytest.mark.parametrize("examples", [15, pytest.param(400, marks=pytest.mark.full)])
def test_echo_reads_back_to_exactly_the_same_parameters(examples):
    settings(deadline=None, max_examples=examples)(given(any_parameters())(read_back))()


def read_back(parameters):
    text = render_parameters(parameters)
    assert parse_parameters(text) == parameters
    assert render_parameters(parse_parameters(text)) == text


def test_echo_holds_every_value_and_its_meaning():
    text = render_parameters(parse_parameters(SMALLEST))
    document = tomllib.loads(text)
    squeezed = " ".join(text.replace("#", " ").split())
    for spec in parameter_specs():
        assert spec.name in document[spec.section]
        assert spec.doc in squeezed
    assert max(len(line) for line in text.splitlines()) <= 110


def test_floats_are_echoed_in_their_shortest_exact_form():
    assert toml_value(0.1) == "0.1"
    assert tomllib.loads(f"x = {toml_value(1e-300)}")["x"] == 1e-300
    assert tomllib.loads(f"x = {toml_value(math.pi)}")["x"] == math.pi


def test_documentation_page_has_one_line_for_every_key():
    page = schema_markdown()
    for spec in parameter_specs():
        assert page.count(f"| `{spec.name}` |") == 1
        assert spec.doc in page
    for section in ("lattice", "gauge", "update", "hmc", "run", "measure"):
        assert f"## `[{section}]`" in page
