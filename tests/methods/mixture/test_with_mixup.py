"""How strongly models are mixed: ramps over depth, mix factors, Beta numbers."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch.func import vmap

from fedtailor.core import rng
from fedtailor.core.errors import BadInput
from fedtailor.core.rng import Turn
from fedtailor.methods import pmixfed
from fedtailor.methods.describe import parse_options
from fedtailor.methods.mixture.pmixfed import (
    STAGES,
    Mixer,
    aggregation_degrees,
    beta,
    broadcast_degrees,
    mix_factor,
)

MUS = [0.0, 0.05, 0.2, 0.25, 1 / 3, 0.5, 0.731, 1.0]


def turn(round: int, rounds: int = 9) -> Turn:
    return Turn(rng.key(0), torch.tensor(round), torch.tensor(rounds))


def factor(delta: float, accuracy: float) -> float:
    return float(mix_factor(torch.tensor(delta), torch.tensor(accuracy)))


# -------------------------------------------------------------------------------- ramps over depth


@pytest.mark.parametrize("n", [1, 2, 5, 15])
@pytest.mark.parametrize("mu", MUS)
def test_degrees_fall_from_the_input_to_the_head(mu: float, n: int) -> None:
    """In [0, 1], non-increasing, by μ a block where unclipped; the head is never sent."""
    down = broadcast_degrees(torch.tensor(mu), n).tolist()
    back = aggregation_degrees(torch.tensor(mu), n).tolist()
    assert len(down) == len(back) == n
    assert down[-1] == 0
    for degrees in (down, back):
        assert all(0 <= d <= 1 for d in degrees)
        assert degrees == sorted(degrees, reverse=True)
    for degrees in (down, back):
        for here, above in pairwise(degrees):
            if above > 0 and here < 1:
                assert here - above == pytest.approx(mu, abs=1e-6)


def test_degrees_by_hand() -> None:
    """The numbers that A1 lists for five blocks."""
    for mu, down, back in (
        (0.25, [1, 0.75, 0.5, 0.25, 0], [0.75, 0.5, 0.25, 0, 0]),
        (0.5, [1, 1, 1, 0.5, 0], [0.5, 0, 0, 0, 0]),
    ):
        assert broadcast_degrees(torch.tensor(mu), 5).tolist() == down
        assert aggregation_degrees(torch.tensor(mu), 5).tolist() == back


# ------------------------------------------------------------------------------------- mix factor


def test_mix_factor() -> None:
    """A half at the start and for equal accuracies; falls with accuracy; bounded."""
    for accuracy in (0.0, 0.3, 1.0, 2.0, 1000.0):
        assert factor(0, accuracy) == 0.5
    for delta in (0.1, 0.5, 1.0):
        assert factor(delta, 1) == 0.5
        values = [factor(delta, a / 10) for a in range(30)]
        assert all(one > two for one, two in pairwise(values))
        assert values[0] == pytest.approx(1 / (1 + math.exp(-delta)), abs=1e-6)
        assert max(values) <= 0.7310586 + 1e-6
    # A1's examples for the last round, and the formula as it is printed
    for accuracy, expected in ((0.5, 0.679), (1.2, 0.392), (1.5, 0.223), (2.0, 0.047)):
        assert factor(1, accuracy) == pytest.approx(expected, abs=5e-4)
        printed = 1 - 1 / (1 + math.exp(-(accuracy**2 - 1)))
        assert factor(1, accuracy) == pytest.approx(printed, abs=1e-6)


def test_policies() -> None:
    some = torch.tensor(0.5)
    mu = lambda mixer, t, n=5: float(mixer.mu(turn(t, 10), some, n))
    assert mu(Mixer(), 5) == pytest.approx(factor(0.5, 0.5))
    # constant: 1/(n - 1) makes the ramp run from exactly 1 to 0; one block has no ramp
    assert [mu(Mixer("dynamic"), t) for t in (0, 9)] == [0.25, 0.25]
    assert broadcast_degrees(torch.tensor(mu(Mixer("dynamic"), 3)), 5).tolist()[0] == 1
    assert mu(Mixer("dynamic"), 0, n=1) == 1
    assert mu(Mixer("dynamic", mu0=0.4), 7) == pytest.approx(0.4)
    # a line over the run: δ = t/T
    line = Mixer("gradual")
    assert [mu(line, t) for t in (0, 5, 10)] == pytest.approx([0.5, 0.25, 0])
    other = Mixer("gradual", mu_start=0.2, mu_end=0.6)
    assert [mu(other, t) for t in (0, 5, 10)] == pytest.approx([0.2, 0.4, 0.6])
    assert [Mixer(p).random for p in ("sigmoid", "dynamic", "gradual")] == [False] * 3
    assert all(Mixer(p).random for p in ("random", "random_adaptive"))


# ------------------------------------------------------------------------------------ Beta numbers


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_beta_has_the_right_mean_and_variance(alpha: float) -> None:
    """Mean 1/2 and variance 1/(4 (2α + 1)); symmetric."""
    n = 200_000
    x = beta(rng.key(5), n, alpha).double()
    variance = 1 / (4 * (2 * alpha + 1))
    assert x.min() >= 0
    assert x.max() <= 1
    assert abs(float(x.mean()) - 0.5) < 5 * math.sqrt(variance / n)
    assert float(x.var()) == pytest.approx(variance, rel=0.02)
    assert float(((x - 0.5) ** 3).mean()) == pytest.approx(0, abs=0.01 * variance)


def test_beta_against_scipy() -> None:
    from scipy.stats import beta as distribution
    from scipy.stats import kstest

    for alpha in (0.5, 2.0, 5.0):
        x = beta(rng.key(8), 5000, alpha).double().numpy()
        assert kstest(x, distribution(alpha, alpha).cdf).pvalue > 1e-3


def test_beta_is_keyed_and_maps_over_clients() -> None:
    keys = torch.stack([rng.key(i) for i in range(4)])
    together = vmap(lambda k: beta(k, 6, 2.0))(keys)
    assert torch.equal(together, torch.stack([beta(k, 6, 2.0) for k in keys]))
    assert len({tuple(row) for row in together.tolist()}) == 4
    # the first numbers do not depend on how many are drawn
    assert torch.equal(beta(keys[0], 3, 2.0), together[0, :3])


def test_no_alpha_that_is_accepted_gives_nan() -> None:
    try:
        alpha = parse_options(pmixfed, {"alpha": "0"})["alpha"]
    except BadInput:
        return
    assert beta(rng.key(0), 8, alpha).isfinite().all()


def test_random_adaptive_changes_alpha_in_thirds() -> None:
    """Α = 0.1, 100, 10 in the first, second and last third, and beyond the end."""
    assert STAGES == (0.1, 100.0, 10.0)
    mixer = Mixer("random_adaptive")
    for t, alpha in ((0, 0.1), (2, 0.1), (3, 100.0), (5, 100.0), (6, 10.0), (8, 10.0), (9, 10.0)):
        key = rng.key(t)
        assert torch.equal(mixer.drawn(turn(t), key, 7), beta(key, 7, alpha)), t
    plain = Mixer("random", alpha=2.0)
    assert torch.equal(plain.drawn(turn(0), rng.key(1), 7), beta(rng.key(1), 7, 2.0))
