import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fedtailor.core.errors import BadInput
from fedtailor.partition import (
    Partition,
    Scheme,
    dirichlet,
    divide,
    groups,
    hold_out,
    iid,
    load_partition,
    natural,
    noniid1,
    noniid2,
    parse_partition,
    pathological,
    permute_targets,
    relatives,
    ring,
    save_partition,
    shards,
    split_rows,
    statistics,
)

DIGITS = load_digits().target
CLUSTERS = DIGITS % 5

RECIPES = {
    "iid": lambda seed: iid(DIGITS, 20, seed=seed),
    "pathological": lambda seed: pathological(DIGITS, 20, 2, seed=seed),
    "shards": lambda seed: shards(DIGITS, 20, 5, seed=seed),
    "dirichlet": lambda seed: dirichlet(DIGITS, 20, 0.1, seed=seed),
    "noniid1": lambda seed: noniid1(DIGITS, 20, 4, seed=seed),
    "noniid2": lambda seed: noniid2(DIGITS, 20, 2, seed=seed),
    "ring": lambda seed: ring(DIGITS, 20, 4, seed=seed),
    "relatives": lambda seed: relatives(DIGITS, 20, 4, seed=seed),
    "groups": lambda seed: groups(CLUSTERS, 20, seed=seed),
}


def table(shares, labels):
    """Rows per client and class, by a way of counting of its own."""
    return np.array([[np.sum(labels[s] == c) for c in np.unique(labels)] for s in shares])


def same(one, other):
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def assert_sorted_and_disjoint(shares, rows):
    together = np.concatenate(shares)
    assert np.unique(together).size == together.size
    assert together.size == 0 or (together.min() >= 0 and together.max() < rows)
    for share in shares:
        assert share.dtype == np.int64
        assert (np.diff(share) > 0).all()


def assert_one_line(error, *words):
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text


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


# --- schemes ---


@pytest.mark.parametrize(
    ("text", "scheme", "canonical"),
    [
        ("iid", Scheme("iid"), "iid"),
        ("pathological:2", Scheme("pathological", (2,)), "pathological:2"),
        ("shards:5", Scheme("shards", (5,)), "shards:5"),
        ("dirichlet:0.1", Scheme("dirichlet", (0.1,)), "dirichlet:0.1"),
        ("dirichlet:1", Scheme("dirichlet", (1.0,)), "dirichlet:1"),
        ("noniid1", Scheme("noniid1", (4,)), "noniid1:4"),
        ("noniid1:12", Scheme("noniid1", (12,)), "noniid1:12"),
        (" noniid2:2 ", Scheme("noniid2", (2, 0.8)), "noniid2:2,0.8"),
        ("noniid2:3,0.9", Scheme("noniid2", (3, 0.9)), "noniid2:3,0.9"),
        ("noniid1:4,60", Scheme("noniid1", (4, 60)), "noniid1:4,60"),
        ("noniid2:2,0.8,60", Scheme("noniid2", (2, 0.8, 60)), "noniid2:2,0.8,60"),
        ("ring", Scheme("ring", (4,)), "ring:4"),
        ("relatives:3,60", Scheme("relatives", (3, 60)), "relatives:3,60"),
        ("latent:5", Scheme("latent", (5,)), "latent:5"),
        ("natural", Scheme("natural"), "natural"),
    ],
)
def test_schemes_are_read_and_written(text, scheme, canonical):
    assert parse_partition(text) == scheme
    assert str(scheme) == canonical
    assert parse_partition(canonical) == scheme


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dirichlett:0.1", ("dirichlett", "did you mean 'dirichlet'?")),
        ("", ("''", "iid")),
        ("iid:3", ("iid:3", "no number")),
        ("pathological", ("classes per client", "pathological:2")),
        ("pathological:two", ("'two'", "whole number")),
        ("pathological:2.5", ("'2.5'", "whole number")),
        ("pathological:0", ("'0'", "1 or more")),
        ("pathological:2,3", ("pathological:2",)),
        ("dirichlet:0", ("alpha", "'0'", "positive")),
        ("dirichlet:-1", ("alpha", "'-1'")),
        ("dirichlet:nan", ("alpha", "'nan'")),
        ("dirichlet:inf", ("alpha", "'inf'")),
        ("dirichlet:", ("alpha", "''")),
        ("noniid2:2,1", ("ratio", "'1'", "below 1")),
        ("noniid2:2,0.8,0", ("rows per client", "'0'")),
        ("noniid2:2,0.8,300,4", ("noniid2:2,0.8",)),
        ("latent:-3", ("distributions", "'-3'")),
    ],
)
def test_bad_schemes(text, words):
    with pytest.raises(BadInput) as error:
        parse_partition(text)
    assert_one_line(error, *words)


