"""What methods note during a run, as it is read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedtailor
from fedtailor import BadInput
from fedtailor.results.records import read_records

CLIENTS, BLOCKS, ROUNDS = 5, 2, 3
SMALL: dict[str, Any] = {
    "model": "mlp", "clients": CLIENTS, "rounds": ROUNDS, "batch": 150, "lr": 0.1,
    "participation": 0.6,
}  # fmt: skip
Records = dict[str, dict[int, Tensor]]


def play(folder: Path, method: str, options: dict[str, Any] | None = None, **more: Any) -> Records:
    fedtailor.run(method, out=folder, options=options or {}, **SMALL | more)
    return read_records(folder)


def cohorts(folder: Path) -> list[list[int]]:
    return [
        json.loads(row)["cohort"] for row in (folder / "history.jsonl").read_text().splitlines()
    ]


def check(found: Records, names: dict[str, tuple[int, ...]]) -> None:
    """Exactly these names; `client/` arrays with one row per client of the cohort."""
    assert set(found) == {*names, "ids"}
    for name, shape in names.items():
        assert list(found[name]) == [1, 2, 3]
        for round, value in found[name].items():
            rows = (len(found["ids"][round]),) if name.startswith("client/") else ()
            assert tuple(value.shape) == rows + shape, name
            assert value.isfinite().all(), name


@pytest.mark.parametrize("policy", ["sigmoid", "random"])
def test_pmixfed(tmp_path: Path, policy: str) -> None:
    found = play(tmp_path / "run", "pmixfed", {"mix_policy": policy})
    names = {"client/mix_degree": (BLOCKS,), "client/mix_factor": (), "server/global_accuracy": ()}
    check(found, names)
    assert [found["ids"][t].tolist() for t in (1, 2, 3)] == cohorts(tmp_path / "run")
    for degrees in found["client/mix_degree"].values():
        assert ((degrees >= 0) & (degrees <= 1)).all()
        if policy == "sigmoid":
            assert not degrees[:, -1].any(), "the head is the client's own"
    if policy == "sigmoid":
        assert found["client/mix_factor"][1].tolist() == [0.5] * 3
    assert all(0 <= float(a) <= 1 for a in found["server/global_accuracy"].values())


@pytest.mark.parametrize(
    ("method", "blocks"), [("plgu-lf", BLOCKS), ("plgu-grep", 1), ("plgu-ghn", BLOCKS)]
)
def test_plgu(tmp_path: Path, method: str, blocks: int) -> None:
    options = {"plgu-lf": {"D": 1}, "plgu-grep": {}, "plgu-ghn": {"hidden": 8}}[method]
    found = play(tmp_path / "run", method, options)
    names: dict[str, tuple[int, ...]] = {"client/score": (blocks,)}
    if method == "plgu-lf":
        names["client/personal_block"] = (BLOCKS,)
    check(found, names)
    for scores in found["client/score"].values():
        torch.testing.assert_close(scores.mean(1), torch.ones(len(scores)))
    if method == "plgu-lf":
        for flags in found["client/personal_block"].values():
            assert flags.dtype == torch.bool
            assert flags.sum(1).tolist() == [1] * len(flags)


@pytest.mark.parametrize("method", ["fedala", "ditto+ala", "fedrep+ala"])
def test_ala(tmp_path: Path, method: str) -> None:
    found = play(tmp_path / "run", method, {"max_ala_epochs": 4}, participation=1.0)
    check(found, {"client/ala_weight": (1,), "client/ala_loss": (), "client/ala_epochs": ()})
    # the first round has nothing to adapt; then until converged (at most 4), then one epoch
    assert found["client/ala_epochs"][1].tolist() == [0] * CLIENTS
    assert found["client/ala_epochs"][2].tolist() == [4] * CLIENTS
    assert found["client/ala_epochs"][3].tolist() == [1] * CLIENTS
    assert found["client/ala_weight"][1].flatten().tolist() == [1] * CLIENTS
    assert ((found["client/ala_weight"][3] > 0) & (found["client/ala_weight"][3] <= 1)).all()
    assert (found["client/ala_loss"][2] > 0).all()


@pytest.mark.parametrize("method", ["pfedla", "heurpfedla"])
@pytest.mark.parametrize("norm", ["softmax", "relu_norm"])
def test_pfedla(tmp_path: Path, method: str, norm: str) -> None:
    options = {"hidden": 8, "embed": 4, "hn_lr": 0.5, "normalisation": norm}
    found = play(tmp_path / "run", method, options)
    check(found, {"server/aggregation_weights": (BLOCKS, CLIENTS, CLIENTS)})
    values = list(found["server/aggregation_weights"].values())
    for weights in values:
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(BLOCKS, CLIENTS))
    assert not torch.equal(values[0], values[-1])


@pytest.mark.parametrize("method", ["fedfomo", "fedfomo-ma"])
def test_fedfomo(tmp_path: Path, method: str) -> None:
    options = {"M": 3} if method == "fedfomo" else {}
    found = play(tmp_path / "run", method, options)
    names: dict[str, tuple[int, ...]] = {
        "client/candidate_weight": (3 if method == "fedfomo" else CLIENTS,)
    }
    if method == "fedfomo":
        names["server/affinity"] = (CLIENTS, CLIENTS)
    check(found, names)
    if method == "fedfomo":
        assert torch.equal(found["server/affinity"][1], torch.eye(CLIENTS))
        assert not torch.equal(found["server/affinity"][3], torch.eye(CLIENTS))


@pytest.mark.parametrize("method", ["fedalt+mix", "fedsim+mix"])
def test_mixing_on_other_methods(tmp_path: Path, method: str) -> None:
    found = play(tmp_path / "run", method)
    names = {"client/mix_degree": (BLOCKS,), "client/mix_factor": (), "server/global_accuracy": ()}
    check(found, names)


@pytest.mark.parametrize("method", ["fedavg", "local", "ditto"])
def test_methods_that_note_nothing(tmp_path: Path, method: str) -> None:
    with pytest.raises(BadInput) as error:
        play(tmp_path / "run", method)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "records").exists()


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no records"):
        read_records(tmp_path / "nowhere")


def test_only_evaluated_rounds_are_recorded(tmp_path: Path) -> None:
    found = play(tmp_path / "run", "pmixfed", rounds=5, eval_every=2)
    assert list(found["client/mix_factor"]) == [2, 4, 5]


def test_a_client_that_diverged_has_no_row(tmp_path: Path) -> None:
    """Rows are those of `ids`, which are the clients that counted."""
    draw = torch.Generator().manual_seed(0)
    rows = ["client,a,b,label"]
    for client in ("ann", "bob", "huge"):
        for i in range(40):
            a, b = (torch.randn(2, generator=draw) + i % 2).tolist()
            factor = 1e30 if client == "huge" else 1.0
            rows.append(f"{client},{a * factor:.5g},{b * factor:.5g},{('no', 'yes')[i % 2]}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(rows) + "\n")
    fedtailor.run(
        "pmixfed", out=tmp_path / "run", data=str(path), label="label", client_column="client",
        rounds=2, normalise="none", on_nan="skip", lr=0.1,
    )  # fmt: skip
    found = read_records(tmp_path / "run")
    assert found["ids"][1].tolist() == [0, 1]
    assert found["client/mix_degree"][1].shape == (2, 2)


def test_networks_of_several_depths_note_what_they_have_in_common(tmp_path: Path) -> None:
    """Two and three blocks: degrees have no common shape, factors do."""
    found = play(tmp_path / "run", "pmixfed", models="mlp:3,mlp-2:2", participation=1.0)
    assert found["client/mix_factor"][1].shape == (CLIENTS,)
    assert "client/mix_degree" not in found
