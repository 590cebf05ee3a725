"""A model that is a tree of a method's own goes wherever a network's parameters go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedtailor
from fedtailor.cli import main
from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.rng import Turn
from fedtailor.core.training import Recipe
from fedtailor.core.turn import finetuned
from fedtailor.methods.check import toy_task
from fedtailor.results.folder import model_file
from fedtailor.results.storage import load_tensors
from tests.federation.fake import FakeTransport, coordinator
from tests.federation.trial import Trial, distance
from tests.runs.runlab import result, table
from tests.runs.structured import side_by_side

METHOD = "tests.runs.structured:side_by_side"
SETTINGS: dict[str, Any] = {"rounds": 2, "batch": 8, "model": "mlp", "finetune": 1, "keep_path": 2}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("structured")
    data = table(place / "own.csv", {"one": 40, "two": 30, "three": 50})
    fedtailor.run(
        METHOD, data=str(data), client_column="client", label="label", out=place / "run", **SETTINGS
    )
    return place


def call(*words: object) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert not end.value.code


def test_it_is_fine_tuned_and_its_global_model_is_tested(played: Path) -> None:
    found = result(played / "run")
    assert found["points"]["final"]["finetune_epochs"] == 1
    assert found["points"]["final"]["loss"] != found["points"]["pre"]["loss"]
    assert 0.5 < found["global"]["mean"] <= 1


def test_it_predicts_from_the_command_line_and_as_a_module(
    played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (played / "new.csv").write_text("a,b\n0,0\n2,2\n")
    call("predict", played / "run", "--client", "one", played / "new.csv", "--json")
    said = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in said] == ["no", "yes"]
    found = fedtailor.resume(played / "run").model("one")(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    assert found.argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize("command", ["report", "landscape", "trajectory", "metrics"])
def test_every_command_takes_it(command: str, played: Path) -> None:
    more = {"landscape": ["--points", 3, "--clients", "one"], "trajectory": ["--points", 3]}
    call(command, played / "run", *more.get(command, []))
    if command == "landscape":
        kept = json.loads((played / "run" / "landscape.json").read_text())
        assert {"personal", "global"} <= kept["clients"]["one"].keys()


def test_real_sites_end_with_the_models_of_a_simulation(tmp_path: Path) -> None:
    trial = Trial(tmp_path, METHOD, finetune=1)
    trial.sites = [trial.write_site(i, allow=[METHOD]) for i in range(3)]
    coordinator(trial, FakeTransport(trial)).run()
    recipe = trial.world.config.recipe()
    simulated = dict(trial.simulate().models(recipe))
    for i in range(3):
        (card,) = (tmp_path / f"site-{i}").rglob("card.json")
        assert json.loads(card.read_text())["score"] is not None
        model = tree.unflatten(load_tensors(model_file(card.parent, f"site-{i}")))
        assert distance(model, simulated[i]) < 1e-5


@pytest.mark.parametrize("method", ["fedproto", "fml"])
def test_a_sites_model_alone_is_fine_tuned_by_labels(method: str, tmp_path: Path) -> None:
    """A method's own way is for what the server sends, and FedProto's does not end without it."""
    trial = Trial(tmp_path, method, finetune=1)
    for i in range(3):
        trial.write_site(i, min_rows=1)  # classes have a few rows each
    coordinator(trial, FakeTransport(trial)).run()
    recipe = trial.world.config.recipe()
    alone = Trial(tmp_path, "local", finetune=1).simulate().score(finetune=recipe).test.correct
    shares = alone / trial.world.client_data.test.n
    simulated = dict(trial.simulate().models(recipe))
    for i in range(3):
        (card,) = (tmp_path / f"site-{i}").rglob("card.json")
        assert json.loads(card.read_text())["local_score"] == pytest.approx(float(shares[i]))
        model = tree.unflatten(load_tensors(model_file(card.parent, f"site-{i}")))
        assert distance(model, simulated[i]) < 1e-5


def test_fine_tuning_trains_every_number_but_counts_and_statistics() -> None:
    task = toy_task("batch-norm")
    method = side_by_side(task)
    params, other = task.init(rng.key(0)), task.init(rng.key(7))
    model = method.personal({"shared": other}, method.start({}, params, rng.key(1)), None, None)
    draw = np.random.default_rng(0)
    x, y = torch.tensor(draw.normal(size=(20, 6))).float(), torch.arange(20) % 3
    turn = Turn(rng.key(2), torch.tensor(0), torch.tensor(1))
    after = finetuned(method, task, {}, {}, model, Data.of(x, y), turn, Recipe(epochs=3, lr=0.1))
    assert after.keys() == model.keys() and torch.equal(after["seen"], model["seen"])
    for part in ("own", "shared"):
        for name in params:
            moved = not torch.equal(after[part][name], model[part][name])
            assert moved == (name not in task.buffers)
    assert float(after["share"]) != 0.5
    losses = [
        float(task.losses(method.predict(m, x), y, torch.ones(20)).mean()) for m in (model, after)
    ]
    assert losses[1] < losses[0]
