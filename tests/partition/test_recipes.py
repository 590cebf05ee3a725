"""The recipes keep their promises."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import BadInput
from fedtailor.partition import (
    dirichlet,
    groups,
    iid,
    natural,
    noniid1,
    noniid2,
    pathological,
    shards,
)
from tests.partition.partitions import (
    CLUSTERS,
    DIGITS,
    RECIPES,
    assert_one_line,
    assert_sorted_and_disjoint,
    same,
    table,
)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_disjoint_determined_by_the_seed_and_leave_numpy_alone(name):
    before = np.random.get_state()[1].copy()  # noqa: NPY002  that it does not change is the test
    first = RECIPES[name](3)
    assert_sorted_and_disjoint(first, DIGITS.size)
    assert len(first) == 20
    assert same(first, RECIPES[name](3))
    assert not same(first, RECIPES[name](4))
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("name", ["iid", "pathological", "shards", "dirichlet", "groups"])
def test_recipes_that_use_every_row(name):
    assert sum(s.size for s in RECIPES[name](0)) == DIGITS.size


@pytest.mark.parametrize("recipe", [iid, lambda y, n, *, seed: pathological(y, n, 1, seed=seed)])
@pytest.mark.parametrize(
    ("labels", "clients"),
    [(np.arange(3), 0), (np.arange(3), 4), (np.array([0.5]), 1), (np.zeros((2, 2), int), 1)],
)
def test_bad_labels_and_numbers_of_clients(recipe, labels, clients):
    with pytest.raises(BadInput) as error:
        recipe(labels, clients, seed=0)
    assert_one_line(error)


@given(st.integers(1, 40), st.integers(0, 2**70))
def test_iid_sizes_differ_by_one_at_most(clients, seed):
    sizes = [s.size for s in iid(np.zeros(40, int), clients, seed=seed)]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == 40


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 8), st.integers(1, 8), st.booleans(), st.integers(-5, 10**9)
)
def test_pathological_keeps_every_promise(clients, classes, per_client, balanced, seed):
    labels = np.repeat(np.arange(classes) * 3, 30)  # labels with gaps
    if per_client > classes:
        with pytest.raises(BadInput) as error:
            pathological(labels, clients, per_client, seed=seed)
        assert_one_line(error, str(per_client), str(classes))
        return
    shares = pathological(labels, clients, per_client, seed=seed, balanced=balanced)
    assert_sorted_and_disjoint(shares, labels.size)
    counts = table(shares, labels)
    assert ((counts > 0).sum(axis=1) == per_client).all()
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    assert (holders > 0).sum() == min(classes, clients * per_client)
    assert (counts.sum(axis=0) == np.where(holders > 0, 30, 0)).all()
    for column in counts.T:
        held = column[column > 0]
        if held.size:
            assert held.min() >= (30 // held.size) / 10
        if held.size and balanced:
            assert held.max() - held.min() <= 1


def test_pathological_is_uneven_unless_balanced():
    uneven = table(pathological(DIGITS, 20, 2, seed=0), DIGITS)
    even = table(pathological(DIGITS, 20, 2, seed=0, balanced=True), DIGITS)
    assert uneven[uneven > 0].std() > 10 > even[even > 0].std()


def test_pathological_with_more_holders_than_rows():
    with pytest.raises(BadInput) as error:
        pathological(np.array([0, 0, 0, 1, 1, 1, 1]), 4, 2, seed=0)
    assert_one_line(error, "class 0", "3 rows", "4 clients")


def test_shards_have_the_size_and_number_of_the_recipe():
    labels = np.repeat(np.arange(10), 120)
    shares = shards(labels, 20, 5, seed=1)  # ten shards of twelve rows per class
    counts = table(shares, labels)
    assert (counts % 12 == 0).all()
    assert (counts.sum(axis=1) == 60).all()
    assert ((counts > 0).sum(axis=1) <= 5).all()
    assert (counts.sum(axis=0) == 120).all()


@pytest.mark.parametrize(
    ("clients", "each", "words"),
    [(7, 3, ("21", "10 classes")), (20, 0, ("0",)), (1700, 10, ("rows", "1700 shards"))],
)
def test_impossible_shards(clients, each, words):
    with pytest.raises(BadInput) as error:
        shards(DIGITS, clients, each, seed=0)
    assert_one_line(error, *words)


@pytest.mark.parametrize("seed", range(60))
def test_dirichlet_on_digits_gives_everybody_enough_and_keeps_the_cap(seed):
    counts = table(dirichlet(DIGITS, 20, 0.1, seed=seed), DIGITS)
    assert counts.sum(axis=1).min() >= 20
    before = counts.cumsum(axis=1) - counts
    assert (before[counts > 0] < DIGITS.size / 20).all()


def test_dirichlet_without_cap_lets_clients_grow():
    counts = table(dirichlet(DIGITS, 10, 0.3, seed=0, cap=False, min_samples=1), DIGITS)
    before = counts.cumsum(axis=1) - counts
    assert (before[counts > 0] >= DIGITS.size / 10).any()


def test_dirichlet_skew_grows_as_alpha_shrinks():
    skew = []
    for alpha in (0.05, 0.5, 5, 500):
        counts = table(dirichlet(DIGITS, 5, alpha, seed=0, min_samples=1), DIGITS)
        skew.append((counts.max(axis=1) / counts.sum(axis=1)).mean())
    assert skew == sorted(skew, reverse=True)


@pytest.mark.parametrize("alpha", [1e-320, 1e-9, 1e9, 1e308])
def test_dirichlet_survives_extreme_alphas(alpha):
    with np.errstate(all="raise", under="ignore"):
        shares = dirichlet(DIGITS, 5, alpha, seed=0, min_samples=0)
    assert sum(s.size for s in shares) == DIGITS.size
    classes = (table(shares, DIGITS) > 0).sum(axis=1)
    assert (classes == 10).all() if alpha > 1 else (classes <= 3).all()


def test_dirichlet_gives_up_soon_and_says_what_to_do():
    start = time.process_time()
    with pytest.raises(BadInput) as error:
        dirichlet(DIGITS, 50, 0.01, seed=0)
    assert time.process_time() - start < 5
    assert_one_line(error, "0.01", "50 clients", "20 rows", "alpha", "--min-samples")


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
def test_dirichlet_alpha_must_be_positive(alpha):
    with pytest.raises(BadInput) as error:
        dirichlet(DIGITS, 5, alpha, seed=0)
    assert_one_line(error, str(alpha))


def test_dirichlet_that_can_never_do_is_refused_at_once():
    with pytest.raises(BadInput) as error:
        dirichlet(DIGITS, 100, 0.1, seed=0)
    assert_one_line(error, "100 clients", "1797")


@given(st.integers(1, 25), st.integers(1, 10), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_noniid1_has_equal_amounts_of_equally_many_classes(clients, per_client, seed):
    shares = noniid1(DIGITS, clients, per_client, seed=seed)
    assert_sorted_and_disjoint(shares, DIGITS.size)
    counts = table(shares, DIGITS)
    assert ((counts > 0).sum(axis=1) == per_client).all()
    amount = counts.max()
    assert set(np.unique(counts)) <= {0, amount}
    holders = (counts > 0).sum(axis=0)
    assert ((amount + 1) * holders > np.bincount(DIGITS)).any()  # none larger was possible


@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_noniid2_has_all_classes_and_the_ratio(clients, dominant, seed):
    labels = np.repeat(np.arange(10), 400)
    shares = noniid2(labels, clients, dominant, seed=seed)
    assert_sorted_and_disjoint(shares, labels.size)
    counts = table(shares, labels)
    assert (counts > 0).all()
    assert np.unique(counts.sum(axis=1)).size == 1
    large = np.sort(counts, axis=1)[:, -dominant:]
    rest = np.sort(counts, axis=1)[:, :-dominant]
    assert np.unique(large).size == np.unique(rest).size == 1
    assert abs(large.sum(axis=1) - 0.8 * counts.sum(axis=1)).max() <= dominant / 2


def test_noniid2_on_digits_is_exact_and_uses_most_rows():
    counts = table(noniid2(DIGITS, 20, 2, seed=0), DIGITS)
    assert (counts.sum(axis=1) == 80).all()
    assert (np.sort(counts, axis=1)[:, -2:] == 32).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: noniid1(DIGITS, 500, 5, seed=0), ("500 clients",)),
        (lambda: noniid1(DIGITS, 5, 11, seed=0), ("11", "10")),
        (lambda: noniid2(DIGITS, 200, 2, seed=0), ("200 clients",)),
        (lambda: noniid2(DIGITS, 5, 10, seed=0), ("10 dominant",)),
        (lambda: noniid2(DIGITS, 5, 0, seed=0), ("0",)),
        (lambda: noniid2(DIGITS, 5, 2, seed=0, ratio=1.0), ("ratio 1.0",)),
        (lambda: noniid2(DIGITS, 5, 2, seed=0, ratio=0.1), ("ratio 0.1",)),
        (lambda: groups(CLUSTERS, 4, seed=0), ("4 clients", "5 latent")),
        (lambda: groups(np.array([0, 1, 1, 1]), 4, seed=0), ("distribution 0", "1 rows")),
        (lambda: natural(np.zeros((2, 2))), ("shape",)),
        (lambda: natural(np.array([])), ("shape",)),
    ],
)
def test_impossible_recipes(make, words):
    with pytest.raises(BadInput) as error:
        make()
    assert_one_line(error, *words)


def test_natural_is_one_client_per_owner():
    shares = natural(np.array(["b", "a", "b", "c"]))
    assert [s.tolist() for s in shares] == [[1], [0, 2], [3]]


@given(st.integers(5, 40), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_groups_spread_clients_and_rows_evenly(clients, seed):
    shares = groups(CLUSTERS, clients, seed=seed)
    assert_sorted_and_disjoint(shares, CLUSTERS.size)
    mine = [np.unique(CLUSTERS[s]) for s in shares]
    assert all(m.size == 1 for m in mine)
    members = np.bincount(np.concatenate(mine))
    assert members.max() - members.min() <= 1
    for cluster in range(5):
        sizes = [s.size for s, m in zip(shares, mine, strict=True) if m[0] == cluster]
        assert max(sizes) - min(sizes) <= 1
