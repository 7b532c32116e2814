"""SU(2) Higgs model with a Higgs field of fixed length: one heat bath, jali's, for the links and for the Higgs field.

S = beta sum_p (1 - tr U_p / 2) - kappa sum tr(a(x)^dagger U_mu(x) a(x + mu)) with a in SU(2): a doublet of length one.
"""

import jali
from jali import PARITIES
from jali.gauge import SU, GaugeField, heat_bath_link, overrelax_link, plaquette, plaquette_reference, staple
from jali.statistics import mean_error


@jali.site_function
def update_link(X, U, a, rng, beta, kappa, mu, method):
    total = beta / 2 * staple(X, U, mu) + kappa * (a[X] * a[X + mu].dagger())
    U[mu][X] = overrelax_link(heat_bath_link(X, U[mu][X], total, 1.0, rng, method), total)


@jali.site_function
def update_higgs(X, U, a, rng, kappa):
    ends = [(U[mu][X] * a[X + mu], U[mu][X - mu].dagger() * a[X - mu]) for mu in X.directions()]
    a[X] = heat_bath_link(
        X, a[X], sum((ahead + behind for ahead, behind in ends), 0.0 * a[X]), kappa, rng, "Creutz"
    )


@jali.site_function
def hopping(X, U, a, total):
    total += sum((a[X].dagger() * U[mu][X] * a[X + mu]).trace().real / 2 for mu in X.directions())


lattice, rng = jali.Lattice(8, 8, 8, 8), jali.Random(seed=1)
U, a = GaugeField(lattice, SU(2)).hot_start(seed=2), GaugeField(lattice, SU(2)).hot_start(seed=3)[0]
pure = plaquette_reference("SU(2)", 2.3, lattice.extents).value
single = 0.194871  # I_2(0.8) / I_1(0.8): without plaquettes all links are independent
exact = {(0.0, 0.4): (single**4, single), (2.3, 0.0): (pure, 0.0), (2.3, 0.3): (), (2.3, 0.5): ()}
for (beta, kappa), known in exact.items():
    seen = []
    for _ in range(120):
        for parity in PARITIES:
            update_higgs[parity](U, a, rng, kappa)
            for mu in lattice.directions:
                update_link[parity](U, a, rng, beta, kappa, mu, "Creutz" if beta < 1 else "Kennedy-Pendleton")
        seen.append((plaquette(U), lattice.sum(hopping, U, a) / U.links))
    found = [mean_error(column[20:]) for column in zip(*seen, strict=True)]
    if lattice.rank == 0:
        print(f"beta {beta} kappa {kappa}: plaquette {found[0]}, hopping {found[1]}, known {known}")
    if any(abs(one.mean - value) > 4 * one.error for one, value in zip(found, known, strict=False)):
        raise SystemExit(f"the known values are {known}")
