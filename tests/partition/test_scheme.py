"""Recipes by name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.core.errors import BadInput
from fedtailor.partition import (
    Scheme,
    divide,
    natural,
    parse_partition,
)
from tests.partition.partitions import CLUSTERS, DIGITS, RECIPES, assert_one_line, same


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
