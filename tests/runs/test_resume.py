"""Runs that were interrupted end as if they had not been."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedtailor
from fedtailor import BadInput
from fedtailor.results.folder import FAILED
from fedtailor.results.lock import LOCK
from fedtailor.results.status import failure
from tests.runs.runlab import ALA, SMALL, TIMES, history, models, result, table, timeless


class PowerCut(Exception):
    pass


def cut_after(number: int) -> Any:
    def watch(line: dict[str, Any], rounds: int) -> None:
        if line["round"] == number:
            raise PowerCut

    return watch


def broken_off(folder: Path, method: str = "fedala", **settings: Any) -> Path:
    """A run that dies after its third round's line was written, before its checkpoint was."""
    with pytest.raises(PowerCut):
        fedtailor.run(
            method,
            out=folder,
            watch=cut_after(3),
            **(ALA if method == "fedala" else SMALL)
            | {"rounds": 4, "checkpoint_every": 1}
            | settings,
        )
    assert not (folder / "result.json").exists()
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    fedtailor.run("fedala", out=folder, **ALA | {"rounds": 4, "checkpoint_every": 1})
    return folder


@pytest.mark.parametrize("ending", ["", '{"round": 4, "coh', "\x00\x00\x00"])
def test_resume_ends_as_if_never_interrupted(ending: str, whole: Path, tmp_path: Path) -> None:
    folder = broken_off(tmp_path / "run")
    with (folder / "history.jsonl").open("a") as file:
        file.write(ending)
    fedtailor.resume(folder)
    assert models(folder) == models(whole)
    assert timeless(result(folder)) == timeless(result(whole))
    assert [line["round"] for line in history(folder)] == [1, 2, 3, 4]
    strip = [{k: v for k, v in line.items() if k not in TIMES} for line in history(folder)]
    assert strip == [{k: v for k, v in line.items() if k not in TIMES} for line in history(whole)]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedfomo", {"participation": 0.5}),
        ("pfedhn", {"momentum": 0.9, "options": {"local_head": True}}),
        ("apple", {"options": {"M": 1}, "participation": 0.8}),
        ("cfl", {"momentum": 0.9, "participation": 0.8}),
        ("fedavg+adam", {"options": {"variant": "google"}}),
        ("centralised", {"participation": 0.5, "held_out": 1, "optimizer": "adam"}),
        ("ditto", {"states": "disk", "chunk": 2}),
        ("fedrep", {"held_out": 1, "finetune": 1}),
        ("local", {"checkpoint_every": 2}),
        ("fedavg", {"checkpoint_every": 0}),
    ],
)
def test_resume_restores_every_kind_of_state(
    method: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = broken_off(tmp_path / "run", method, **settings)
    fedtailor.resume(folder)
    fedtailor.run(
        method, out=tmp_path / "whole", **SMALL | {"rounds": 4, "checkpoint_every": 1} | settings
    )
    assert models(folder) == models(tmp_path / "whole")
    assert timeless(result(folder)) == timeless(result(tmp_path / "whole"))


class Attentive(nn.Module):
    """Eight tokens of eight pixels, with dropout in attention and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.layer(x[:, 0]).mean(1))
        return out


def test_a_transformer_with_dropout_resumes_to_the_last_bit(tmp_path: Path) -> None:
    folder = broken_off(tmp_path / "cut", "fedavg", model=Attentive, device="cpu")
    torch.manual_seed(1)  # another process has drawn other numbers
    fedtailor.resume(folder, model=Attentive)
    given = SMALL | {"rounds": 4, "checkpoint_every": 1, "model": Attentive, "device": "cpu"}
    fedtailor.run("fedavg", out=tmp_path / "whole", **given)
    assert models(folder) == models(tmp_path / "whole")


def test_resuming_a_finished_run_is_harmless(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fedtailor.run("fedala", out=folder, **ALA)
    before = models(folder), timeless(result(folder)), history(folder)
    fedtailor.resume(folder)
    assert (models(folder), timeless(result(folder)), history(folder)) == before


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    folder = broken_off(tmp_path / "run", "local")
    before = (folder / "history.jsonl").read_bytes()
    with (folder / LOCK).open("w") as file:  # as another process would
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BadInput, match="is being played by another process"):
            fedtailor.resume(folder)
    assert (folder / "history.jsonl").read_bytes() == before
    fedtailor.resume(folder)
    assert not (folder / LOCK).exists()


def test_what_ended_a_run_is_known_until_it_goes_on(tmp_path: Path) -> None:
    folder = broken_off(tmp_path / "run", "local")
    assert failure(folder)["kind"] == "PowerCut"
    fedtailor.resume(folder)
    assert not (folder / FAILED).exists()


def test_resume_survives_a_leftover_of_a_half_written_checkpoint(
    whole: Path, tmp_path: Path
) -> None:
    folder = broken_off(tmp_path / "run")
    (folder / "checkpoint" / "state-000009.safetensors.part").write_bytes(b"half")
    (folder / "checkpoint" / "latest.json.part").write_text('{"round"')
    (folder / "checkpoint" / "latest.json.0123abcd.part").write_text('{"round"')
    (folder / "models").mkdir()
    (folder / "models" / "client-0.safetensors.0123abcd.part").write_bytes(b"half")
    fedtailor.resume(folder)
    assert models(folder) == models(whole)
    assert not list(folder.rglob("*.part")), "leftovers stay for ever"


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda f: edited(f / "checkpoint/latest.json", f'"{fedtailor.__version__}"', '"0.0.9"'),
            "0.0.9",
        ),
        (lambda f: edited(f / "config.toml", "lr = 0.1", "lr = 0.2"), "changed"),
        (lambda f: edited(f / "config.toml", "lr =", "lrr ="), "did you mean 'lr'"),
        (lambda f: edited(f / "config.toml", "method =", "# method ="), "names no method"),
        (lambda f: (f / "config.toml").unlink(), "no run"),
        (lambda f: (f / "checkpoint/latest.json").unlink(), "no checkpoint"),
        (lambda f: (f / "checkpoint/latest.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "checkpoint/latest.json").write_text("[]"), "no checkpoint of FedTailor"),
        (lambda f: next((f / "checkpoint").glob("state-*")).unlink(), "missing or changed"),
    ],
)
def test_resume_refuses_what_is_not_the_same_run(spoil: Any, said: str, tmp_path: Path) -> None:
    folder = broken_off(tmp_path / "run", "local")
    before = (folder / "history.jsonl").read_text()
    spoil(folder)
    with pytest.raises(BadInput, match=re.escape(said)):
        fedtailor.resume(folder)
    assert (folder / "history.jsonl").read_text() == before, "a refusal must change nothing"


@pytest.mark.parametrize(
    ("spoil", "lacking"),
    [
        (lambda rows: rows[:1], 2),
        (lambda rows: [], 1),
        (lambda rows: rows[1:], 1),
        (lambda rows: [rows[0], b"\xff\xfe\0\0\n", *rows[2:]], 2),
        (lambda rows: [rows[0], b"3\n"], 2),
    ],
    ids=["cut off", "empty", "without the first", "garbage", "something else"],
)
def test_resume_refuses_a_history_with_gaps(spoil: Any, lacking: int, tmp_path: Path) -> None:
    """After a power cut the checkpoint may be on the disk and the lines before it not."""
    folder = broken_off(tmp_path / "run", "local")
    path = folder / "history.jsonl"
    path.write_bytes(b"".join(spoil(path.read_bytes().splitlines(keepends=True))))
    before = path.read_bytes()
    said = f"history.jsonl' lacks round {lacking}, but the checkpoint is at round 2: put "
    with pytest.raises(BadInput, match=said) as error:
        fedtailor.resume(folder)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == before, "a refusal must change nothing"


def test_resume_refuses_a_missing_history(tmp_path: Path) -> None:
    folder = broken_off(tmp_path / "run", "local")
    (folder / "history.jsonl").unlink()
    with pytest.raises(BadInput, match="lacks round 1"):
        fedtailor.resume(folder)
    assert not (folder / "history.jsonl").exists()


@pytest.mark.parametrize("position", [0, 40, -1])
def test_resume_refuses_a_corrupted_state(position: int, tmp_path: Path) -> None:
    folder = broken_off(tmp_path / "run", "local")
    state = next((folder / "checkpoint").glob("state-*"))
    content = bytearray(state.read_bytes())
    content[position] ^= 1
    state.write_bytes(content)
    with pytest.raises(BadInput, match="changed"):
        fedtailor.resume(folder)


def test_resume_follows_no_path_out_of_the_checkpoint(tmp_path: Path) -> None:
    """A checkpoint from a stranger names a file, never a way elsewhere."""
    folder = broken_off(tmp_path / "run", "local")
    state = next((folder / "checkpoint").glob("state-*"))
    state.rename(tmp_path / "outside.safetensors")
    edited(folder / "checkpoint/latest.json", state.name, "../../outside.safetensors")
    with pytest.raises(BadInput, match="missing"):
        fedtailor.resume(folder)


def test_resume_refuses_changed_data(tmp_path: Path) -> None:
    data = table(tmp_path / "own.csv", {"north": 20, "south": 20})
    folder = broken_off(tmp_path / "run", "fedavg", data=str(data), clients=0, batch=5)
    edited(data, "\nnorth,", "\nnorth,1")  # one digit more in one cell
    with pytest.raises(BadInput, match="data"):
        fedtailor.resume(folder)


def test_resume_refuses_renamed_clients(tmp_path: Path) -> None:
    data = table(tmp_path / "own.csv", {"north": 20, "south": 20})
    folder = broken_off(tmp_path / "run", "fedavg", data=str(data), clients=0, batch=5)
    data.write_text(data.read_text().replace("north", "north2"))
    with pytest.raises(BadInput, match="data"):
        fedtailor.resume(folder)
