"""Ways of a client's model on one plane."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch.nn.functional as F

import fedtailor
from fedtailor.analysis.trajectory import write_trajectory
from fedtailor.core.errors import BadInput
from fedtailor.results.measurements import read_trajectory
from fedtailor.runs.finished import reopen
from fedtailor.runs.saved_models import read_points
from tests.analysis.surfacelab import play


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("trajectory")
    return [
        play(folder / "avg", "fedavg", keep_path=2),
        play(folder / "ala", "fedala", keep_path=2),
    ]


def test_both_runs_lie_on_one_plane(runs: list[Path]) -> None:
    found = write_trajectory(runs, points=5)
    assert [read_trajectory(folder) for folder in runs] == [found, found]
    assert found["client"] == "client-0"
    assert [run["label"] for run in found["runs"]] == ["fedavg", "fedala"]
    for run in found["runs"]:
        assert [(s["round"], s["when"]) for s in run["stops"]] == [
            (r, when) for r in (1, 2, 3) for when in ("before", "after")
        ]
        for stop in run["stops"]:
            assert found["x"][0] < stop["x"] < found["x"][-1]
            assert found["y"][0] < stop["y"] < found["y"][-1]
    # the same start, and the same first training: ALA has nothing to do yet
    first, other = (run["stops"][0] for run in found["runs"])
    assert first == pytest.approx(other, abs=1e-5)


def test_losses_are_those_of_the_models(runs: list[Path]) -> None:
    found = write_trajectory(runs[:1], "client-1", points=3)
    run = reopen(runs[0], "cpu")
    x, y = run.rows("train", "client-1")
    predict = run.player("client-1")[0].predict
    for stop in found["runs"][0]["stops"]:
        model = read_points(runs[0], stop["round"], "client-1")[stop["when"]]
        assert stop["loss"] == pytest.approx(F.cross_entropy(predict(model, x), y).item(), rel=1e-5)


def test_three_models_lie_on_their_plane_with_their_own_losses(runs: list[Path]) -> None:
    # rounds 2 to 3 of one run have four models; of a plane through three nothing is left out
    found = write_trajectory(runs[:1], points=3, window=(2, 3))
    assert len(found["runs"][0]["stops"]) == 4
    assert 0.5 < sum(found["shares"]) <= 1 + 1e-6


def test_runs_of_one_method_are_told_apart_by_their_folders(runs: list[Path]) -> None:
    twin = play(runs[0].parent / "twin", "fedavg", keep_path=1, lr=0.05)
    found = write_trajectory([runs[0], twin], points=3)
    assert [run["label"] for run in found["runs"]] == ["fedavg (avg)", "fedavg (twin)"]


@pytest.mark.usefixtures("without_pictures")
def test_a_comparisons_yardsticks_with_another_network_are_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"data": "digits", "model": "mlp", "clients": 3, "rounds": 1, "keep_path": 1}
    fedtailor.compare("fedavg", out=tmp_path / "c", device="cpu", batch=100, **given)
    with caplog.at_level("INFO", logger="fedtailor"):
        found = write_trajectory([tmp_path / "c"], points=3)
    assert [run["label"] for run in found["runs"]] == ["centralised", "fedavg", "local"]
    assert "linear is left out: another network" in caplog.messages


@pytest.mark.slow
def test_what_cannot_be_shown_is_told(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no folders"):
        write_trajectory([])
    with pytest.raises(BadInput, match="unknown client whose path was kept: 'client-3'"):
        write_trajectory(runs, "client-3")
    with pytest.raises(BadInput, match="a plane needs three"):
        write_trajectory(runs[:1], window=(1, 1))
    with pytest.raises(BadInput, match="points is 2"):
        write_trajectory(runs, points=2)
    without = play(tmp_path / "without", "fedavg", rounds=1)
    with pytest.raises(BadInput, match="kept no path: run it again with --keep-path"):
        write_trajectory([without])
    elsewhere = play(tmp_path / "elsewhere", "fedavg", rounds=1, keep_path=1, partition_seed=1)
    with pytest.raises(BadInput, match="other data or clients"):
        write_trajectory([runs[0], elsewhere])
    wider = play(tmp_path / "wider", "fedavg", rounds=2, keep_path=1, model="mlp")
    with pytest.raises(BadInput, match="different networks"):
        write_trajectory([runs[0], wider])


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"x": [1], "y": [], "loss": [1]})])
def test_a_broken_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "trajectory.json").write_text(text)
    with pytest.raises(BadInput, match="broken: make it again"):
        read_trajectory(tmp_path)