@given(st.text(max_size=20) | st.from_regex(r"(dirichlet|noniid2|latent):.*", fullmatch=True))
def test_any_text_is_a_scheme_or_bad_input(text):
    try:
        scheme = parse_partition(text)
    except BadInput as error:
        assert len(str(error).splitlines()) == 1
        return
    assert parse_partition(str(scheme)) == scheme


@pytest.mark.parametrize("name", [n for n in RECIPES if n != "groups"])
def test_divide_finds_the_recipe(name):
    text = {"pathological": "pathological:2", "shards": "shards:5", "dirichlet": "dirichlet:0.1"}
    scheme = parse_partition(text.get(name, name))
    assert same(divide(scheme, DIGITS, 20, seed=5), RECIPES[name](5))


def test_divide_by_owners_and_clusters():
    owner = np.arange(DIGITS.size) % 7
    by_owner = natural(owner)
    assert same(divide(Scheme("natural"), DIGITS, None, seed=0, owner=owner), by_owner)
    assert same(divide(Scheme("natural"), DIGITS, 7, seed=0, owner=owner), by_owner)
    latent = divide(parse_partition("latent:5"), DIGITS, 20, seed=5, clusters=CLUSTERS)
    assert same(latent, RECIPES["groups"](5))


def test_divide_heeds_min_samples():
    scheme = parse_partition("dirichlet:0.1")
    shares = divide(scheme, DIGITS, 20, seed=0, min_samples=30)
    assert min(s.size for s in shares) >= 30


@pytest.mark.parametrize(
    ("scheme", "clients", "more", "words"),
    [
        (Scheme("natural"), None, {}, ("owns",)),
        (Scheme("natural"), 6, {"owner": np.arange(1797) % 7}, ("7 owners", "--clients")),
        (Scheme("natural"), None, {"owner": np.arange(3)}, ("3 owners", "1797")),
        (Scheme("latent", (5,)), 20, {}, ("latent:5",)),
        (Scheme("latent", (4,)), 20, {"clusters": CLUSTERS}, ("latent:4", "5 clusters")),
        (Scheme("iid"), None, {}, ("--clients",)),
        (Scheme("nope"), 3, {}, ("nope",)),
    ],
)
def test_divide_refuses(scheme, clients, more, words):
    with pytest.raises(BadInput) as error:
        divide(scheme, DIGITS, clients, seed=0, **more)
    assert_one_line(error, *words)


# --- parts ---


def names(clients):
    return [f"client {i}" for i in range(clients)]


def digits_split(seed=0, **more):
    shares = RECIPES["dirichlet"](0)
    return split_rows(shares, DIGITS, names(20), seed=seed, scheme="dirichlet:0.1", **more)


def parts(partition, client):
    return [p[client] for p in (partition.train, partition.val, partition.test)]


def test_split_cuts_all_rows_by_the_shares():
    shares = RECIPES["dirichlet"](0)
    partition = digits_split(test=0.25, val=0.2)
    assert partition.names == tuple(names(20))
    assert (partition.scheme, partition.seed, len(partition)) == ("dirichlet:0.1", 0, 20)
    for client, share in enumerate(shares):
        train, val, test = parts(partition, client)
        assert_sorted_and_disjoint([train, val, test], DIGITS.size)
        assert np.array_equal(np.sort(np.concatenate([train, val, test])), share)
        assert np.array_equal(partition.rows(client), share)
        assert test.size == round(0.25 * share.size)
        assert val.size == round(0.2 * (share.size - test.size))


def test_split_of_a_client_is_its_own_affair():
    shares = RECIPES["dirichlet"](0)
    whole = digits_split(seed=9)
    others = [np.arange(10), *shares[1:5]]  # fewer clients, and another first one
    few = split_rows(others, DIGITS, names(5), seed=9, scheme="x")
    backwards = split_rows([s[::-1] for s in shares], DIGITS, names(20), seed=9, scheme="x")
    for client in range(1, 5):
        assert same(parts(whole, client), parts(few, client))
        assert same(parts(whole, client), parts(backwards, client))
    assert not same(whole.test, digits_split(seed=8).test)
    twins = split_rows([shares[0], shares[0]], DIGITS, names(2), seed=9, scheme="x")
    assert not same(parts(twins, 0), parts(twins, 1))


