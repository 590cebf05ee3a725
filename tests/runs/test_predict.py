"""Predicting with a personal model after the run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedtailor
from fedtailor import BadInput
from fedtailor.methods import METHODS
from fedtailor.results.config import make_config, read_config
from fedtailor.results.metrics.over_clients import over_clients
from fedtailor.results.outputs import read_outputs
from fedtailor.runs.data import lay_out
from tests.methods.worlds import QUICK


def table(
    path: Path,
    flipped: tuple[str, ...] = ("south",),
    clients: str = "north south",
    *,
    each: int = 40,
    apart: float = 4,
) -> Path:
    """Two classes told apart by one feature, the other way round for the `flipped` clients."""
    draw = np.random.default_rng(0)
    rows = ["client,a,b,label"]
    for client in clients.split():
        for i in range(each):
            a = draw.normal() + (apart if i % 2 else -apart)
            label = ("no", "yes")[i % 2 ^ (client in flipped)]
            rows.append(f"{client},{a:.3f},{draw.normal():.3f},{label}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prediction")
    table(folder / "own.csv")
    fedtailor.run("local", data=str(folder / "own.csv"), rounds=10, out=folder / "run")
    (folder / "new.csv").write_text("a,b\n-4,0\n4,0\n")
    return folder / "run"


def test_each_client_has_its_own_answer(run: Path) -> None:
    """The clients' rules are opposite: a personal model knows, a global one could not."""
    new = run.parent / "new.csv"
    north = fedtailor.predict(run, "north", [new])
    south = fedtailor.predict(run, "south", [new])
    assert [p.label for p in north] == ["no", "yes"]
    assert [p.label for p in south] == ["yes", "no"]
    assert [p.example for p in north] == ["new.csv:1", "new.csv:2"]
    assert all(0.5 < p.probability <= 1 for p in [*north, *south])


def test_a_clients_rows_are_scaled_by_its_own_numbers(tmp_path: Path) -> None:
    """The same disease at two hospitals, of which one measures in other units."""
    draw = np.random.default_rng(0)
    rows = ["client,a,label"]
    for client, unit in (("north", 1.0), ("south", 1000.0)):
        for i in range(40):
            a = unit * (10 + draw.normal() / 10 + i % 2)
            rows.append(f"{client},{a:.4f},{('no', 'yes')[i % 2]}")
    (tmp_path / "own.csv").write_text("\n".join(rows) + "\n")
    given = {"rounds": 10, "model": "mlp", "out": tmp_path / "run"}
    fedtailor.run("fedavg", data=str(tmp_path / "own.csv"), **given)
    for client, unit in (("north", 1), ("south", 1000)):
        (tmp_path / "new.csv").write_text(f"a\n{10 * unit}\n{11 * unit}\n")
        found = fedtailor.predict(tmp_path / "run", client, [tmp_path / "new.csv"])
        assert [p.label for p in found] == ["no", "yes"], client


