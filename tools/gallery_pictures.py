"""Draw the pictures of examples/ for the gallery: `python tools/gallery_pictures.py [NAME ...]`, some minutes for all.

An example is run as it is, in an empty folder, and drawn from what it printed and the variables that it ends with. Programs of C++ are
drawn by the plan of what they do. `jali example NAME --picture FILE` draws the applications. A new example is an entry of `PICTURES`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from jali import planner
from jali.cli.main import main as jali
from jali.cli.report_data import summarise
from jali.cli.report_plots import MEAN, REFERENCE, STYLE, history_figure

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES, IMAGES = ROOT / "examples", ROOT / "docs" / "images" / "examples"
DPI = 72
POINTS: Any = {"fmt": "o", "color": MEAN, "markersize": 4, "capsize": 2}


def run(name: str, *words: str) -> tuple[dict[str, Any], str]:
    """Run a script of examples/; the variables that it ends with, and what it printed."""
    said, given = io.StringIO(), sys.argv
    sys.argv = [str(EXAMPLES / name), *words]
    sys.path.insert(0, str(EXAMPLES))  # as when Python runs a script
    try:
        with contextlib.redirect_stdout(said):
            return runpy.run_path(sys.argv[0], run_name="__main__"), said.getvalue()
    finally:
        sys.argv = given
        sys.path.remove(str(EXAMPLES))


def numbers(pattern: str, text: str) -> np.ndarray:
    """The numbers of each place that fits, a row for each."""
    return np.array([[float(number) for number in row] for row in re.findall(pattern, text)])


def axes(columns: int = 1, **sizes: Any) -> tuple[Figure, Any]:
    """A figure in the style of reports."""
    figure = Figure(figsize=(5.2 if columns == 1 else 8.4, 3.0), layout="constrained")
    return figure, figure.subplots(1, columns, **sizes)


def gradient_flow() -> Figure:
    found, _ = run("gradient_flow.py")
    figure, (left, right) = axes(2)
    times = [p.time for p in found["points"]]
    left.plot(times, [p.t2_energy for p in found["points"]], "o-", color=MEAN, markersize=3)
    left.axhline(0.3, color=REFERENCE, linewidth=1)
    left.set(title="t² E, and 0.3", xlabel="flow time t")
    right.plot(times, [p.charge for p in found["points"]], "o-", color=MEAN, markersize=3)
    right.set(title="topological charge", xlabel="flow time t")
    return figure


def heat() -> Figure:
    found, _ = run("heat.py")
    lattice, columns = found["lattice"], found["MODES"]
    figure, panels = axes(len(columns), sharey=True)
    for axis, (ends, mode) in zip(panels, columns.items(), strict=True):
        u = lattice.field(found["jali"].Real(), boundary=ends)
        new = u.like()
        start = np.multiply.outer(*(mode(n, 1)[1] for n in lattice.extents))
        row = int(np.argmax(start.max(0)))
        u[...] = start
        for steps in range(0, 301, 100):
            axis.plot(u[:, row], label=f"{steps} steps")
            for _ in range(100):
                found["diffuse"](new, u, found["r"])
                u, new = new, u
        axis.set(title=ends, xlabel="x")
    panels[0].legend()
    return figure


def ising() -> Figure:
    found, said = run("ising.py")
    n, energy = found["n"], numbers(r"beta (\S+)  energy ([-\d.]+)\(", said)
    figure, (left, right) = axes(2, width_ratios=(1.5, 1))
    betas = np.linspace(0.19, 0.51, 200)
    left.plot(betas, [found["exact_energy"](beta, n) for beta in betas], color=REFERENCE, label="exact")
    left.plot(*energy.T, "o", color=MEAN, markersize=4, label="heat bath")
    left.set(title="energy per site", xlabel="β")
    left.legend()
    lattice = found["jali"].Lattice(128, 128)
    spin = lattice.field(found["jali"].Real())
    spin[...] = 1.0
    for _ in range(1000):
        for colour in found["EVEN"], found["ODD"]:
            found["heat_bath"][colour](spin, found["rng"], 0.44)
    right.imshow(spin[...].T, cmap="Blues", interpolation="nearest")
    right.set(title="128 x 128 spins, β = 0.44", xticks=[], yticks=[])
    return figure


def momentum_correlator() -> Figure:
    found, _ = run("momentum_correlator.py")
    figure, axis = axes()
    p2 = 4 * np.sum(np.sin(np.pi / 12 * np.array(found["momenta"])) ** 2, axis=1)
    line = np.linspace(0, p2.max(), 100)
    axis.plot(line, np.arccosh(1 + (found["m2"] + line) / 2), color=REFERENCE, label="exact")
    axis.errorbar(p2, found["found"].value, found["found"].error, **POINTS, label="measured")
    axis.set(title="energies of a free field", xlabel="momentum of the lattice, squared")
    axis.legend()
    return figure


def history(of: np.ndarray, mean: float, title: str, known: str = "exact") -> Figure:
    """A series, and its mean, which is known."""
    figure, axis = axes()
    axis.plot(of, color=MEAN, linewidth=0.7)
    axis.axhline(mean, color=REFERENCE, linewidth=1.2, label=f"{known} {mean:.6f}")
    axis.set(title=title, xlabel="sweep")
    axis.legend()
    return figure


def o3_overrelaxation() -> Figure:
    found, _ = run("o3_overrelaxation.py")
    return history(np.array(found["found"]), found["exact"], "⟨s·s'⟩ of neighbours, β = 2")


def phi4() -> Figure:
    found, _ = run("phi4.py", "--couplings", "0")
    figure, axis = axes()
    series, exact = found["series"], found["exact"]
    errors = [found["mean_error"](column).error for column in series.T]
    axis.plot(exact, color=REFERENCE, label="exact")
    axis.errorbar(range(len(exact)), series.mean(0), errors, **POINTS, label="heat bath")
    axis.set(title="correlation of time slices, λ = 0", xlabel="t", yscale="log")
    axis.legend()
    return figure


def pion() -> Figure:
    found, _ = run("pion_from_ensemble.py")
    C, mass, fit = found["C"], found["mass"], found["fit"]
    t = np.arange(C.shape[1])
    figure, (left, right) = axes(2)
    left.errorbar(t, C.mean(0), C.std(0) / np.sqrt(len(C)), **POINTS)
    left.set(title="pion correlator", xlabel="t", yscale="log")
    half = (mass.t > 0) & (mass.t < C.shape[1] // 2)
    right.axhspan(fit.mass - fit.error, fit.mass + fit.error, color=REFERENCE, alpha=0.25)
    right.errorbar(mass.t[half], mass.value[half], mass.error[half], **POINTS)
    right.set(title="effective mass, and the average of fits", xlabel="t", xticks=mass.t[half])
    return figure


def own_correlator() -> Figure:
    found, _ = run("own_correlator.py")
    figure, axis = axes()
    axis.plot(found["local"].real[1:], "o", color=MEAN, markersize=4, label="local current")
    axis.plot(found["C"].real[1:], "o", color=REFERENCE, markersize=4, label="conserved current")
    axis.set(title="charge by time slice", xlabel="t - 1")
    axis.legend()
    return figure


def plaquette() -> Figure:
    found, _ = run("plaquette.py")
    return history(np.array(found["history"]), 0.549195, "plaquette of SU(3), β = 5.7, 8⁴", "literature")


def potts() -> Figure:
    found, _ = run("potts.py", "--sweeps", "5000")
    series = np.array(found["found"][1000:])
    return history(
        np.cumsum(series) / np.arange(1, len(series) + 1), found["exact"], "equal bonds, q = 3, mean so far"
    )


def su2_deconfinement() -> Figure:
    found, _ = run("su2_deconfinement.py")
    figure, axis = axes()
    axis.plot(*zip(*sorted(found["found"].items()), strict=True), "o-", color=MEAN, markersize=4)
    axis.axvline(1.880, color=REFERENCE, linewidth=1, label="β$_c$ = 1.880")
    axis.set(title="mean Polyakov loop ⟨|L|⟩, two time slices", xlabel="β")
    axis.legend()
    return figure


def su2_higgs() -> Figure:
    found, _ = run("su2_higgs.py")
    figure, axis = axes()
    for column, label, color in zip(
        zip(*found["seen"], strict=True), ("plaquette", "hopping"), (MEAN, REFERENCE), strict=True
    ):
        axis.plot(column, color=color, label=label)
    axis.set(title="SU(2) with a Higgs field, β = 2.3, κ = 0.5", xlabel="sweep")
    axis.legend()
    return figure


def my_action() -> Figure:
    found, _ = run("my_action.py", "--trajectories", "100")
    figure, (left, right) = axes(2, width_ratios=(1.6, 1), sharey=True)
    for (lam, Q), color in zip(found["charges"].items(), (REFERENCE, MEAN), strict=True):
        left.plot(Q, color=color, linewidth=0.8)
        right.hist(
            Q,
            bins=np.linspace(-0.6, 0.6, 25),
            orientation="horizontal",
            color=color,
            alpha=0.7,
            label=f"λ = {lam:g}",
        )
    left.set(title="charge of HYP-smeared links", xlabel="trajectory", ylabel="Q")
    right.set(title="how often", xlabel="trajectories")
    right.legend()
    return figure


def u1_2d() -> Figure:
    found, said = run("u1_2d.py")
    measured = numbers(r"(\d+\.\d\d)   (\d\.\d+)\(", said)
    figure, axis = axes()
    betas = np.linspace(0.1, 4.2, 100)
    axis.plot(betas, [found["bessel_ratio"](beta) for beta in betas], color=REFERENCE, label="I₁(β) / I₀(β)")
    axis.plot(*measured.T, "o", color=MEAN, markersize=4, label="measured")
    axis.set(title="plaquette of U(1) in two dimensions", xlabel="β")
    axis.legend()
    return figure


def red_black() -> Figure:
    found, _ = run("red_black.py")
    figure, (left, right) = axes(2)
    left.imshow(found["potential"][...], cmap="RdBu")
    left.set(title="the potential of four charges", xticks=[], yticks=[])
    left.grid(False)
    for (name, history), color in zip(found["histories"].items(), (REFERENCE, MEAN, "C1"), strict=True):
        right.loglog(list(history), list(history.values()), color=color, label=name)
    right.set(title="residual", xlabel="sweeps")
    right.legend()
    return figure


def convergence() -> Figure:
    found, _ = run("convergence.py")
    figure, (left, right) = axes(2, sharey=True)
    for name, (at, residuals) in found["histories"].items():
        panel = right if "even-odd" in name or "16 bits" in name else left
        panel.semilogy(at, residuals, label=name, linewidth=1)
    left.set(title="solvers of D x = b", xlabel="applications of D", ylabel="|r| / |b|")
    right.set(title="even-odd, and in 16 bits", xlabel="applications of D")
    left.legend()
    right.legend()
    return figure


def eigenvalues() -> Figure:
    figure, panels = axes(2, sharex=True)
    for axis, charge in zip(panels, ("1", "2"), strict=True):
        found, _ = run("eigenvalues.py", "--charge", charge, "--extent", "6")
        modes = [(m, *mode) for m, flow in zip(found["masses"], found["flow"], strict=True) for mode in flow]
        m, values, chirality = np.array(modes).T
        points = axis.scatter(m, values, c=chirality, cmap="coolwarm", vmin=-1, vmax=1, s=14)
        axis.axhline(0, color=REFERENCE, linewidth=0.8)
        axis.set(title=f"charge {charge}", xlabel="mass")
    panels[0].set_ylabel("eigenvalues of γ₅ D")
    figure.colorbar(points, ax=panels, label="chirality")
    return figure


def replicas() -> Figure:
    found, _ = run("replicas.py", "--sweeps", "20000")
    figure, panels = axes(2)
    fine = np.linspace(0.34, 0.54, 400)
    panels[0].plot(
        fine, np.maximum(1 - np.sinh(2 * fine) ** -4, 0) ** (1 / 8), color=REFERENCE, label="infinite"
    )
    for axis, name in zip(panels, ("order", "susceptibility"), strict=True):
        values, errors = zip(*((one.mean, one.error) for one in found[name]), strict=True)
        axis.errorbar(found["betas"], values, errors, **POINTS, label="16²")
        axis.set(title={"order": "magnetisation ⟨|m|⟩"}.get(name, name), xlabel="β")
    panels[0].legend()
    return figure


def waves() -> Figure:
    found, _ = run("waves.py")
    u, _ = found["shoot"]((30, 5), found["receivers"], steps=170)
    figure, (left, right) = axes(2)
    left.imshow(u[...].T, cmap="RdBu", vmin=-0.1, vmax=0.1)
    left.set(title="the wave after 170 steps", xticks=[], yticks=[])
    for k, line in enumerate(found["there"].T):
        right.plot(line / np.abs(line).max() / 2 + k, color=MEAN, linewidth=0.8)
    right.set(title="seismograms", xlabel="step", yticks=[])
    right.grid(False)
    return figure


def fwi() -> Figure:
    found, _ = run("fwi.py")
    figure, panels = axes(4)
    for axis, (title, key) in zip(
        panels, {"true": "truth", "start": "layers", "found": "found"}.items(), strict=False
    ):
        axis.imshow(found[key].T, vmin=found["truth"].min(), vmax=found["truth"].max())
        axis.set(title=title, xticks=[], yticks=[])
        axis.grid(False)
    panels[3].semilogy(found["history"], color=MEAN)
    panels[3].set(title="misfit", xlabel="iteration")
    return figure


def adjoint() -> Figure:
    found, _ = run("adjoint.py")
    figure, panels = axes(3)
    for axis, (title, picture) in zip(panels, found["pictures"].items(), strict=True):
        axis.imshow(picture.T, cmap="gray", vmin=0, vmax=1)
        axis.set(title=title, xticks=[], yticks=[])
        axis.grid(False)
    return figure


def wilson_cg() -> Figure:
    found, _ = run("wilson_cg.py")
    figure, axis = axes()
    exact, solved = (
        np.sum(np.abs(x) ** 2, axis=(0, 1, 2, 4)) for x in (found["exact"], found["psi"][...][..., 0])
    )
    axis.plot(exact, color=REFERENCE, label="exact")
    axis.plot(solved, "o", color=MEAN, markersize=4, label="conjugate gradients")
    axis.set(title="propagator of a free quark", xlabel="t", yscale="log")
    axis.legend()
    return figure


def free_pion() -> Figure:
    found, _ = run("free_pion.py")
    figure, axis = axes()
    for name, (D, element, exact) in found["cases"].items():
        if name != "clover":  # without a field it is Wilson's
            (line,) = axis.plot(exact, linewidth=0.8)
            axis.plot(found["correlator"](D, element), "o", color=line.get_color(), markersize=4, label=name)
    axis.set(title="the pion of free quarks", xlabel="t", yscale="log", ylim=(3e-3, 3))
    axis.legend()
    return figure


def dirac_operator() -> Figure:
    found, _ = run("dirac_operator.py")
    figure, axis = axes()
    for name, history in found["histories"].items():
        axis.semilogy(np.array(history) / history[0], label=name)
    axis.set(title="residual of the normal equations", xlabel="iterations")
    axis.legend()
    return figure


def pion_from_file() -> Figure:
    found, _ = run("pion_from_file.py")
    figure, axis = axes()
    axis.semilogy(found["C"], "o", color=MEAN, markersize=4)
    axis.set(title="the pion's correlator on one configuration", xlabel="t")
    return figure


def smooth() -> Figure:
    dims = (40, 30, 20)
    volume = np.sin(sum(np.ix_(*(np.linspace(0, 3, n) for n in dims))))
    np.save("noisy.npy", (volume + 0.3 * np.random.default_rng(1).normal(size=dims)).ravel())
    run("arrays/smooth_cluster.py", *map(str, dims))
    figure, panels = axes(2)
    for axis, name in zip(panels, ("noisy", "smooth"), strict=True):
        axis.imshow(np.load(f"{name}.npy").reshape(dims)[:, :, 10], cmap="viridis", vmin=-1.5, vmax=1.5)
        axis.set(title=f"{name}.npy", xticks=[], yticks=[])
    return figure


def deblur() -> Figure:
    found, _ = run("arrays/deblur.py")
    figure, panels = axes(4)
    pictures = {"before": found["image"], "blurred": found["y"]}
    pictures |= {name: found["found"][name] for name in ("cgls, differences", "cgls, few edges")}
    for axis, (name, picture) in zip(panels, pictures.items(), strict=True):
        axis.imshow(picture.reshape(found["dims"]), cmap="gray", vmin=0, vmax=1)
        axis.set(title=name, xticks=[], yticks=[])
    return figure


def run_of(name: str) -> Figure:
    """The history of a run of `jali run`."""
    with contextlib.redirect_stdout(io.StringIO()):
        if jali(["run", str(EXAMPLES / name), "--output", "run"]):
            raise SystemExit(f"jali run examples/{name} failed")
    return history_figure(summarise("run"), title=True)


def plan_of(composition: planner.Composition, hierarchy: list[int]) -> Figure:
    """Who sends to whom in each stage of a plan."""
    plan = composition.plan(hierarchy=hierarchy)
    sent = sorted({(stage, source, to) for source, to, _, stage, *_ in plan.messages})
    stages = sorted({stage for stage, _, _ in sent})
    figure = Figure(figsize=(min(8.4, 2.8 * len(stages)), 2.6), layout="constrained")
    turn = 2 * np.pi * np.arange(plan.ranks) / plan.ranks
    x, y = np.sin(turn), np.cos(turn)
    for axis, stage in zip(figure.subplots(1, len(stages), squeeze=False)[0], stages, strict=True):
        for _, source, to in [message for message in sent if message[0] == stage]:
            ends = (x[source], y[source]), (x[to], y[to])
            axis.annotate(
                "", *ends[::-1], arrowprops={"arrowstyle": "->", "color": MEAN, "shrinkA": 9, "shrinkB": 9}
            )
        for rank in range(plan.ranks):
            axis.text(x[rank], y[rank], str(rank), ha="center", va="center")
        axis.set(
            title=f"{stage + 1}: {plan.stages[stage].name}",
            xlim=(-1.3, 1.3),
            ylim=(-1.3, 1.3),
            aspect="equal",
        )
        axis.axis("off")
    return figure


def three_roots() -> Figure:
    c = planner.Composition(6, dtype="float64")
    data, total = c.buffer("data", 3000, parts=3), c.buffer("sum", 1000, input=False)
    for k, root in enumerate((0, 2, 5)):
        c.reduce(data[k], total, sources=planner.ALL, root=root, op="sum")
    return plan_of(c, [2, 3])


def mpi_collectives() -> Figure:
    return plan_of(planner.Composition.standard("all_reduce", ranks=4, count=100_000), [4])


def device_collectives() -> Figure:
    c = planner.Composition(4, dtype="float32")
    mine, both = c.buffer("mine", 10_000), c.buffer("both", 20_000, parts=2, input=False)
    for k, root in enumerate((0, 3)):
        c.multicast(mine, both[k], root=root, leaves=planner.ALL)
    return plan_of(c, [4])


def device_messages() -> Figure:
    c = planner.Composition(4, dtype="float32")
    x, y = c.buffer("x", 10_000), c.buffer("y", 10_000, input=False)
    for rank in range(4):
        c.multicast(x, y, root=rank, leaves=(rank + 1) % 4)
    return plan_of(c, [4])


PICTURES: dict[str, Callable[[], Figure]] = {
    "plaquette.py": plaquette,
    "gradient_flow.py": gradient_flow,
    "su2_deconfinement.py": su2_deconfinement,
    "su2_higgs.py": su2_higgs,
    "my_action.py": my_action,
    "u1_2d.py": u1_2d,
    "wilson_cg.py": wilson_cg,
    "dirac_operator.py": dirac_operator,
    "convergence.py": convergence,
    "eigenvalues.py": eigenvalues,
    "free_pion.py": free_pion,
    "pion_from_file.py": pion_from_file,
    "pion_from_ensemble.py": pion,
    "own_correlator.py": own_correlator,
    "phi4.py": phi4,
    "momentum_correlator.py": momentum_correlator,
    "ising.py": ising,
    "potts.py": potts,
    "o3_overrelaxation.py": o3_overrelaxation,
    "heat.py": heat,
    "red_black.py": red_black,
    "replicas.py": replicas,
    "waves.py": waves,
    "fwi.py": fwi,
    "adjoint.py": adjoint,
    "su3.toml": lambda: run_of("su3.toml"),
    "su2.toml": lambda: run_of("su2.toml"),
    "u1.toml": lambda: run_of("u1.toml"),
    "iwasaki.toml": lambda: run_of("iwasaki.toml"),
    "iwasaki-hmc.toml": lambda: run_of("iwasaki-hmc.toml"),
    "higgs-hmc.toml": lambda: run_of("higgs-hmc.toml"),
    "arrays/smooth_laptop.py": smooth,
    "arrays/smooth_cluster.py": smooth,
    "arrays/deblur.py": deblur,
    "cpp/three_roots.cpp": three_roots,
    "cpp/mpi_collectives.cpp": mpi_collectives,
    "cpp/device_collectives.cpp": device_collectives,
    "cpp/device_messages.cpp": device_messages,
}


def picture_of(name: str) -> Path:
    """Where the picture of a file of examples/ is: two scripts that do the same have one."""
    path = Path(name)
    same = next(other for other, draw in PICTURES.items() if draw is PICTURES[name])
    return IMAGES / f"{Path(same).stem}{'-run' if path.suffix == '.toml' else ''}.png"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of examples/: {', '.join(PICTURES)}")
    names = parser.parse_args().names or list(PICTURES)
    if unknown := [name for name in names if name not in PICTURES]:
        parser.error(f"no picture of {', '.join(unknown)}; there are {', '.join(PICTURES)}")
    IMAGES.mkdir(parents=True, exist_ok=True)
    for path, name in {picture_of(name): name for name in reversed(names)}.items():
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), mpl.rc_context(STYLE):
            PICTURES[name]().savefig(path, dpi=DPI, metadata={"Software": None})
        print(
            f"{path.relative_to(ROOT)}  {path.stat().st_size >> 10} KiB  {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
