"""Audits of finished runs, from the folder to the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedtailor
from fedtailor.analysis.audit import membership
from fedtailor.analysis.audit.opened import AuditedRun, Protection
from fedtailor.core.errors import BadInput
from fedtailor.results.folder import model_file
from fedtailor.results.objects import Objects
from fedtailor.results.storage import load_tensors, save_tensors

SMALL: dict[str, Any] = {
    "model": "linear", "clients": 4, "rounds": 2, "batch": 60, "device": "cpu",
}  # fmt: skip
QUICK: dict[str, Any] = {"clients": ["client-1"], "rows": 1, "attack": "analytic", "device": "cpu"}


def play(folder: Path, method: str = "fedavg", **settings: Any) -> Path:
    """A finished run."""
    fedtailor.run(method, out=folder, **SMALL | settings)
    return folder


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "DRAWS", 200)  # intervals are another test's


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(tmp_path_factory.mktemp("audit") / "fedavg")


def test_what_is_attacked_is_what_the_run_uploaded(run: Path) -> None:
    """All rows of all clients, and the mean of their uploads is the run's own next model."""
    opened = AuditedRun(run, Objects(), "cpu", "first")
    total, weights = 0.0, 0.0
    for name in opened.names:
        sent = opened.seen(name, opened.own, opened.rows("train", name)).upload
        total = total + sent.mean["params"]["fc.weight"] * sent.weight
        weights = weights + sent.weight
    opened.simulation.step(torch.arange(4))
    expected = opened.simulation.server["params"]["fc.weight"]
    opened.close()
    assert torch.allclose(total / weights, expected, atol=1e-6)


def test_after_the_last_round_the_sent_model_is_the_one_that_the_run_ended_with(run: Path) -> None:
    opened = AuditedRun(run, Objects(), "cpu", "last")
    message, _, turn = opened.received("client-2")
    model = opened.personal("client-2")
    opened.close()
    assert torch.equal(message["params"]["fc.weight"], model["fc.weight"])
    assert int(turn.round) == 1  # schedules stand where the last round had them


def test_an_audit_lies_beside_the_run(run: Path) -> None:
    told: list[tuple[int, int]] = []
    found = fedtailor.audit(
        run, dp_noise=1.0, tell=lambda what, done, every: told.append((done, every)), **QUICK
    )
    plain, noisy = found["inversion"]
    assert plain["psnr"]["recovered"] > 60 and plain["nearer"] == 1
    assert plain["labels"] == {"used": "known", "right": 1.0} and plain["dp"]["epsilon"] is None
    assert noisy["psnr"]["recovered"] < noisy["psnr"]["nearest"] and noisy["dp"]["epsilon"] > 1
    assert (plain["rows"], plain["local_steps"]) == (1, 1) and plain["of_rows"] > 1
    assert [m["model"] for m in found["membership"]] == ["personal", "upload", "upload"]
    assert found["finished"] and told[-1][0] == told[-1][1]
    assert json.loads((run / "audit.json").read_text()) == json.loads(json.dumps(found))
    page = (run / "audit.html").read_text()
    assert "data:image/png" in page and "http" not in page.replace("http-equiv", "")
    assert "DP-SGD, clip 1, noise 1" in page and "Who was in the training set" in page


def test_a_number_of_rows_that_is_none_is_refused(run: Path) -> None:
    for rows in ("x", -1):
        with pytest.raises(BadInput, match=f"rows is .?{rows}.?: give 0 or more"):
            fedtailor.audit(run, **QUICK | {"rows": rows})


def test_the_same_seed_finds_the_same(run: Path) -> None:
    once, again = (fedtailor.audit(run, **QUICK) for _ in range(2))
    for found in (once, again):
        found.pop("seconds")
    assert once == again


def test_labels_are_read_off_first(run: Path) -> None:
    found = fedtailor.audit(run, labels="guessed", **QUICK)
    assert found["inversion"][0]["labels"] == {"used": "guessed", "right": 1.0}


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", rounds=1)
    count = 0

    def stop(what: str, done: int, every: int) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt

    asked = QUICK | {"clients": ["client-0", "client-1", "client-2"]}
    with pytest.raises(KeyboardInterrupt):
        fedtailor.audit(folder, tell=stop, **asked)
    kept = json.loads((folder / "audit.json").read_text())
    assert [case["client"] for case in kept["inversion"]] == ["client-0"]
    assert not kept["finished"] and any("Stopped" in note for note in kept["notes"])
    assert (folder / "audit.html").exists()


def test_a_model_that_never_trained_gives_nobody_away(tmp_path: Path) -> None:
    found = fedtailor.audit(play(tmp_path / "run", lr=0.0, rounds=1, partition="iid"), **QUICK)
    for told in found["membership"]:
        low, high = told["loss"]["auc"]["interval"]
        assert low <= 0.5 <= high