@given(st.integers(0, 12), st.floats(0.01, 0.99), st.just(0.0) | st.floats(0.01, 0.99))
def test_split_has_rows_in_every_part_or_refuses(rows, test, val):
    make = lambda: split_rows(
        [np.arange(rows)], np.zeros(12, int), ["Ann"], test=test, val=val, seed=0, scheme="x"
    )
    if rows < (3 if val else 2):
        with pytest.raises(BadInput) as error:
            make()
        assert_one_line(error, "'Ann'", f"{rows} rows")
        return
    got = parts(make(), 0)
    assert [p.size > 0 for p in got] == [True, val > 0, True]
    assert sum(p.size for p in got) == rows


def test_official_test_rows_are_the_test_rows():
    official = np.arange(DIGITS.size) % 4 == 1
    partition = digits_split(official_test=official, test=0.0)
    for client, share in enumerate(RECIPES["dirichlet"](0)):
        train, val, test = parts(partition, client)
        assert np.array_equal(test, share[official[share]])
        assert val.size == max(1, round(0.2 * (share.size - test.size)))
        assert train.size + val.size + test.size == share.size


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"test": 0.0}, ("test share", "0.0")),
        ({"test": 1.0}, ("test share", "1.0")),
        ({"val": -0.1}, ("val share", "-0.1")),
        ({"val": float("nan")}, ("val share", "nan")),
        ({"names": ["a", "a"]}, ("1 distinct", "2 clients")),
        ({"names": ["a"]}, ("1 distinct", "2 clients")),
        ({"rows_per_client": [], "names": []}, ("0 clients",)),
        ({"rows_per_client": [np.arange(5), np.array([5, 99, 7])]}, ("'b'", "0..9")),
        ({"official_test": np.zeros(10, bool)}, ("'a'", "5 rows", "0 of them")),
        ({"official_test": np.ones(10, bool)}, ("'a'", "5 rows", "5 of them")),
        ({"official_test": np.ones(9, bool)}, ("9", "10")),
        ({"rows_per_client": [[0, 1]] * 2}, ("'a'", "2 rows", "fewer clients", "--min-samples")),
        ({"rows_per_client": [[0, 1]] * 2, "scheme": "natural"}, ("2 rows", "--val 0")),
        ({"rows_per_client": [[0]] * 2, "scheme": "natural"}, ("1 rows", "remove", "merge")),
        (
            {"rows_per_client": [[0]] * 2, "scheme": "natural", "val": 0.0},
            ("1 rows", "train and test", "remove"),
        ),
        ({"scheme": "natural", "official_test": np.ones(10, bool)}, ("5 of them", "remove")),
        ({"scheme": "natural", "official_test": np.arange(10) != 4}, ("4 of them", "--val 0")),
    ],
)
def test_bad_splits(change, words):
    arguments = {
        "rows_per_client": [np.arange(5), np.arange(5, 10)],
        "labels": np.zeros(10, int),
        "names": ["a", "b"],
        "seed": 0,
        "scheme": "x",
        **change,
    }
    with pytest.raises(BadInput) as error:
        split_rows(**arguments)
    assert_one_line(error, *words)


@given(st.integers(1, 12), st.integers(0, 10**6))
@settings(deadline=None)
def test_permuted_targets_belong_to_somebody_else(clients, seed):
    shares = np.array_split(np.arange(4 * clients), clients)
    own = split_rows(shares, np.zeros(4 * clients), names(clients), seed=0, scheme="x")
    permuted = permute_targets(own, seed=seed)
    assert same(permuted.train, own.train)
    target = [
        next(j for j in range(clients) if np.array_equal(t, own.test[j])) for t in permuted.test
    ]
    assert sorted(target) == list(range(clients))
    assert same(permuted.val, [own.val[j] for j in target])
    assert clients == 1 or all(i != j for i, j in enumerate(target))
    assert same(permuted.test, permute_targets(own, seed=seed).test)


def test_other_seeds_permute_otherwise():
    own = digits_split()
    assert not same(permute_targets(own, seed=0).test, permute_targets(own, seed=1).test)


