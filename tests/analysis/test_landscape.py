"""Loss landscapes of finished runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedtailor
from fedtailor.analysis.landscape import default_clients, write_landscapes
from fedtailor.core.errors import BadInput
from fedtailor.results.measurements import read_landscape
from fedtailor.runs.finished import reopen
from tests.analysis.surfacelab import play


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("landscape")
    return [play(folder / "plgu"), play(folder / "fedavg", "fedavg")]


@pytest.fixture(scope="module")
def measured(runs: list[Path]) -> list[Path]:
    write_landscapes(runs, clients=["client-1", "client-2"], points=5, reach=0.5)
    return runs


def test_the_middle_is_what_the_run_said(measured: list[Path]) -> None:
    for folder in measured:
        found, result = read_landscape(folder), json.loads((folder / "result.json").read_text())
        assert found is not None
        for client in ("client-1", "client-2"):
            own = found["clients"][client]["personal"]["own"]
            assert own["accuracy"][2][2] == pytest.approx(result["per_client"][client], abs=1e-6)
            assert own["sharpness"]["centre"] == own["loss"][2][2]
            assert found["axis"] == [-0.5, -0.25, 0, 0.25, 0.5]


def test_a_number_that_is_learnt_has_a_squared_error_and_no_accuracy(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [f"{a:.3f},{'ns'[i % 2]},{3 * a:.3f}" for i, a in enumerate(draw.normal(size=60))]
    data = tmp_path / "rows.csv"
    data.write_text("\n".join(["a,site,weight", *rows]) + "\n")
    folder, given = tmp_path / "run", {"client_column": "site", "label": "weight"}
    fedtailor.run("fedavg", data=str(data), rounds=1, out=folder, device="cpu", **given)
    write_landscapes([folder], clients=["n"], points=3)
    found, run = read_landscape(folder), reopen(folder, "cpu")
    x, y = run.rows("test", "n")
    with torch.no_grad():
        said = run.player("n")[0].predict(run.personal("n"), x)[:, 0]
    own = found["clients"]["n"]["personal"]["own"]
    assert own["loss"][1][1] == pytest.approx(float(((said - y) ** 2).mean()), rel=1e-5)
    assert own["accuracy"] == [[None] * 3] * 3


def test_global_and_personal_models_lie_at_the_ends_of_the_line(measured: list[Path]) -> None:
    run = reopen(measured[0], "cpu")
    found = read_landscape(measured[0])
    assert found is not None
    told = found["clients"]["client-1"]
    predict = run.player("client-1")[0].predict
    for which, model, t in (
        ("global", run.general("client-1"), 0),
        ("personal", run.personal("client-1"), 1),
    ):
        for rows, client in (("own", "client-1"), ("all", None)):
            x, y = run.rows("test", client)
            with torch.no_grad():
                loss = F.cross_entropy(predict(model, x), y).item()
            at = told["line"]["t"].index(t)
            assert told["line"][rows]["loss"][at] == pytest.approx(loss, rel=1e-5)
            assert told[which][rows]["loss"][2][2] == pytest.approx(loss, rel=1e-5)


def test_a_method_without_a_global_model_has_neither_it_nor_a_line(measured: list[Path]) -> None:
    found = read_landscape(measured[1])
    assert found is not None
    assert all(one.keys() == {"personal"} for one in found["clients"].values())


def test_the_shared_global_surface_is_the_same_for_all(measured: list[Path]) -> None:
    found = read_landscape(measured[0])
    assert found is not None
    one, other = (found["clients"][f"client-{i}"]["global"] for i in (1, 2))
    assert one["all"] == other["all"]
    assert one["own"] != other["own"]


def test_it_is_the_same_each_time_and_another_with_another_seed(runs: list[Path]) -> None:
    def again(**settings: int) -> str:
        told: list[tuple[int, int]] = []
        write_landscapes(
            runs[1:], clients=["client-0"], points=3, tell=lambda w, d, a: told.append((d, a)),
            **settings,
        )  # fmt: skip
        assert told[-1] == (18, 18)
        return (runs[1] / "landscape.json").read_text()

    before = (
        (runs[1] / "landscape.json").read_text() if (runs[1] / "landscape.json").exists() else ""
    )
    first = again()
    assert again() == first
    assert again(seed=1) != first
    if before:
        (runs[1] / "landscape.json").write_text(before)


def test_default_clients_are_the_worst_the_middle_and_the_best() -> None:
    scores = {"a": 0.9, "b": None, "c": 0.1, "d": 0.5}
    assert default_clients({"per_client": scores}) == ["c", "d", "a"]
    assert default_clients({"per_client": {"a": 1.0}}) == ["a"]
    with pytest.raises(BadInput, match="no client has test rows"):
        default_clients({"per_client": {"a": None}})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"points": 4}, "points is 4: give an odd number"),
        ({"points": 1}, "points is 1"),
        ({"reach": 0.0}, "range is 0"),
        ({"reach": math.nan}, "range is nan"),
        ({"clients": ["client-9"]}, "unknown client"),
    ],
)
def test_bad_settings(runs: list[Path], settings: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        write_landscapes(runs[:1], **settings)  # type: ignore[arg-type]


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no folders"):
        write_landscapes([])
    with pytest.raises(BadInput, match="is no folder"):
        write_landscapes([tmp_path / "none"])
    (tmp_path / "config.toml").write_text('method = "fedavg"')
    with pytest.raises(BadInput, match="not finished"):
        write_landscapes([tmp_path])


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"axis": [0], "clients": {}}', '{"axis": [1, 2, 3], "clients": {"a": 1}}'],
)
def test_a_broken_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "landscape.json").write_text(text)
    with pytest.raises(BadInput, match="broken: make it again"):
        read_landscape(tmp_path)
    assert read_landscape(tmp_path / "elsewhere") is None


def test_changed_data_are_noticed(runs: list[Path], tmp_path: Path) -> None:
    latest = runs[1] / "checkpoint" / "latest.json"
    before = latest.read_text()
    latest.write_text(json.dumps(json.loads(before) | {"data": "other"}))
    try:
        with pytest.raises(BadInput, match="have changed since the run"):
            reopen(runs[1], "cpu")
    finally:
        latest.write_text(before)