def test_column_order_and_extra_columns_do_not_matter(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedtailor")
    plain = fedtailor.predict(run, "north", [run.parent / "new.csv"])
    (tmp_path / "new.csv").write_text("note,b,label,a\nx,0,yes,-4\ny,0,yes,4\n")
    assert not caplog.messages
    assert fedtailor.predict(run, "north", [tmp_path / "new.csv"]) == plain
    (told,) = caplog.messages
    assert told.endswith("new.csv': the model does not use 'note', 'label'")


def test_several_files_in_their_order(run: Path, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("a,b\n4,0\n")
    found = fedtailor.predict(run, "north", [tmp_path / "more.csv", run.parent / "new.csv"])
    assert [p.example for p in found] == ["more.csv:1", "new.csv:1", "new.csv:2"]


PLAIN = ("fedavg", "local", "ditto", "fedrep", "fedala")


@pytest.mark.parametrize(
    ("method", "finetune"), [*((m, 1) for m in METHODS), *((m, 0) for m in PLAIN)]
)
def test_predictions_agree_with_the_reported_accuracy(
    method: str, finetune: int, tmp_path: Path
) -> None:
    """Every method's saved models predict what the run scored, on all test rows.

    Classes overlap: no model is right about all rows, and few are right about equally many.
    """
    data = table(tmp_path / "own.csv", clients="north south east", each=240, apart=0.4)
    settings = {"data": str(data), "rounds": 2, "test": 0.5, "finetune": finetune}
    found = fedtailor.run(
        method, out=tmp_path / "run", options=QUICK.get(method, {}), batch=60, **settings
    )
    name, given, options = read_config(tmp_path / "run" / "config.toml")
    assert name == method
    _, _, partition = lay_out(make_config(method, given, options))
    header, *rows = data.read_text().splitlines()
    right = []
    for cid, client in enumerate(partition.names):
        mine = [rows[i] for i in partition.test[cid]]
        (tmp_path / "test.csv").write_text("\n".join([header, *mine]) + "\n")
        guesses = fedtailor.predict(tmp_path / "run", client, [tmp_path / "test.csv"])
        right.append(sum(row.endswith(f",{p.label}") for row, p in zip(mine, guesses, strict=True)))
        assert right[-1] / len(mine) == pytest.approx(found["per_client"][client], abs=1e-6)
    tested = np.array([len(test) for test in partition.test])
    summary = over_clients(np.array(right) / tested, sum(right) / tested.sum())
    assert summary.pop("clients") == len(partition)
    assert summary == pytest.approx({k: found["accuracy"][k] for k in summary}, abs=1e-6)


def test_images(tmp_path: Path) -> None:
    fedtailor.run(
        "local", model="mlp", clients=3, partition="iid", rounds=3, lr=0.2, out=tmp_path / "run"
    )
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    files = []
    for i in range(20):
        pixels = np.rint(images[i].reshape(8, 8) * (255 / 16)).astype(np.uint8)
        files.append(tmp_path / f"{i:02d}.png")
        Image.fromarray(pixels).save(files[-1])
    found = fedtailor.predict(tmp_path / "run", "client-1", files)
    assert [p.example for p in found] == [f.name for f in files]
    assert np.mean([int(p.label) == y for p, y in zip(found, labels, strict=False)]) >= 0.7


def test_an_unknown_client_is_told_the_known_ones(run: Path) -> None:
    with pytest.raises(BadInput, match="did you mean 'north'") as caught:
        fedtailor.predict(run, "nort", [run.parent / "new.csv"])
    assert "south" in str(caught.value)


@pytest.mark.parametrize("client", ["../../config", "../models/north", "", "."])
def test_no_client_leads_out_of_the_models(client: str, run: Path) -> None:
    with pytest.raises(BadInput, match="north, south"):
        fedtailor.predict(run, client, [run.parent / "new.csv"])


def test_known_clients_are_called_by_their_names(tmp_path: Path) -> None:
    data = table(tmp_path / "own.csv", clients="../x north")
    fedtailor.run("local", data=str(data), rounds=1, out=tmp_path / "run")
    with pytest.raises(BadInput) as caught:
        fedtailor.predict(tmp_path / "run", "nobody", [data])
    assert "../x" in str(caught.value)


def test_only_real_names_are_clients(tmp_path: Path) -> None:
    data = table(tmp_path / "own.csv", clients="../x north")
    fedtailor.run("local", data=str(data), rounds=1, out=tmp_path / "run")
    with pytest.raises(BadInput):
        fedtailor.predict(tmp_path / "run", "_x", [data])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("new.csv", "b\n1\n", "a"),
        ("new.csv", "a,b\nlots,1\n", "lots"),
        ("new.csv", "a,b\n", "new.csv"),
        ("new.png", "no picture", "new.png"),
        ("new.txt", "a text", "does not suit"),
    ],
)
def test_files_that_do_not_fit(
    name: str, content: str, said: str, run: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=said):
        fedtailor.predict(run, "north", [tmp_path / name])


def test_a_missing_file_is_missing(run: Path, tmp_path: Path) -> None:
    """`is not a file` would send people looking for a folder."""
    with pytest.raises(BadInput, match=r"none\.csv"):
        fedtailor.predict(run, "north", [tmp_path / "none.csv"])


