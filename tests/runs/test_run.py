"""A run's folder: what it holds, that it agrees with itself, and that it can be had again."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import tempfile
import time
from contextlib import nullcontext
from errno import ENOSPC
from pathlib import Path
from threading import Event
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedtailor
from fedtailor import BadInput, api, runs
from fedtailor.core.errors import Interrupted
from fedtailor.core.inputs.files import sync
from fedtailor.engine.state_store import STATES
from fedtailor.figures.draw import draw_figure
from fedtailor.results.config import read_config
from fedtailor.results.folder import file_name, open_folder, others_files
from fedtailor.results.storage import read_checkpoint
from fedtailor.runs.stopwatch import Phase
from tests.runs.runlab import ALA, SMALL, history, models, result, table, timeless


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "fedala"
    fedtailor.run("fedala", out=folder, **ALA)
    return folder


# --- what the folder holds ---


def test_folder_contents(finished: Path) -> None:
    names = {p.name for p in finished.iterdir()}
    wanted = {"config.toml", "history.jsonl", "result.json", "clients.csv", "checkpoint", "models"}
    assert wanted <= names
    assert not list(finished.rglob("*.part")), "half-written files are left"
    assert set(models(finished)) == {f"client-{i}.safetensors" for i in range(4)}
    assert [line["round"] for line in history(finished)] == [1, 2, 3]


def test_result_is_complete(finished: Path) -> None:
    found = result(finished)
    wanted = {"method", "accuracy", "best_round", "rounds", "bytes", "seconds", "per_client"}
    assert wanted | {"engine", "device", "seed", "version"} <= found.keys()
    assert {"mean", "weighted", "std", "bottom5", "top5", "worst"} <= found["accuracy"].keys()
    assert found["bytes"].keys() == {"up", "down"}
    assert (found["method"], found["rounds"], found["seed"]) == ("fedala", 3, 0)
    assert found["engine"] in ("sequential", "vectorised")
    assert found["device"] == "cpu" or found["device"].startswith("cuda")


def test_the_result_says_where_the_time_went(finished: Path) -> None:
    found = result(finished)
    phases = found["seconds_by_phase"]
    assert list(phases) == list(get_args(Phase))
    assert phases["importing"] == 0, "only the command line knows when its process began"
    assert all(phases[name] > 0 for name in phases if name != "importing")
    assert phases["training"] <= found["train_seconds"] + 1e-2


def test_result_agrees_with_itself(finished: Path) -> None:
    found, lines = result(finished), history(finished)
    each = np.array(list(found["per_client"].values()))
    assert each.mean() == pytest.approx(found["accuracy"]["mean"], abs=1e-6)
    assert each.std() == pytest.approx(found["accuracy"]["std"], abs=2e-6)
    assert each.min() == found["accuracy"]["worst"] == found["accuracy"]["bottom5"]
    assert each.max() == found["accuracy"]["top5"]
    for way in ("up", "down"):
        assert found["bytes"][way] == sum(line["bytes"][way] for line in lines)
    assert lines[-1]["pre"] == found["accuracy"] == found["points"]["pre"]
    validation = [line["pre_val"]["mean"] for line in lines]
    assert found["best_round"] == 1 + int(np.argmax(validation))
    assert found["best"] == lines[found["best_round"] - 1]["pre"]


def test_bytes_are_those_of_one_model_each_way(finished: Path) -> None:
    """FedALA moves one model up and one down per client and round, in float32."""
    found = result(finished)
    assert found["bytes"]["up"] == found["bytes"]["down"] == 4 * found["parameters"] * 4 * 3


def test_clients_table(finished: Path) -> None:
    with (finished / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = result(finished)
    assert {row["client"]: float(row["final"]) for row in rows} == found["per_client"]
    assert all(row["rounds"] == "3" for row in rows)
    total = sum(int(row[part]) for row in rows for part in ("train", "val", "test"))
    assert total == 1797, "every row of digits belongs to exactly one part of one client"


def test_weighted_is_over_samples_and_differs_from_the_mean(finished: Path) -> None:
    with (finished / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    n = np.array([int(row["test"]) for row in rows])
    each = np.array([float(row["final"]) for row in rows])
    found = result(finished)["accuracy"]
    assert (each * n).sum() / n.sum() == pytest.approx(found["weighted"], abs=2e-6)
    assert found["weighted"] != found["mean"]


# --- the same again ---


def test_rerun_from_its_config_is_bitwise_the_same(finished: Path, tmp_path: Path) -> None:
    method, given, options = read_config(finished / "config.toml")
    fedtailor.run(method, out=tmp_path / "again", options=options, **given)
    assert models(tmp_path / "again") == models(finished)
    assert timeless(result(tmp_path / "again")) == timeless(result(finished))
    config = (tmp_path / "again" / "config.toml").read_text()
    assert config == (finished / "config.toml").read_text()


def test_another_seed_is_another_run_on_the_same_clients(finished: Path, tmp_path: Path) -> None:
    fedtailor.run("fedala", out=tmp_path / "other", **ALA, seed=1)
    other = models(tmp_path / "other")
    assert all(other[name] != own for name, own in models(finished).items())
    sizes = [
        [row[:4] for row in csv.reader((folder / "clients.csv").open())]
        for folder in (finished, tmp_path / "other")
    ]
    assert sizes[0] == sizes[1], "--seed must not change the partition"


def test_partition_seed_changes_the_clients_only(tmp_path: Path) -> None:
    tables = []
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        fedtailor.run("local", out=folder, **SMALL | {"rounds": 1}, partition_seed=seed)
        tables.append([row[:4] for row in csv.reader((folder / "clients.csv").open())])
    assert tables[0] != tables[1]


def test_nothing_is_kept_without_a_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    fedtailor.run("fedavg", **SMALL | {"rounds": 1})
    assert not list(tmp_path.iterdir())


# --- settings ---


@pytest.mark.parametrize("method", ["fedavg", "fedala", "fedfomo"])
def test_engines_agree(method: str) -> None:
    one, two = (
        fedtailor.run(
            method, engine=engine, participation=0.5, **ALA if method == "fedala" else SMALL
        )
        for engine in ("sequential", "vectorised")
    )
    assert (one["engine"], two["engine"]) == ("sequential", "vectorised")
    # float32: the sums are taken in another order, so an example on the border may tip over
    for client, accuracy in one["per_client"].items():
        assert two["per_client"][client] == pytest.approx(accuracy, abs=0.03)
    assert two["accuracy"]["loss"] == pytest.approx(one["accuracy"]["loss"], rel=1e-3)
    assert one["bytes"] == two["bytes"]


@pytest.mark.parametrize("how", [{"chunk": 2}, {"states": "host"}, {"states": "disk"}], ids=str)
def test_chunks_and_places_change_nothing(
    how: dict[str, Any], finished: Path, tmp_path: Path
) -> None:
    plain = result(finished)
    other = fedtailor.run("fedala", engine="vectorised", out=tmp_path / "run", **ALA, **how)
    assert other["accuracy"]["loss"] == pytest.approx(plain["accuracy"]["loss"], rel=1e-4)
    assert other["per_client"] == pytest.approx(plain["per_client"], abs=0.02)
    key, value = next(iter(how.items()))
    assert other[key] == value


def _state_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix == ".bin" or "states" in path.name]


@pytest.mark.parametrize("ends", ["well", "with an error"])
@pytest.mark.parametrize("kept", [True, False], ids=["out", "no out"])
def test_states_on_disk_live_in_the_runs_folder_and_go_with_the_run(
    kept: bool, ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client states may be many gigabytes: they belong where the user has room for the run, and
    must not outlive it."""
    temporary, out = tmp_path / "tmp", tmp_path / "run"
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    temporary.mkdir()
    seen: list[int] = []

    def watch(line: Any, rounds: int) -> None:
        seen.append(len(_state_files(out if kept else temporary)))
        assert not _state_files(temporary if kept else out)
        if ends != "well":
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="full") if ends != "well" else nullcontext():
        fedtailor.run("fedala", out=out if kept else None, states="disk", watch=watch, **ALA)
    assert min(seen) > 0
    assert not _state_files(tmp_path)


