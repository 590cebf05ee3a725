"""Methods with a part added, by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedtailor import BadInput
from fedtailor.cli import app
from fedtailor.core.method import Method
from fedtailor.core.options import NonNegative, Whole
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods import METHODS, fedavg
from fedtailor.methods.combine import WRAPPERS, with_part
from fedtailor.methods.describe import options_of, page, parse_options
from fedtailor.methods.find import find
from fedtailor.methods.footprint import footprint
from fedtailor.methods.mixture.fedala import Ala
from fedtailor.methods.mixture.pmixfed import Mixer
from fedtailor.results.config import make_config
from tests.methods.worlds import ragged, simulate, task_of


def parts_of(host: str) -> list[str]:
    """What a method takes; it is played to find out, which is too much while collecting tests."""
    return [part for part, wrapper in WRAPPERS.items() if wrapper.suits(METHODS[host])]


HOSTS = (
    "fedavg", "fedavg-data", "fedprox", "fedsam", "fedalt", "fedbabu", "fedbn", "fedper", "fedrep",
    "fedsim", "lg-fedavg", "partialfed", "ditto", "fedphp", "pfedme", "perfedavg-fo",
    "perfedavg-hf", "fedamp", "heurfedamp", "fedrod", "feddbe", "knn-per",
    "moon",
)  # fmt: skip


# Their server keeps one point that all clients move.
MOVED = (
    "fedavg", "fedprox", "fedsam", "scaffold", "fedavg-data", "fedavg-c", "fedprox-c", "ditto",
    "pfedme", "fedphp", "plgu-lf", "fedper", "fedrep", "fedbabu", "lg-fedavg", "fedalt", "fedsim",
    "fedbn", "plgu-grep", "partialfed", "fedala", "pmixfed", "apfl", "perfedavg-fo", "perfedavg-hf",
    "fedrod", "feddbe", "fedpac", "knn-per", "gpfl", "fedcp",
    "moon", "fml",
)  # fmt: skip
# The same, but nothing else may take the place of the mean.
MEAN_ONLY = ("fednova", "qfedavg", "term", "fedas")
OPTIMISERS = ("avgm", "adam", "yogi", "adagrad")
RULES = ("median", "trimmed", "krum", "multikrum", "geometric", "clip")


def test_who_takes_what() -> None:
    """A method that is built on another's does not inherit what it does not do."""
    expected = {f"{name}+ala" for name in HOSTS} | {"fedalt+mix", "fedsim+mix"}
    expected |= {f"{name}+{rule}" for name in MOVED for rule in (*OPTIMISERS, *RULES)}
    expected |= {f"{name}+{optimiser}" for name in MEAN_ONLY for optimiser in OPTIMISERS}
    assert {f"{name}+{part}" for name in METHODS for part in parts_of(name)} == expected


def test_a_method_built_on_another_is_no_host_with_a_client_of_its_own() -> None:
    """ALA would be added and ignored."""
    mine = lambda task: fedavg(task)._replace(client=lambda msg, state, data, turn: None)
    with pytest.raises(BadInput, match="'mine' cannot take '\\+ala'"):
        with_part(mine, "mine", "ala")


@pytest.mark.parametrize("host", METHODS)
def test_page_is_complete(host: str) -> None:
    """A title, a paper, and a meaning and default for every option of host and part."""
    theirs = options_of(METHODS[host])
    for part in parts_of(host):
        found = page(find(f"{host}+{part}"))
        assert host in found.title
        assert f"+{part}" in found.title
        assert found.text
        assert "http" in found.reference, part
        assert found.deviations, part
        added = WRAPPERS[part].options
        mine = [o._replace(default=getattr(added, o.name)) for o in options_of(type(added))]
        assert len(found.options) == len(theirs) + len(mine)
        for option, expected in zip(found.options, [*theirs, *mine], strict=True):
            # a name that both have is spelt out
            assert option == expected._replace(name=option.name), part
            assert option.meaning != ""
            assert option.parse(option.default) == option.default


@pytest.mark.parametrize("name", ["ditto+ala", "fedalt+mix", "fedprox+adam", "scaffold+avgm"])
def test_options_are_checked(name: str) -> None:
    factory = find(name)
    own, theirs = {
        "ditto+ala": ("p", "lam"),
        "fedalt+mix": ("mu0", "server_lr"),
        "fedprox+adam": ("server_lr", "mu"),
        "scaffold+avgm": ("avgm_server_lr", "server_lr"),
    }[name]
    assert parse_options(factory, {own: "1", theirs: "0.5"}) == {own: 1, theirs: 0.5}
    with pytest.raises(BadInput, match=own):
        parse_options(factory, {own: "-1"})
    with pytest.raises(BadInput, match="unknown option"):
        parse_options(factory, {"nonsense": "1"})
    assert make_config(name, {}, {own: "1"}).options == {own: 1}


# -------------------------------------------------------------------------------- options of both


def host(
    task: Task,
    *,
    p: NonNegative = 3.0,
    s: Whole = 4,
    recipe: Recipe = Recipe(),
) -> Method:
    """A host with options that ALA has, too.

    Args:
      p: the host's own.
      s: the host's own, too.
      recipe: how.

    Reference: nobody
    """
    SEEN.append({"p": p, "s": s, "recipe": recipe})
    return fedavg(task, recipe=recipe)


SEEN: list[dict[str, Any]] = []


