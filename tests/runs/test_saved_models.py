"""Models that are kept: the global one, and those on the way, at no cost to the run itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from errno import EPERM
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import fedtailor
from fedtailor.api import resume
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg
from fedtailor.runs.saved_models import (
    path_clients,
    path_rounds,
    read_general,
    read_points,
    writing_models,
)
from tests.analysis.surfacelab import SMALL, play

TIMES = ("seconds", "train_seconds")


def history(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


def write_models(models: Iterable[tuple[Path, dict[str, Tensor]]]) -> None:
    with writing_models() as write:
        for path, model in models:
            write(path, model)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(tmp_path_factory.mktemp("kept") / "fedala", "fedala", keep_path=2)


def test_keeping_a_path_changes_nothing_else(followed: Path, tmp_path: Path) -> None:
    plain = play(tmp_path / "plain", "fedala")
    assert not (plain / "path").exists()
    assert history(plain) == history(followed)
    for file in (plain / "models").iterdir():
        assert file.read_bytes() == (followed / "models" / file.name).read_bytes()


def test_points_are_the_models_before_and_after_training(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", "fedavg", clients=1, keep_path=1)
    assert path_rounds(folder) == [1, 2, 3]
    rounds = [read_points(folder, r, "client-0") for r in (1, 2, 3)]
    for one, following in pairwise(rounds):
        # a single client's model is the mean of all: where it ended is where it begins again
        assert all(torch.allclose(one["after"][k], v) for k, v in following["before"].items())
        assert any(not torch.allclose(one["before"][k], v) for k, v in one["after"].items())
    last = load_file(folder / "models" / "client-0.safetensors")
    assert all(torch.allclose(rounds[-1]["after"][k], v) for k, v in last.items())


def test_only_the_first_clients_and_evaluated_rounds_are_kept(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", "fedavg", keep_path=2, eval_every=2, participation=0.25)
    assert path_rounds(folder) == [2, 3]
    assert path_clients(folder, 3, [f"client-{i}" for i in range(4)]) == ["client-0", "client-1"]
    cohorts = {line["round"]: line["cohort"] for line in history(folder)}
    for number in (2, 3):
        for client in (0, 1):
            found = read_points(folder, number, f"client-{client}")
            assert ("after" in found) == (client in cohorts[number])
            assert "before" in found


def test_a_resumed_run_has_the_same_path(followed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"

    def stop(line: dict[str, Any], rounds: int) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(folder, "fedala", watch=stop, checkpoint_every=1, keep_path=2)
    shutil.rmtree(folder / "path")  # as if it had been killed before it wrote any of round 2
    (folder / "path").mkdir()
    shutil.copy(followed / "path" / "000001.safetensors", folder / "path")
    resume(folder)
    assert path_rounds(folder) == [1, 2, 3]
    for file in (folder / "path").iterdir():
        mine, whole = load_file(file), load_file(followed / "path" / file.name)
        assert mine.keys() == whole.keys()
        assert all(torch.equal(mine[k], whole[k]) for k in mine)


def test_equal_models_are_written_once_and_cannot_be_mixed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = {"w": torch.ones(3)}, {"w": torch.zeros(3)}
    several = {f"{i}": model for i, model in enumerate([one, one, two, two, one])}
    write_models((tmp_path / name, model) for name, model in several.items())
    for name, model in several.items():
        assert torch.equal(load_file(tmp_path / name)["w"], model["w"])
    numbers = [(tmp_path / name).stat().st_ino for name in several]
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3] != numbers[4]
    modes = [(tmp_path / name).stat().st_mode for name in ("1", "4")]
    assert not modes[0] & 0o222, "writing into one would change others"
    assert modes[0] & 0o444 == modes[1] & 0o444, "read by whoever could before"
    write_models([(tmp_path / "1", two)])
    assert torch.equal(load_file(tmp_path / "0")["w"], one["w"])

    def refuse(*_: object) -> None:
        raise OSError(EPERM, "no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    write_models((tmp_path / name, two) for name in several)
    assert all(torch.equal(load_file(tmp_path / name)["w"], two["w"]) for name in several)
    assert len(list(tmp_path.iterdir())) == len(several)


def test_a_model_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    model = {"w": torch.ones(3)}
    with pytest.raises(OSError, match="gone"):
        write_models((tmp_path / "gone" / f"{i}", model) for i in range(40))


def test_more_clients_than_train(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="keep-path is 4, but only 3 clients train"):
        fedtailor.run("fedavg", out=tmp_path / "x", **SMALL | {"keep_path": 4, "held_out": 1})
    assert not (tmp_path / "x").exists()


def test_the_global_model_is_one_file(followed: Path) -> None:
    kept = read_general(followed, "client-0")
    assert kept is not None
    assert kept.keys() == load_file(followed / "models" / "client-0.safetensors").keys()
    assert not (followed / "general").exists()


def test_a_method_without_a_global_model_keeps_none(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", "fedavg", rounds=1)
    assert read_general(folder, "client-0") is None


def test_global_models_with_parts_of_their_own_are_kept_for_each_client(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", "fedalt+mix", rounds=1)
    assert not (folder / "general.safetensors").exists()
    first, second = (read_general(folder, f"client-{i}") for i in range(2))
    assert first is not None and second is not None
    same = [k for k in first if torch.equal(first[k], second[k])]
    assert 0 < len(same) < len(first)


@pytest.mark.parametrize(("finetune", "times"), [(0, 2), (2, 3)])
def test_final_models_are_made_once_to_be_judged_and_kept(
    finetune: int, times: int, tmp_path: Path
) -> None:
    """At each client: for the round's line, for its training rows, and where it is fine-tuned."""
    asked = []

    def counting(task: Task, *, recipe: Recipe = Recipe()) -> Method:
        """FedAvg. Reference: none."""
        host = fedavg(task, recipe=recipe)

        def personal(msg: Any, state: Any, data: Any, turn: Any) -> Any:
            asked.append(1)
            return host.personal(msg, state, data, turn)

        return host._replace(personal=personal)

    settings = SMALL | {"rounds": 1, "engine": "sequential", "finetune": finetune}
    fedtailor.run(counting, out=tmp_path / "run", **settings)
    assert len(asked) == times * settings["clients"]
    assert len(list((tmp_path / "run" / "models").iterdir())) == settings["clients"]