def test_a_refused_folder_leaves_no_states_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match="not empty"):
        fedtailor.run("fedala", out=tmp_path / "full", states="disk", **ALA)
    assert sorted(tmp_path.rglob("*")) == before


def test_eval_every(tmp_path: Path) -> None:
    fedtailor.run("fedavg", out=tmp_path / "run", **SMALL | {"rounds": 5}, eval_every=2)
    scored = [line["round"] for line in history(tmp_path / "run") if "pre" in line]
    assert scored == [2, 4, 5], "every second round, and the last one in any case"
    assert result(tmp_path / "run")["best_round"] in scored


def test_evaluating_seldom_does_not_change_what_is_learnt(tmp_path: Path) -> None:
    for every in (1, 3):
        fedtailor.run("fedala", out=tmp_path / str(every), **ALA, eval_every=every)
    assert models(tmp_path / "1") == models(tmp_path / "3")


def test_finetune_helps_fedavg_and_leaves_pre_alone() -> None:
    plain = fedtailor.run("fedavg", **SMALL)
    tuned = fedtailor.run("fedavg", **SMALL, finetune=3)
    assert tuned["points"]["pre"] == plain["points"]["pre"]
    assert tuned["points"]["final"]["finetune_epochs"] == 3
    assert tuned["accuracy"]["mean"] > plain["accuracy"]["mean"]