def test_a_model_that_memorised_its_rows_gives_them_away(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    data = {
        name: (draw.normal(size=(60, 30)).astype(np.float32), np.arange(60) % 10)
        for name in ("north", "south", "west")
    }
    settings = {"model": "mlp", "clients": 0, "epochs": 100, "rounds": 1, "lr": 0.5, "batch": 10}
    folder = play(tmp_path / "run", "local", data=data, **settings)
    found = fedtailor.audit(folder, data=data, device="cpu")
    assert found["inversion"] == [] and "uploads nothing" in found["notes"][0]
    (told,) = found["membership"]
    assert told["loss"]["auc"]["value"] > 0.95
    assert told["calibrated"]["auc"]["interval"][0] > 0.8
    with pytest.raises(BadInput, match="give it again"):
        fedtailor.audit(folder, device="cpu")


def test_what_stays_with_the_client_is_known_or_guessed(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", "fedrep", model="mlp", rounds=1, options={"head_epochs": 1})
    found = fedtailor.audit(folder, round="last", **QUICK)
    assert [case["state"] for case in found["inversion"]] == ["known", "guessed"]
    assert not any(case["head_sent"] for case in found["inversion"])
    assert found["membership"][-1]["refused"].startswith("what is uploaded is no whole network")
    with pytest.raises(BadInput, match="no head that tells them"):
        fedtailor.audit(folder, **QUICK | {"labels": "guessed"})


def test_tables_are_told_column_by_column(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    ages = draw.normal(50, 10, size=160)
    rows = [f"{a:.2f},{'fm'[i % 2]},{'ns'[i // 80]},{3 * a:.2f}" for i, a in enumerate(ages)]
    data = tmp_path / "rows.csv"
    data.write_text("\n".join(["age,sex,site,weight", *rows]) + "\n")
    given = {"data": str(data), "client_column": "site", "label": "weight", "clients": 0}
    folder = play(tmp_path / "run", rounds=1, batch=20, **given)
    asked = QUICK | {"clients": ["n"]}
    (case,) = fedtailor.audit(folder, **asked)["inversion"]
    age, sex = case["columns"]
    assert (age["name"], sex["name"]) == ("age", "sex")
    assert age["recovered"] < 0.01 < age["constant"] and sex["recovered"] == 0
    assert case["labels"]["right"] is None and "age" in (folder / "audit.html").read_text()
    with pytest.raises(BadInput, match="labels are no classes"):
        fedtailor.audit(folder, **asked | {"labels": "guessed"})


def test_an_embedding_gives_words_away(tmp_path: Path) -> None:
    words = ("cold", "warm", "rain", "snow", "sun", "wind", "storm", "fog", "ice", "heat")
    draw = np.random.default_rng(0)
    rows = [f"{' '.join(draw.choice(words, 4))},{'ns'[i % 2]},{i % 3 % 2}" for i in range(120)]
    data = tmp_path / "rows.csv"
    data.write_text("\n".join(["text,site,label", *rows]) + "\n")
    given = {"data": str(data), "client_column": "site", "label": "label", "text_column": "text"}
    folder = play(tmp_path / "run", rounds=1, clients=0, model="fasttext", batch=20, **given)
    (case,) = fedtailor.audit(folder, clients=["n"], rows=1, device="cpu")["inversion"]
    assert case["words"]["right"] == 1.0 and case["words"]["found"] == 1.0


def test_what_a_method_refuses_is_told_before_anything_is_written(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", "fedavg-data", rounds=1)
    with pytest.raises(BadInput, match="DP-SGD with 'fedavg-data'"):
        fedtailor.audit(folder, dp_noise=1.0, **QUICK)
    assert not (folder / "audit.json").exists()


def test_held_out_clients_have_no_members(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", held_out=1, rounds=1)
    opened = AuditedRun(folder, Objects(), "cpu", "first")
    (outside,) = set(opened.simulation.client_data.names) - set(opened.names)
    with pytest.raises(BadInput, match="was held out"):
        opened.player(outside, Protection())
    opened.close()
    found = fedtailor.audit(folder, rows=1, attack="analytic", device="cpu")
    assert found["membership"][0]["loss"]["clients"] == 3


def test_models_that_diverged_are_left_out_and_named(tmp_path: Path) -> None:
    """Their rows have no order: before, their numbers were an AUC like any other."""
    draw = np.random.default_rng(0)
    data = {
        name: (draw.normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2)
        for name in ("north", "south")
    }
    folder = play(tmp_path / "run", "local", data=data, clients=0, rounds=1, batch=0)
    place = model_file(folder, "south")
    save_tensors(place, {k: torch.full_like(v, 3e38) for k, v in load_tensors(place).items()})
    found = fedtailor.audit(folder, data=data, device="cpu")
    (told,) = found["membership"]
    assert told["diverged"] == ["south"] and told["loss"]["clients"] == 1
    assert any("without south" in note for note in found["notes"])
