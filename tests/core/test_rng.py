"""Keys and the numbers they give."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedtailor.core import rng
from fedtailor.core.rng import Turn
from fedtailor.engine.loops.tracing import can_compile

MASK = (1 << 64) - 1
whole = st.integers(-(1 << 63), (1 << 63) - 1)


class SplitMix:
    """Steele, Lea and Flood's generator, in Python's own unbounded integers."""

    def __init__(self, seed: int) -> None:
        self.state = seed & MASK

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)


def key_of(number: int) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.int64)


def test_the_reference_gives_the_published_numbers() -> None:
    # the test vector that goes round with the algorithm (seed 1234567)
    mix = SplitMix(1234567)
    assert [mix.next() for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@settings(max_examples=100, deadline=None)
@given(whole)
def test_bits_are_splitmix64(seed: int) -> None:
    mix = SplitMix(seed)
    assert rng.bits(key_of(seed), 5).tolist() == [mix.next() >> 1 for _ in range(5)]


@settings(max_examples=100, deadline=None)
@given(whole, st.integers(0, 5))
def test_fold_is_an_output_of_splitmix64(seed: int, number: int) -> None:
    mix = SplitMix(seed)
    expected = [mix.next() for _ in range(number + 1)][-1]
    assert int(rng.fold(key_of(seed), number)) & MASK == expected


@settings(max_examples=100, deadline=None)
@given(whole, st.integers(-5, 1 << 40))
def test_fold_with_a_tensor_is_fold_with_its_number(seed: int, number: int) -> None:
    expected = rng.fold(key_of(seed), number)
    assert torch.equal(rng.fold(key_of(seed), key_of(number)), expected)
    several = rng.fold(key_of(seed), torch.tensor([number, number + 1]))
    assert several.tolist() == [int(expected), int(rng.fold(key_of(seed), number + 1))]


def test_keys_differ_by_purpose_seed_round_and_client() -> None:
    purposes = [rng.INITIAL, rng.SERVER, rng.COHORT, rng.TURN, rng.SCORE]
    assert len(set(purposes)) == 5
    parts = itertools.product(range(4), purposes, range(6), range(6))
    keys = [int(rng.key(*p)) for p in parts]
    assert len(set(keys)) == len(keys)


def test_a_key_depends_on_the_order_and_number_of_its_parts() -> None:
    keys = [(1, 2), (2, 1), (1,), (2,), (1, 2, 0), (0, 1, 2), (0,), (0, 0)]
    assert len({int(rng.key(*parts)) for parts in keys}) == len(keys)


def test_split_gives_different_keys() -> None:
    keys = rng.split(rng.key(3), 100)
    assert len({int(k) for k in keys}) == 100
    assert [int(k) for k in rng.split(rng.key(3), 10)] == [int(k) for k in keys[:10]]


@pytest.mark.parametrize(
    "draw",
    [
        lambda k: rng.bits(k, 7),
        lambda k: rng.uniform(k, 2, 3),
        lambda k: rng.normal(k, 3, 2),
        lambda k: rng.permutation(k, 11),
        lambda k: rng.fold(k, 5),
        lambda k: torch.stack(rng.split(k, 3)),
    ],
    ids=["bits", "uniform", "normal", "permutation", "fold", "split"],
)
def test_many_keys_at_once_give_what_each_gives_alone(draw) -> None:
    keys = rng.fold(rng.key(1), torch.arange(20))
    assert torch.equal(vmap(draw)(keys), torch.stack([draw(k) for k in keys]))


@settings(max_examples=30, deadline=None)
@given(whole, st.integers(0, 30), st.integers(0, 30))
def test_more_bits_begin_with_the_same_bits(seed: int, few: int, more: int) -> None:
    many = rng.bits(key_of(seed), few + more)
    assert torch.equal(many[:few], rng.bits(key_of(seed), few))
    assert bool((many >= 0).all())


def test_uniform_is_the_same_in_both_precisions() -> None:
    single = rng.uniform(rng.key(5), 1000, dtype=torch.float32)
    double = rng.uniform(rng.key(5), 1000, dtype=torch.float64)
    assert single.dtype == torch.float32
    assert torch.equal(single.double(), double)
    assert float(double.min()) >= 0 and float(double.max()) < 1
    # multiples of 2^-24
    assert torch.equal(double * (1 << 24), (double * (1 << 24)).round())


def test_uniform_of_no_shape_is_one_number() -> None:
    assert rng.uniform(rng.key(5)).shape == ()
    assert rng.normal(rng.key(5), 0).shape == (0,)


def test_uniform_numbers_fill_their_bins_evenly() -> None:
    n, bins = 64_000, 64
    counts = torch.histc(rng.uniform(rng.key(7), n, dtype=torch.float64), bins, 0, 1)
    chi = float(((counts - n / bins).square() / (n / bins)).sum())
    # 63 degrees of freedom: mean 63, standard deviation 11.2; too even is as bad as too uneven
    assert 30 < chi < 110


def test_neighbouring_keys_are_not_correlated() -> None:
    keys = rng.fold(rng.key(7), torch.arange(200))
    rows = vmap(lambda k: rng.normal(k, 500, dtype=torch.float64))(keys)
    between = torch.corrcoef(rows) - torch.eye(200, dtype=torch.float64)
    # 500 numbers each: standard error 0.045; the largest of 20,000 pairs stays under 5 of them
    assert float(between.abs().max()) < 5 / 500**0.5
    # and the first numbers of many keys are as good a sample as many numbers of one key
    first = vmap(lambda k: rng.uniform(k, 1, dtype=torch.float64)[0])(
        rng.fold(rng.key(8), torch.arange(20_000))
    )
    assert abs(float(first.mean()) - 0.5) < 5 * (1 / 12 / 20_000) ** 0.5


def test_moments_of_the_normal() -> None:
    n = 200_000
    z = rng.normal(rng.key(9), n, dtype=torch.float64)
    assert bool(z.isfinite().all())
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float(z.pow(power).mean()) - expected) < 5 * (variance / n) ** 0.5
    assert abs(float((z.abs() < 1.959964).double().mean()) - 0.95) < 0.003


@settings(max_examples=50, deadline=None)
@given(whole, st.integers(0, 200))
def test_a_permutation_is_one(seed: int, n: int) -> None:
    assert rng.permutation(key_of(seed), n).sort().values.tolist() == list(range(n))


def test_all_permutations_are_equally_likely() -> None:
    keys = rng.fold(rng.key(2), torch.arange(6000))
    orders = vmap(lambda k: rng.permutation(k, 3))(keys)
    _, counts = orders.unique(dim=0, return_counts=True)
    assert len(counts) == 6
    assert float(((counts - 1000.0).square() / 1000).sum()) < 20.5  # 0.1 % point, 5 degrees


def a_turn(round: int = 2) -> Turn:
    return Turn(rng.key(0, rng.TURN, round), torch.tensor(round), torch.tensor(10))


def test_all_streams_of_a_turn_are_distinct() -> None:
    keys = []
    for round in range(3):
        turn = a_turn(round)
        keys.append(turn.key)
        for client in range(5):
            own = turn.of(torch.tensor(client))
            at = own.at_client()
            keys += [own.key, at.key, own.at_start(), own.aside().key, at.aside().key]
            keys += [t.key for t in at.split(3)]
            keys += [t.key for t in at.aside().split(2)]
            # what a round of training folds into the client's key, and what `send` may
            keys += [rng.fold(own.key, i) for i in range(3)]
    assert len({int(k) for k in keys}) == len(keys)


def test_a_turn_keeps_its_round() -> None:
    turn = a_turn()
    for other in (turn.of(torch.tensor(1)), turn.at_client(), turn.aside(), *turn.split(2)):
        assert (int(other.round), int(other.rounds)) == (2, 10)


def test_turns_of_many_clients_are_the_turns_of_each() -> None:
    many = a_turn().of(torch.arange(4)).at_client().aside()
    for client in range(4):
        assert int(many.key[client]) == int(
            a_turn().of(torch.tensor(client)).at_client().aside().key
        )


@pytest.mark.skipif(not can_compile(torch.device("cpu")), reason="there is no compiler")
def test_compiled_code_draws_the_same_numbers() -> None:
    def draw(key: torch.Tensor) -> torch.Tensor:
        return rng.bits(key, 33)

    key = rng.key(3)
    compiled = torch._inductor.compile(make_fx(draw)(key), [key])
    found = compiled(key)
    assert torch.equal(found[0] if isinstance(found, (list, tuple)) else found, draw(key))


@pytest.mark.parametrize("shape", [(5, 6), (7,), (8,), (0,), ()])
def test_uniform_numbers_made_in_parts_are_the_same(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    key = rng.key(3)
    at_once = rng.uniform(key, *shape)
    monkeypatch.setattr(rng, "AT_A_TIME", 7)
    in_parts = rng.uniform(key, *shape)
    assert in_parts.shape == shape
    assert torch.equal(in_parts, at_once)


def test_a_key_of_numbers_is_made_on_the_host_as_on_a_device() -> None:
    for parts in ((0,), (7, 3), (1 << 40, 5, 0), (123, rng.TURN, 999, 2**62)):
        plain = torch.zeros((), dtype=torch.int64)
        for part in parts:
            plain = rng.fold(plain, torch.tensor(part))
        assert int(rng.key(*parts)) == int(plain)
        mixed = rng.key(*parts[:-1], torch.tensor([parts[-1], 1]))
        assert int(mixed[0]) == int(plain) and int(mixed[1]) == int(rng.key(*parts[:-1], 1))