def test_held_out_clients_never_train(tmp_path: Path) -> None:
    found = fedtailor.run("fedavg", out=tmp_path / "run", **SMALL, held_out=2)
    with (tmp_path / "run" / "clients.csv").open() as file:
        held = {int(row["held_out"]): [] for row in csv.DictReader(file)}
        file.seek(0)
        for i, row in enumerate(csv.DictReader(file)):
            held[int(row["held_out"])].append((i, row))
    assert len(held[1]) == len(held[0]) == 2
    ids = {i for i, _ in held[1]}
    assert all(not ids & set(line["cohort"]) for line in history(tmp_path / "run"))
    assert all(row["rounds"] == "0" and row["post"] == "" for _, row in held[1])
    means = [np.mean([float(row["final"]) for _, row in held[k]]) for k in (0, 1)]
    assert found["participation_gap"] == pytest.approx(means[0] - means[1], abs=1e-6)
    told = f"Held out, so never trained: {', '.join(found['held_out'])}; means count them"
    assert told in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_clients_that_were_in_no_round_are_named(tmp_path: Path) -> None:
    found = fedtailor.run("fedavg", out=tmp_path / "run", **SMALL | {"participation": 0.1})
    with (tmp_path / "run" / "clients.csv").open() as file:
        never = [row["client"] for row in csv.DictReader(file) if row["rounds"] == "0"]
    assert found["never_trained"] == never != []
    told = f"in no round that counts, so never trained: {', '.join(never)}; means count them"
    assert told in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "never_trained" not in fedtailor.run("fedavg", **SMALL | {"participation": 1.0})
    # all rows lie in one place, whoever is drawn
    assert "never_trained" not in fedtailor.run("centralised", **SMALL | {"participation": 0.1})


def test_no_participation_gap_without_held_out_clients(finished: Path) -> None:
    assert result(finished)["participation_gap"] is None


def test_permuted_targets_hurt_local_training() -> None:
    """With another client's test rows, a model tailored to one's own rows must do worse."""
    own = fedtailor.run("local", **SMALL)
    permuted = fedtailor.run("local", **SMALL, permute_targets=True)
    assert permuted["accuracy"]["mean"] < own["accuracy"]["mean"] - 0.1


def test_partial_participation(tmp_path: Path) -> None:
    found = fedtailor.run(
        "fedavg",
        out=tmp_path / "run",
        **SMALL | {"clients": 6, "rounds": 4, "participation": 0.5},
    )
    cohorts = [line["cohort"] for line in history(tmp_path / "run")]
    assert all(len(set(c)) == 3 and c == sorted(c) for c in cohorts)
    assert len({tuple(c) for c in cohorts}) > 1
    assert found["bytes"]["down"] == 4 * 3 * 4 * found["parameters"]
    assert len(found["per_client"]) == 6, "everyone is scored, whoever took part"