@pytest.mark.parametrize(
    ("clients", "asked", "count"),
    [
        (20, 5, 5),
        (20, 0.2, 4),
        (20, 0, 0),
        (20, 0.0, 0),
        (20, 0.001, 1),
        (2, 0.99, 1),
        (20, 19, 19),
    ],
)
def test_held_out_clients(clients, asked, count):
    chosen = hold_out(clients, asked, seed=3)
    assert chosen.size == np.unique(chosen).size == count
    assert (np.diff(chosen) > 0).all()
    assert ((chosen >= 0) & (chosen < clients)).all()
    assert np.array_equal(chosen, hold_out(clients, asked, seed=3))


def test_other_seeds_hold_out_others():
    assert len({tuple(hold_out(20, 5, seed=s)) for s in range(10)}) > 5


@pytest.mark.parametrize("asked", [-1, 20, 1.0, 2.5, -0.5, float("nan"), float("inf"), 99])
def test_somebody_must_train(asked):
    with pytest.raises(BadInput) as error:
        hold_out(20, asked, seed=0)
    assert_one_line(error, str(asked), "20")


# --- files ---


def test_a_saved_partition_comes_back(tmp_path):
    partition = split_rows(
        RECIPES["dirichlet"](0),
        DIGITS,
        [f"Zoë {i}" for i in range(20)],
        val=0,
        seed=2**80,
        scheme="dirichlet:0.1",
    )
    path = tmp_path / "partition.npz"
    path.write_text("an older file")
    save_partition(partition, path)
    back = load_partition(path, rows=DIGITS.size)
    assert (back.names, back.scheme, back.seed) == (
        partition.names,
        partition.scheme,
        partition.seed,
    )
    for part in ("train", "val", "test"):
        assert same(getattr(back, part), getattr(partition, part))
        assert all(r.dtype == np.int64 for r in getattr(back, part))
    assert list(tmp_path.iterdir()) == [path]
    first = path.read_bytes()
    save_partition(partition, path)
    assert path.read_bytes() == first


def test_permuted_targets_can_be_saved_too(tmp_path):
    permuted = permute_targets(digits_split(), seed=0)
    save_partition(permuted, tmp_path / "p.npz")
    assert same(load_partition(tmp_path / "p.npz", rows=DIGITS.size).test, permuted.test)


def test_saving_where_one_cannot(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "missing" / "p.npz", tmp_path / "file" / "p.npz", tmp_path):
        with pytest.raises(BadInput) as error:
            save_partition(digits_split(), path)
        assert_one_line(error, str(path))
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def one_client(train=(0, 1), val=(2,), test=(3,), name="Ann"):
    make = lambda rows: (np.array(rows, np.int64),)
    return Partition((name,), make(train), make(val), make(test), "x", 0)


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        (one_client(test=(10,)), ("'Ann'", "row 10", "10 rows")),
        (one_client(train=(-1, 1)), ("'Ann'", "row -1")),
        (one_client(val=(1,)), ("'Ann'", "row 1 ", "two places")),
        (one_client(train=(4, 4)), ("'Ann'", "row 4 ")),
        (one_client(train=()), ("'Ann'", "train")),
        (one_client(test=()), ("'Ann'", "test")),
        (one_client(name=""), ("not an intact",)),
    ],
)
def test_partitions_that_make_no_sense_are_not_loaded(tmp_path, partition, words):
    save_partition(partition, tmp_path / "p.npz")
    with pytest.raises(BadInput) as error:
        load_partition(tmp_path / "p.npz", rows=10)
    assert_one_line(error, *words)


def arrays_of(path):
    with np.load(path) as file:
        return dict(file)


@pytest.mark.parametrize(
    "change",
    [
        {"about": np.frombuffer(b"{", np.uint8)},
        {"about": np.frombuffer(b"[]", np.uint8)},
        {"about": np.frombuffer(b"[" * 100_000, np.uint8)},
        {"about": np.frombuffer(b'{"format": "other"}', np.uint8)},
        {"train": np.array([0.5, 1.0])},
        {"train": np.array([[0, 1]])},
        {"train_ends": np.array([3])},
        {"train_ends": np.array([1, 2])},
        {"val_ends": np.array([], np.int64)},
        {"test": None},
        {"test": np.array([{}], object)},
    ],
)
def test_changed_files_are_refused(tmp_path, change):
    path = tmp_path / "p.npz"
    save_partition(one_client(), path)
    arrays = {k: v for k, v in (arrays_of(path) | change).items() if v is not None}
    np.savez(path, **arrays)
    with pytest.raises(BadInput) as error:
        load_partition(path, rows=10)
    assert_one_line(error, "p.npz", "not an intact")


