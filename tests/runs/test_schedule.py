"""Late clients and networks of several depths."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedtailor
from fedtailor import BadInput
from fedtailor.analysis.landscape import write_landscapes
from fedtailor.api import resume
from fedtailor.report.page import page_data
from fedtailor.results.collect import collect
from fedtailor.runs.schedule import arrivals, clients_present, networks

EVERYONE = torch.arange(10)
SMALL: dict[str, Any] = {"model": "mlp", "clients": 6, "rounds": 4, "batch": 100, "lr": 0.1}


# ---------------------------------------------------------------------------------------- arrivals


def test_nobody_late() -> None:
    for text in ("", " ", ",", " , "):
        assert arrivals(text, EVERYONE, 0, 10) == []
    assert torch.equal(clients_present(EVERYONE, [], 0), EVERYONE)


def test_who_comes_when() -> None:
    late = arrivals(" 3:2, 5:1 ,5:2", EVERYONE, 0, 10)
    assert [number for number, _ in late] == [3, 5, 5]
    assert [len(ids) for _, ids in late] == [2, 1, 2]
    everybody = torch.cat([ids for _, ids in late])
    assert len(everybody.unique()) == 5, "nobody comes twice"
    assert set(everybody.tolist()) <= set(range(10))
    assert all(ids.tolist() == sorted(ids.tolist()) for _, ids in late)


def test_there_before_and_after() -> None:
    """Rounds count from 0: with 3:2 two clients first take part in the fourth round."""
    late = arrivals("3:2,5:3", EVERYONE, 0, 10)
    sizes = [len(clients_present(EVERYONE, late, t)) for t in range(7)]
    assert sizes == [5, 5, 5, 7, 7, 10, 10]
    before, after = clients_present(EVERYONE, late, 2), clients_present(EVERYONE, late, 3)
    assert set(after.tolist()) - set(before.tolist()) == set(late[0][1].tolist())
    assert all(clients_present(EVERYONE, late, t).diff().gt(0).all() for t in range(7))


def test_the_draw_is_the_seeds() -> None:
    one, two, other = (arrivals("2:4", EVERYONE, seed, 10)[0][1].tolist() for seed in (1, 1, 2))
    assert one == two
    assert one != other
    torch.manual_seed(0)
    assert arrivals("2:4", EVERYONE, 1, 10)[0][1].tolist() == one
    # a longer list begins with the same people
    assert arrivals("2:4,3:1", EVERYONE, 1, 10)[0][1].tolist() == one


def test_held_out_clients_never_come() -> None:
    trained = torch.tensor([0, 2, 4, 6, 8])
    late = arrivals("1:4", trained, 0, 10)
    assert set(late[0][1].tolist()) <= set(trained.tolist())
    assert len(clients_present(trained, late, 0)) == 1


@pytest.mark.parametrize(
    "text",
    ["5", "5:", ":5", "a:2", "-1:2", "0:2", "1.5:2", "2:-1", "2:0", "2:x", "2:1.5", "2;1", "2:10"],
)
def test_bad_arrivals_are_one_line(text: str) -> None:
    with pytest.raises(BadInput) as error:
        arrivals(text, EVERYONE, 0, 10)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"join '{text}'")


@pytest.mark.parametrize("number", [5, 6, 99])
def test_nobody_comes_after_the_last_round(number: int) -> None:
    said = f"join '{number}:1': who comes after round {number} of 5 never trains: choose"
    with pytest.raises(BadInput, match=said):
        arrivals(f"{number}:1", EVERYONE, 0, 5)
    assert len(arrivals("4:1", EVERYONE, 0, 5)) == 1  # it trains in the last round


def test_somebody_is_there_from_the_start() -> None:
    assert len(arrivals("1:9", EVERYONE, 0, 10)[0][1]) == 9
    for text in ("1:10", "1:5,2:5", "1:99"):
        with pytest.raises(BadInput, match="use fewer"):
            arrivals(text, EVERYONE, 0, 10)


# ---------------------------------------------------------------------------------------- networks


def test_one_network_for_all() -> None:
    ((model, ids),) = networks("", "mlp", 4)
    assert model == "mlp"
    assert ids.tolist() == [0, 1, 2, 3]


def test_networks_in_order() -> None:
    found = networks("mlp-2:2, package.module:factory:1 ,mlp:3", "ignored", 6)
    assert [(model, ids.tolist()) for model, ids in found] == [
        ("mlp-2", [0, 1]),
        ("package.module:factory", [2]),
        ("mlp", [3, 4, 5]),
    ]


@pytest.mark.parametrize("text", ["mlp", "mlp:", ":4", "mlp:0", "mlp:x", "mlp:-4", "mlp:1.5"])
def test_bad_networks_are_one_line(text: str) -> None:
    with pytest.raises(BadInput) as error:
        networks(text, "mlp", 4)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"models '{text}'")


def test_networks_are_for_all_clients() -> None:
    for text, count in (("mlp:3", 3), ("mlp:3,mlp-2:2", 5)):
        with pytest.raises(BadInput, match=f"{count} clients, but there are 4"):
            networks(text, "mlp", 4)


# -------------------------------------------------------------------------------------------- runs


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]


def test_a_run_with_late_clients(tmp_path: Path) -> None:
    """join 2:3: three clients in the first two rounds, six from the third on."""
    folder = tmp_path / "run"
    fedtailor.run("pmixfed", out=folder, join="2:3", **SMALL)
    lines = history(folder)
    assert [len(line["cohort"]) for line in lines] == [3, 3, 6, 6]
    assert [line.get("joined", []) != [] for line in lines] == [False, False, True, False]
    assert len(lines[2]["joined"]) == 3
    late = set(range(6)) - set(lines[0]["cohort"])
    assert {f"client-{i}" for i in late} == set(lines[2]["joined"])
    # who is there already is scored apart, too
    first = lines[0]
    there = [first["pre_per_client"][i] for i in first["cohort"]]
    assert first["pre_present"]["mean"] == pytest.approx(sum(there) / 3, abs=1e-5)
    assert lines[3]["pre_present"] == lines[3]["pre"]


def test_a_run_with_several_depths(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "run"
    result = fedtailor.run("pmixfed", out=folder, models="mlp-2:2,mlp:4", **SMALL)
    assert list(result["networks"].values()) == ["mlp-2"] * 2 + ["mlp"] * 4
    assert result["model"] == "mlp-2", "the server has the deepest one"
    # digits: 64 -> 200 (13 000 numbers) is common to both; mlp-2 has 200 -> 200 -> 10 above
    deep, shallow = 13_000 + 40_200 + 2_010, 13_000
    assert result["bytes"]["down"] == 4 * 4 * (2 * (deep + 1) + 4 * (shallow + 1))
    assert result["bytes"]["up"] == 4 * 4 * (2 * (deep + 2) + 4 * (shallow + 2))
    assert len(list((folder / "models").iterdir())) == 6
    said = "model is 'mlp', but pmixfed does not use it: its server has the deepest of --models"
    assert said in caplog.text


def test_a_common_network_is_the_one_that_model_names(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    how = SMALL | {"model": "linear", "rounds": 2}
    result = fedtailor.run("fml", out=folder, models="mlp-2:2,mlp:4", **how)
    assert result["model"] == "linear"
    assert set(result["networks"].values()) == {"mlp-2", "mlp"}
    assert result["bytes"]["up"] == 2 * 6 * 4 * (64 * 10 + 10)
    both = {f"fc{i}.{part}" for i in (1, 2) for part in ("weight", "bias")}
    names = {"fc.weight", "fc.bias"}
    assert load_file(folder / "models" / "client-0.safetensors").keys() == both | names
    assert load_file(folder / "general.safetensors").keys() == names
    page = page_data(collect([folder]))
    assert dict(page["facts"])["Network"] == "mlp-2 (2 clients), mlp (4 clients), in common linear"
    assert page["networks"] == ["mlp-2"] * 2 + ["mlp"] * 4
    last = (folder / "clients.csv").read_text().splitlines()[-1]
    assert last.startswith("client-5,") and last.endswith(",mlp")
    network = result.model("client-5")
    assert network(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    measured = write_landscapes([folder], clients=["client-0"], points=3)[folder]
    assert {"personal", "global"} <= measured["clients"]["client-0"].keys()
    assert "line" not in measured["clients"]["client-0"], "no way between unlike networks"
    with pytest.raises(BadInput, match="an audit takes a run with one network"):
        fedtailor.audit(folder)


def test_the_network_that_cannot_be_private_is_named() -> None:
    how = SMALL | {"models": "mlp:4,resnet18-bn:2", "dp_clip": 1.0, "dp_noise": 1.0}
    with pytest.raises(BadInput, match="DP-SGD with 'resnet18-bn': BatchNorm mixes examples"):
        fedtailor.run("fml", **how)


@pytest.mark.parametrize("name", ["fedavg", "lg-fedavg+ala"])
def test_methods_that_need_equal_networks_name_those_that_do_not(name: str) -> None:
    with pytest.raises(BadInput, match=f"but {re.escape(name)} needs equal networks: leave it"):
        fedtailor.run(name, models="mlp-2:2,mlp:4", **SMALL)
    with pytest.raises(BadInput, match=r"or choose .*fedproto"):
        fedtailor.compare(name, "fedproto", models="mlp-2:2,mlp:4", **SMALL)


class Stopped(Exception):
    """As if the process had died."""


def stop(line: dict[str, Any], rounds: int) -> None:
    if line["round"] == 3:
        raise Stopped


LATER, DEPTHS = {"join": "2:3"}, {"models": "mlp-2:2,mlp:4"}


@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("pmixfed", LATER),
        ("pmixfed", DEPTHS),
        ("fml", DEPTHS | {"model": "linear"}),
        ("fedkd", DEPTHS | {"model": "linear"}),
        ("fedalt", DEPTHS),
    ],
    ids=str,
)
def test_resumed_as_if_nothing_had_happened(
    method: str, how: dict[str, Any], tmp_path: Path
) -> None:
    settings = SMALL | how | {"checkpoint_every": 1}
    fedtailor.run(method, out=tmp_path / "whole", **settings)
    with pytest.raises(Stopped):
        fedtailor.run(method, out=tmp_path / "cut", watch=stop, **settings)
    resume(tmp_path / "cut")
    for one, two in zip(history(tmp_path / "whole"), history(tmp_path / "cut"), strict=True):
        assert one["cohort"] == two["cohort"]
        assert one["pre"] == two["pre"]
        assert one.get("joined") == two.get("joined")
