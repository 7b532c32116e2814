"""What is shown of objects is short, in terminals and in notebooks, and names what they are."""

from html.parser import HTMLParser

import numpy as np

import jali
from jali import EVEN, SU, Complex, Field, Lattice, Real
from jali.gauge import GaugeField
from jali.solvers import cg


@jali.site_function
def smooth(X, out, f, weight=0.5):
    out[X] = weight * f[X] + f[X + X.directions()[0]]


class Tags(HTMLParser):
    """Counts what is opened and closed."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.seen = [], "", set()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(html):
    tags = Tags()
    tags.feed(html)
    assert not tags.open
    return tags


def test_lattices_fields_and_site_functions_say_what_they_are():
    lattice = Lattice(4, 6)
    assert repr(lattice) == "Lattice(4, 6)"
    assert repr(Field(lattice, Complex(), precision="float32")) == "<Complex field on Lattice(4, 6), float32>"
    assert repr(GaugeField(lattice, SU(2)).cold_start()) == "<SU(2) gauge field on Lattice(4, 6), float64>"
    assert repr(smooth) == "<site function smooth(X, out, f, weight=0.5)>"
    assert repr(smooth[EVEN]) == "<<site function smooth(X, out, f, weight=0.5)> over EVEN>"


def test_a_report_is_one_line_and_a_table_in_notebooks():
    lattice = Lattice(4, 6)
    out, f = (Field(lattice, Real(), name=name) for name in ("out", "a <b> & c"))
    report = jali.inspect(smooth, out, f)
    assert "\n" not in repr(report)
    assert repr(report).startswith("<kernel smooth: 2 flops, 24 bytes per site (at least 16), float64, ")
    assert report.source in str(report)
    shown = read(report._repr_html_())
    assert {"table", "details", "pre"} <= shown.seen
    assert "at (0, 0), (1, 0)" in shown.text
    assert report.source in shown.text


def test_a_solution_is_one_line_and_a_table_in_notebooks():
    rng = np.random.default_rng(1)
    a = rng.normal(size=(40, 40))
    a = a @ a.T + 40 * np.eye(40)

    def apply(p, q):
        q[...] = a @ p

    for must, most in ((True, 1000), (False, 2)):
        solution = cg(apply, rng.normal(size=40), maxiter=most, must_converge=must)
        how = "converged" if must else "not converged"
        text = f"<solution, {how} in {solution.iterations} iterations, residual {solution.residual:.2g}: array (40,) of float64>"
        assert repr(solution) == text
        shown = read(solution._repr_html_())
        assert f"{solution.history[-1]:.3e}" in shown.text