def test_watch_is_told_every_round() -> None:
    told: list[tuple[int, int]] = []
    fedtailor.run("local", **SMALL, watch=lambda line, rounds: told.append((line["round"], rounds)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_the_history_is_on_the_disk_before_the_checkpoint_that_relies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def noting(path: Path) -> None:
        synced.append(path.name.partition(".")[0])
        sync(path)

    for module in ("results.storage", "runs.run"):
        monkeypatch.setattr(f"fedtailor.{module}.sync", noting)
    fedtailor.run("local", out=tmp_path / "run", **SMALL | {"checkpoint_every": 2})
    kept = [name for name in synced if name.startswith(("history", "state-"))]
    assert kept == ["state-000000", "history", "state-000002", "history", "state-000003"]


def test_rounds_go_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    saved, played = runs.run.save_checkpoint, Event()

    def slowly(folder: Path, snapshot: Any, meta: dict[str, Any]) -> None:
        if snapshot.round == 0:
            assert played.wait(60)  # not before the minute is over, if rounds waited for this
        done.append(snapshot.round)
        saved(folder, snapshot, meta)

    monkeypatch.setattr(runs.run, "save_checkpoint", slowly)
    monkeypatch.setattr(runs.run, "CHECKPOINT_SECONDS", 0.0)
    second = lambda line, rounds: line["round"] == 2 and played.set()
    fedtailor.run("local", out=tmp_path / "run", **SMALL, watch=second)
    assert done[0] == 0 and done[-1] == SMALL["rounds"]


def test_a_checkpoint_that_cannot_be_written_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = runs.run.save_checkpoint

    def full(folder: Path, snapshot: Any, meta: dict[str, Any]) -> None:
        if snapshot.round == 2:
            raise OSError(ENOSPC, "No space left on device", str(folder))
        saved(folder, snapshot, meta)

    monkeypatch.setattr(runs.run, "save_checkpoint", full)
    with pytest.raises(OSError, match="No space left"):
        fedtailor.run("local", out=tmp_path / "run", **SMALL | {"checkpoint_every": 1})
    monkeypatch.undo()
    assert not (tmp_path / "run" / "result.json").exists()
    fedtailor.resume(tmp_path / "run")
    assert [line["round"] for line in history(tmp_path / "run")] == [1, 2, 3]


def test_whatever_ends_a_run_its_last_checkpoint_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = runs.run.save_checkpoint

    def slowly(folder: Path, snapshot: Any, meta: dict[str, Any]) -> None:
        time.sleep(0.3)
        saved(folder, snapshot, meta)

    def fail(line: dict[str, Any], rounds: int) -> None:
        if line["round"] == 2:
            raise RuntimeError("the watcher failed")

    monkeypatch.setattr(runs.run, "save_checkpoint", slowly)
    with pytest.raises(RuntimeError, match="the watcher failed"):
        fedtailor.run("local", out=tmp_path / "run", **SMALL | {"checkpoint_every": 1}, watch=fail)
    assert read_checkpoint(tmp_path / "run" / "checkpoint")["round"] == 1


def test_ctrl_c_in_the_last_round_is_told_after_the_results_are_written(
    finished: Path, tmp_path: Path
) -> None:
    def press(line: dict[str, Any], rounds: int) -> None:
        if line["round"] == rounds:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="after round 3"):
        fedtailor.run("fedala", out=tmp_path / "run", watch=press, **ALA)
    assert timeless(result(tmp_path / "run")) == timeless(result(finished))
    assert models(tmp_path / "run") == models(finished)


# --- folders ---


def test_an_earlier_run_is_replaced_only_when_told(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fedtailor.run("local", out=folder, **SMALL | {"rounds": 2})
    before = result(folder)
    with pytest.raises(BadInput, match="earlier run"):
        fedtailor.run("fedavg", out=folder, **SMALL)
    assert result(folder) == before
    fedtailor.run("fedavg", out=folder, overwrite=True, **SMALL)
    assert result(folder)["method"] == "fedavg"
    assert len(history(folder)) == 3, "the old history must be gone"


def test_a_folder_that_is_no_run_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(BadInput, match="no earlier run"):
            open_folder(tmp_path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_no_folder_is_called_as_the_home_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="'~/run': ~ would be a folder of that name"):
        open_folder(Path("~/run"))
    assert not Path("~").exists()


@pytest.mark.parametrize(
    "place", ["thesis.tex", "models/thesis.tex", "mine/data.csv", "report.htm"]
)
def test_a_run_is_not_replaced_where_others_keep_files(
    place: str, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_text("years of work")
    before = result(folder)
    with pytest.raises(BadInput, match=f"no run wrote: '{place.partition('/')[0]}"):
        open_folder(folder, overwrite=True)
    assert (folder / place).read_text() == "years of work"
    assert result(folder) == before


def test_all_that_runs_comparisons_and_their_tools_write_is_ours(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "compared"
    fedtailor.compare(
        "fedavg", out=folder, yardsticks=False, **SMALL | {"rounds": 1, "keep_path": 2}
    )
    draw_figure("score", [folder], out=None)
    run = next((folder / "runs").iterdir())
    for name in ("playing.lock", "failed.json", "landscape.json", "general.safetensors.ab.part"):
        (run / name).touch()
    for name in ("tensorboard", "mlruns", "wandb", STATES):
        (run / name / "0").mkdir(parents=True)
    assert others_files(folder) == [] == others_files(finished)
    (folder / "runs" / "mine").touch()
    assert others_files(folder) == [folder / "runs" / "mine"]


@pytest.mark.parametrize(
    "left", ["playing.lock", ".probe", "config.toml.0a1b2c3d.part", "checkpoint/latest.json.part"]
)
def test_what_a_killed_process_left_half_written_is_no_strangers(
    left: str, finished: Path, tmp_path: Path
) -> None:
    """A run inside a search or a comparison begins anew there: nobody else would clear the way."""
    for folder in (tmp_path / "run", tmp_path / "begun"):
        if folder.name == "run":
            shutil.copytree(finished, folder)
        elif "/" in left:  # is written after the mark
            continue
        (folder / left).parent.mkdir(parents=True, exist_ok=True)
        (folder / left).write_text("half")
        assert not any(open_folder(folder, overwrite=True).iterdir())


@pytest.mark.parametrize(
    "name", ["state-000003.safetensors.0a1b2c3d.part", "latest.json.00ff.part"]
)
def test_half_written_checkpoints_are_ours(name: str, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "checkpoint" / name).touch()
    assert others_files(tmp_path / "run") == []


def test_a_strangers_half_file_stays(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "thesis.tex.part").write_text("years of work")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "thesis.tex.part").write_text("years of work")
    for folder in ("run", "new"):
        with pytest.raises(BadInput):
            open_folder(tmp_path / folder, overwrite=True)
        assert (tmp_path / folder / "thesis.tex.part").exists()


def test_a_strangers_config_does_not_make_a_folder_a_run(tmp_path: Path) -> None:
    """Many projects have a config.toml: --overwrite must not delete such a project."""
    (tmp_path / "config.toml").write_text('title = "my site"\n')
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput):
        open_folder(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


def test_no_run_is_removed_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "config.toml").write_text("# FedTailor\n")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(BadInput, match=f"link' is a link, .*say --out {tmp_path / 'real'}$"):
        open_folder(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link" / "config.toml").exists()
    open_folder(tmp_path / "real", overwrite=True)  # as it was told
    assert open_folder(tmp_path / "link") == tmp_path / "link"
    assert (tmp_path / "link").is_symlink()


def test_a_link_to_nothing_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(BadInput, match="is a link to 'gone', which is not there: make"):
        open_folder(tmp_path / "link")


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    assert open_folder(tmp_path / "new") == tmp_path / "new"


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be written"):
        open_folder(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    "name", ["../x", "..", ".", "", "/etc/passwd", "a\\b", "a\0b", "C:x", "-rf", "é", "~"]
)
def test_file_names_lead_nowhere_else(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{file_name(name)}.safetensors"
    assert path.resolve().parent == tmp_path.resolve()
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", file_name(name))


def test_long_client_names_can_be_saved(tmp_path: Path) -> None:
    data = table(tmp_path / "own.csv", {"x" * 300: 20, "y": 20})
    fedtailor.run("local", data=str(data), rounds=1, out=tmp_path / "run")
    assert len(models(tmp_path / "run")) == 2


def test_similar_client_names_keep_their_own_models(tmp_path: Path) -> None:
    """`a b`, `a/b` and `a_b` are three clients, so there are three models."""
    data = table(tmp_path / "own.csv", {"a b": 20, "a/b": 20, "a_b": 20})
    fedtailor.run("local", data=str(data), rounds=2, out=tmp_path / "run")
    assert len(models(tmp_path / "run")) == 3


# --- divergence ---


@pytest.fixture
def one_diverges(tmp_path: Path) -> dict[str, Any]:
    data = table(tmp_path / "own.csv", {"calm": 20, "quiet": 20, "wild": 20}, huge="wild")
    return {"data": str(data), "normalise": "none", "rounds": 3, "lr": 0.05}


def test_divergence_stops_the_run_and_keeps_the_checkpoint(
    one_diverges: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="wild") as caught:
        fedtailor.run("fedavg", out=tmp_path / "run", **one_diverges)
    assert "calm" not in str(caught.value)
    assert (tmp_path / "run" / "checkpoint" / "latest.json").exists()


def test_divergence_names_the_round_as_the_history_counts(one_diverges: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match=r"\bround 1\b"):
        fedtailor.run("fedavg", **one_diverges)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_skipped_clients_are_left_out_and_recorded(
    engine: str, one_diverges: dict[str, Any], tmp_path: Path
) -> None:
    settings = one_diverges | {"on_nan": "skip", "engine": engine, "chunk": 1}
    found = fedtailor.run("fedavg", out=tmp_path / "run", **settings)
    assert found["skipped"] == {"1": ["wild"], "2": ["wild"], "3": ["wild"]}
    assert all(line["skipped"] == ["wild"] for line in history(tmp_path / "run"))
    assert found["never_trained"] == ["wild"]
    with (tmp_path / "run" / "clients.csv").open() as file:
        rounds = {row["client"]: row["rounds"] for row in csv.DictReader(file)}
    assert rounds["wild"] == "0" and rounds["calm"] == "3"  # those that count
    for path in (tmp_path / "run" / "models").iterdir():
        assert all(p.isfinite().all() for p in load_file(path).values())
    assert min(found["per_client"][c] for c in ("calm", "quiet")) >= 0.6, "the others go on"


def test_skipping_equals_never_having_drawn_the_client(
    one_diverges: dict[str, Any], tmp_path: Path
) -> None:
    fedtailor.run("fedavg", out=tmp_path / "skip", on_nan="skip", **one_diverges)
    calm = table(tmp_path / "calm.csv", {"calm": 20, "quiet": 20})
    fedtailor.run("fedavg", out=tmp_path / "calm", **one_diverges | {"data": str(calm)})
    skip, own = (load_file(tmp_path / f / "models/calm.safetensors") for f in ("skip", "calm"))
    for name in own:
        assert torch.allclose(skip[name], own[name], atol=1e-6)


def test_results_are_strict_json_even_when_a_loss_is_not_finite(
    one_diverges: dict[str, Any], tmp_path: Path
) -> None:
    """NaN is no JSON: other programs could not read the result."""
    fedtailor.run("fedavg", out=tmp_path / "run", on_nan="skip", **one_diverges)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads((tmp_path / "run" / "result.json").read_text(), parse_constant=refuse)
    for row in (tmp_path / "run" / "history.jsonl").read_text().splitlines():
        json.loads(row, parse_constant=refuse)


# --- uploads ---


def test_how_uploads_look_is_in_history_and_result(finished: Path) -> None:
    for line in history(finished):
        assert len(line["uploads"]["norm"]) == len(line["uploads"]["distance"]) == 4
        assert min(line["uploads"]["norm"]) > 0
    assert result(finished)["odd_uploads"].keys() <= {f"client-{i}" for i in range(4)}


def test_a_client_that_stands_out_is_on_the_page(tmp_path: Path) -> None:
    """One whose numbers are in another unit; who uploads nothing is not looked at."""
    draw = torch.Generator().manual_seed(0)
    rows = {k: (torch.randn(30, 3, generator=draw), torch.arange(30) % 2) for k in "abcde"}
    x, y = rows["e"]
    rows["e"] = (1000 * x, y)
    small = {"rounds": 4, "batch": 10, "lr": 0.5, "model": "linear", "normalise": "none"}
    found = fedtailor.run("fedavg", data=rows, out=tmp_path / "run", **small)
    assert found["odd_uploads"]["e"] == 4
    assert all("e" in line["odd_uploads"] for line in history(tmp_path / "run"))
    page = api.report(tmp_path / "run", out=tmp_path / "page.html")
    assert "e (4 rounds)" in page.read_text(encoding="utf-8")
    alone = fedtailor.run("local", data=rows, **small)
    assert alone["odd_uploads"] == {}