@pytest.mark.parametrize("repeated", [["a", "a"], ["a", 3], [], "ab", ["a", ""]])
def test_names_must_be_distinct_texts(tmp_path, repeated):
    path = tmp_path / "p.npz"
    two = split_rows([np.arange(5), np.arange(5, 10)], np.zeros(10), "ab", seed=0, scheme="x")
    save_partition(two, path)
    arrays = arrays_of(path)
    about = json.loads(arrays["about"].tobytes()) | {"names": repeated}
    np.savez(path, **arrays | {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)})
    with pytest.raises(BadInput) as error:
        load_partition(path, rows=10)
    assert_one_line(error, "not an intact")


def test_foreign_broken_and_missing_files(tmp_path):
    path = tmp_path / "p.npz"
    with pytest.raises(BadInput) as error:
        load_partition(path, rows=10)
    assert_one_line(error, "p.npz", "No such file")
    np.save(tmp_path / "plain.npy", np.arange(3))
    save_partition(digits_split(), path)
    intact = path.read_bytes()
    for content in (b"", b"hello", intact[:-30], (tmp_path / "plain.npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(BadInput) as error:
            load_partition(path, rows=DIGITS.size)
        assert_one_line(error, "p.npz")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_flipped_byte_is_bad_input_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "flipped.npz"
    save_partition(one_client(), path)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        back = load_partition(path, rows=10)
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert same(parts(back, 0), parts(one_client(), 0))


# --- statistics ---


def test_statistics_by_hand():
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 0])
    shares = [np.array([0, 1, 2, 3]), np.array([4, 5, 6, 7, 8, 9])]
    partition = split_rows(shares, labels, ["a", "b"], seed=0, scheme="x")
    found = statistics(partition, labels, 4)
    assert found["clients"] == 2
    assert sum(found["rows"].values()) == 10
    assert found["samples"] == {"min": 4, "median": 5.0, "max": 6}
    assert found["classes_per_client"] == {"min": 2, "median": 2.5, "max": 3, "each": [2, 3]}
    assert found["class_counts"] == [[3, 1, 0, 0], [1, 1, 4, 0]]
    # 3/4 - 1/6, 1/4 - 1/6 and 4/6; the first two classes are with both and count twice
    assert found["label_distance"] == pytest.approx(7 / 12 + 1 / 12 + 8 / 12)
    assert found["label_distance_doubled"] == pytest.approx(14 / 12 + 2 / 12 + 8 / 12)
    json.dumps(found)


def test_statistics_of_disjoint_equal_and_lone_clients():
    labels = np.repeat([0, 1], 8)
    apart = split_rows([np.arange(8), np.arange(8, 16)], labels, "ab", seed=0, scheme="x")
    assert statistics(apart, labels, 2)["label_distance"] == 2
    assert statistics(apart, labels, 2)["label_distance_doubled"] == 2
    alike = split_rows([np.arange(4, 12), np.r_[:4, 12:16]], labels, "ab", seed=0, scheme="x")
    assert statistics(alike, labels, 2)["label_distance"] == 0
    alone = split_rows([np.arange(16)], labels, "a", seed=0, scheme="x")
    assert statistics(alone, labels, 2)["label_distance"] == 0


def test_label_distance_agrees_with_a_plain_double_loop():
    found = statistics(digits_split(), DIGITS, 10)
    counts = np.array(found["class_counts"])
    share = counts / counts.sum(axis=1, keepdims=True)
    pairs = [np.abs(share[i] - share[j]).sum() for i in range(20) for j in range(i)]
    assert found["label_distance"] == pytest.approx(np.mean(pairs))
    assert np.array_equal(counts, table(RECIPES["dirichlet"](0), DIGITS))


@pytest.mark.parametrize("wrong", [-1, 10])
def test_statistics_of_labels_out_of_range(wrong):
    labels = DIGITS.copy()
    labels[0] = wrong
    with pytest.raises(BadInput) as error:
        statistics(digits_split(), labels, 10)
    assert_one_line(error, f"label {wrong}", "10 classes")