def test_no_files(run: Path) -> None:
    with pytest.raises(BadInput, match="no files"):
        fedtailor.predict(run, "north", [])


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="finished run"):
        fedtailor.predict(tmp_path, "north", [tmp_path / "x.csv"])


@pytest.mark.parametrize("text", ["{", json.dumps({"kind": "?"}), "[]", "\x00"])
def test_broken_preprocessing(text: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / "preprocessing.json").write_text(text)
    (tmp_path / "config.toml").write_text((run / "config.toml").read_text())
    with pytest.raises(BadInput):
        fedtailor.predict(tmp_path, "north", [run.parent / "new.csv"])


# --- other tasks ---


def mixed(path: Path, task: str) -> Path:
    """Hospitals that measure in units of their own, with a category that only one of them has."""
    draw = np.random.default_rng(3)
    label = "months,died" if task == "survival" else "y"
    rows = [f"client,a,kind,{label}"]
    for client, unit in (("north", 1.0), ("south", 100.0)):
        for i in range(40):
            a, kind = draw.normal(), ("new" if client == "south" and i % 3 else "old")
            y = {
                "regression": f"{unit * (50 + 10 * a):.2f}",
                "survival": f"{draw.exponential(np.exp(-a)):.3f},{i % 4 > 0:d}",
                "classification": ("no", "yes")[a > 0],
            }[task]
            rows.append(f"{client},{unit * a:.4f},{kind},{y}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("task", ["classification", "regression", "survival"])
@pytest.mark.parametrize(
    ("method", "normalise"), [("local", "auto"), ("fedavg", "own"), ("fedavg", "federated")]
)
def test_a_clients_test_rows_are_answered_as_in_the_run(
    method: str, normalise: str, task: str, tmp_path: Path
) -> None:
    """What `predict` says of raw rows is what the run kept of the same rows, to the last digits."""
    data, place = mixed(tmp_path / "own.csv", task), tmp_path / "run"
    given = {"task": task, "normalise": normalise, "rounds": 2, "model": "mlp"}
    given |= {"label": "y"} if task != "survival" else {
        "time_column": "months", "event_column": "died"
    }  # fmt: skip
    fedtailor.run(method, data=str(data), client_column="client", out=place, **given)
    kept = read_outputs(place)
    assert kept is not None and kept.last is not None
    header, *rows = data.read_text().splitlines()
    start = 0
    for client, count in zip(("north", "south"), kept.test.n.tolist(), strict=True):
        mine = [rows[i] for i in kept.test.row[start : start + count].tolist()]
        said = kept.last.test[start : start + count].double()
        assert all(row.startswith(client) for row in mine)
        (tmp_path / "test.csv").write_text("\n".join([header, *mine]) + "\n")
        found = fedtailor.predict(place, client, [tmp_path / "test.csv"])
        if task == "classification":
            got = [list(p.probabilities.values()) for p in found]
            expected = said.softmax(-1).tolist()
        else:
            got = [[p.value if task == "regression" else p.risk] for p in found]
            expected = (said if task == "regression" else said.exp()).tolist()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        start += count


def test_what_is_unlike_a_clients_own_training_rows_is_noted(tmp_path: Path) -> None:
    """`new` is known to the federation, but not to north when it trains alone."""
    data = mixed(tmp_path / "own.csv", "regression")
    (tmp_path / "new.csv").write_text("a,kind\n0,old\n0,new\n60,old\n")
    notes = {}
    for method in ("local", "fedavg"):
        given = {"label": "y", "client_column": "client", "rounds": 1, "model": "mlp"}
        fedtailor.run(method, data=str(data), out=tmp_path / method, **given)
        found = fedtailor.predict(tmp_path / method, "north", [tmp_path / "new.csv"])
        notes[method] = [bool(p.note) for p in found]
        assert found[0].label is None and found[0].risk is None and found[0].value is not None
    assert notes == {"local": [False, True, True], "fedavg": [False, False, True]}