def test_an_option_that_both_have_gets_the_parts_name() -> None:
    factory = with_part(host, "host", "ala")
    names = [o.name for o in page(factory).options]
    assert names[:2] == ["p", "s"]
    assert names[2:4] == ["ala_s", "ala_p"]
    assert len(set(names)) == len(names) == 2 + len(options_of(Ala))
    meanings = {o.name: o.meaning for o in page(factory).options}
    assert meanings["p"] == "the host's own."
    assert "blocks" in meanings["ala_p"]
    defaults = {o.name: o.default for o in page(factory).options}
    assert (defaults["p"], defaults["ala_p"], defaults["s"], defaults["ala_s"]) == (3.0, 1, 4, 80.0)
    # each value reaches its own
    task, recipe = task_of(), Recipe(batch=5)
    SEEN.clear()
    method = factory(task, recipe=recipe, p=7.0, ala_p=2)
    assert (SEEN[0]["p"], SEEN[0]["s"], SEEN[0]["recipe"]) == (7.0, 4, recipe)
    state = simulate(method, ragged(), task).states.rows
    assert set(state["weight"]) == set(task.top(2))
    assert parse_options(factory, {"p": "0.5", "ala_p": "2"}) == {"p": 0.5, "ala_p": 2}
    with pytest.raises(BadInput, match="ala_p"):
        parse_options(factory, {"ala_p": "0.5"})


def test_by_default_only_the_part_is_added() -> None:
    SEEN.clear()
    method = with_part(host, "host", "ala")(task_of())
    assert all((seen["p"], seen["s"]) == (3.0, 4) for seen in SEEN)
    assert method.start is not fedavg(task_of()).start
    assert method.not_private.startswith("ALA decides")


def test_an_unknown_option_is_not_swallowed() -> None:
    for name in ("fedavg+ala", "fedsim+mix"):
        with pytest.raises(TypeError):
            find(name)(task_of(), nonsense=1)


# ------------------------------------------------------------------------------------- bad names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ditto+ela", ["ditto+ela", "did you mean 'ala'?", "mix"]),
        ("ditto+", ["known: ala, mix, avgm, adam, yogi, adagrad"]),
        ("dito+ala", ["unknown method 'dito'", "did you mean 'ditto'?"]),
        ("+ala", ["unknown method"]),
        ("local+ala", ["'local' cannot take '+ala'", "download one model"]),
        ("fedfomo+ala", ["'fedfomo' cannot take '+ala'"]),
        ("fedala+ala", ["'fedala' cannot take '+ala'"]),
        ("ditto+ala+ala", ["'ditto+ala' cannot take '+ala'"]),
        ("fedavg+mix", ["'fedavg' cannot take '+mix'", "fedalt and fedsim"]),
        ("pmixfed+mix", ["'pmixfed' cannot take '+mix'"]),
        ("local+adam", ["'local' cannot take '+adam'", "one point that all clients move"]),
        ("fedavg+adm", ["did you mean 'adam'?"]),
    ],
)
def test_bad_names_are_one_line(name: str, words: list[str]) -> None:
    with pytest.raises(BadInput) as error:
        find(name)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_two_parts() -> None:
    """ALA inside, mixing around it: each option reaches its part."""
    method = find("fedalt+ala+mix")(task_of(), s=50, mu0=0.5, shared_blocks=1)
    assert method.not_private and method.validates
    sim = simulate(method, ragged(), task_of())
    sim.step(torch.arange(6))
    assert set(sim.states.rows) == {"host", "own", "trained"}
    assert set(sim.states.rows["host"]) == {"host", "own", "weight", "started"}
    names = [o.name for o in page(find("fedalt+ala+mix")).options]
    assert names.index("shared_blocks") < names.index("s") < names.index("mu0")


def test_a_host_of_ones_own() -> None:
    """package.module:factory, with a part."""
    factory = find(f"{__name__}:host+ala")
    assert [o.name for o in page(factory).options][2] == "ala_s"


# ---------------------------------------------------------------------------------- command line


@pytest.mark.parametrize("name", ["ditto+ala", "fedalt+mix", "fedala+yogi"])
def test_show(name: str) -> None:
    result = CliRunner().invoke(app, ["show", name])
    assert result.exit_code == 0, result.output
    assert name in result.output
    for option in page(find(name)).options:
        assert option.name[:8] in result.output  # a narrow table may cut names


def test_show_as_json() -> None:
    result = CliRunner().invoke(app, ["show", "ditto+ala", "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["name"] == "ditto+ala"
    assert {o["name"] for o in found["options"]} == {
        o.name for o in page(find("ditto+ala")).options
    }
    assert found["footprint"]["down"] == found["footprint"]["up"] == 1
    # v, the last trained copy of w, and the head's weights
    assert 2 < found["footprint"]["client"] < 3


def test_footprint_of_mixing() -> None:
    """Shared blocks and accuracies travel; the client keeps its copy, its part, and a flag."""
    plain, mixed = footprint(find("fedsim")), footprint(find("fedsim+mix"))
    one = 1 / plain.parameters
    assert mixed.down == pytest.approx(plain.down + one)
    assert mixed.up == pytest.approx(plain.up + 2 * one)
    assert mixed.client == pytest.approx(plain.client + plain.down + one)


def test_parts_are_what_they_are_called() -> None:
    assert set(WRAPPERS) == {"ala", "mix", *OPTIMISERS, *RULES}
    assert WRAPPERS["ala"].options == Ala()
    assert WRAPPERS["mix"].options == Mixer()
