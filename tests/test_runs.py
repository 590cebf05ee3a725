"""A run's folder: what it holds, that it agrees with itself, and that it can be had again."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedtailor
from fedtailor import BadInput, tree
from fedtailor.assemble import assemble, make_method, make_task
from fedtailor.config import make_config, read_config
from fedtailor.methods import METHODS
from fedtailor.metrics import summarise
from fedtailor.runs import file_name, open_folder

SMALL: dict[str, Any] = {"model": "mlp", "clients": 4, "rounds": 3, "batch": 50, "lr": 0.1}
TIMES = ("seconds", "train_seconds", "peak_memory_bytes")  # what two equal runs may differ in


def models(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "models").iterdir())}


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]


def timeless(found: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in found.items() if k not in TIMES}


def table(path: Path, sizes: dict[str, int], huge: str = "", seed: int = 0) -> Path:
    """A csv with a client column; two classes that two features tell apart."""
    draw = np.random.default_rng(seed)
    rows = ["client,a,b,label"]
    for client, size in sizes.items():
        for i in range(size):
            a, b = (draw.normal(size=2) + 2 * (i % 2)) * (1e30 if client == huge else 1)
            rows.append(f"{client},{a:.5g},{b:.5g},{('no', 'yes')[i % 2]}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "fedala"
    fedtailor.run("fedala", out=folder, **SMALL)
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


@pytest.mark.parametrize("method", METHODS)
def test_saved_models_score_as_reported(method: str, tmp_path: Path) -> None:
    """The models on disk are those that were scored, for every method and after fine-tuning."""
    folder = tmp_path / "run"
    fedtailor.run(method, out=folder, finetune=1, **SMALL)
    found = result(folder)
    name, given, options = read_config(folder / "config.toml")
    assert name == method
    config = make_config(name, given, options)
    world = assemble(config)
    predict = make_method(config, make_task(config, world.encoder.form)).predict
    correct = []
    for cid, client in enumerate(world.federation.names):
        model = tree.unflatten(load_file(folder / "models" / f"{client}.safetensors"))
        rows = world.partition.test[cid]
        with torch.no_grad():
            guess = predict(model, world.federation.x[rows]).argmax(-1)
        correct.append(int((guess == world.federation.y[rows]).sum()))
        assert correct[-1] / len(rows) == pytest.approx(found["per_client"][client], abs=1e-6)
    n = np.array([len(rows) for rows in world.partition.test])
    summary = summarise(np.array(correct), n)
    for key, value in summary.items():
        assert value == pytest.approx(found["accuracy"][key], abs=1e-6)


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
    fedtailor.run("fedala", out=tmp_path / "other", **SMALL, seed=1)
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
        fedtailor.run(method, engine=engine, participation=0.5, **SMALL)
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
    other = fedtailor.run("fedala", engine="vectorised", out=tmp_path / "run", **SMALL, **how)
    assert other["accuracy"]["loss"] == pytest.approx(plain["accuracy"]["loss"], rel=1e-4)
    assert other["per_client"] == pytest.approx(plain["per_client"], abs=0.02)
    key, value = next(iter(how.items()))
    assert other[key] == value


def test_states_on_disk_are_cleared_away(tmp_path: Path, monkeypatch: Any) -> None:
    """Client states may be many gigabytes: they must not outlive the run."""
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    fedtailor.run("fedala", out=tmp_path / "run", states="disk", **SMALL)
    left = [*(tmp_path / "tmp").rglob("*.bin"), *(tmp_path / "run").rglob("*.bin")]
    assert not left


def test_eval_every(tmp_path: Path) -> None:
    fedtailor.run("fedavg", out=tmp_path / "run", **SMALL | {"rounds": 5}, eval_every=2)
    scored = [line["round"] for line in history(tmp_path / "run") if "pre" in line]
    assert scored == [2, 4, 5], "every second round, and the last one in any case"
    assert result(tmp_path / "run")["best_round"] in scored


def test_evaluating_seldom_does_not_change_what_is_learnt(tmp_path: Path) -> None:
    for every in (1, 3):
        fedtailor.run("fedala", out=tmp_path / str(every), **SMALL, eval_every=every)
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


# --- interruption and resumption ---


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
            **SMALL | {"rounds": 5, "checkpoint_every": 1} | settings,
        )
    assert not (folder / "result.json").exists()
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    fedtailor.run("fedala", out=folder, **SMALL | {"rounds": 5, "checkpoint_every": 1})
    return folder


@pytest.mark.parametrize("ending", ["", '{"round": 4, "coh', "\x00\x00\x00"])
def test_resume_ends_as_if_never_interrupted(ending: str, whole: Path, tmp_path: Path) -> None:
    folder = broken_off(tmp_path / "run")
    with (folder / "history.jsonl").open("a") as file:
        file.write(ending)
    fedtailor.resume(folder)
    assert models(folder) == models(whole)
    assert timeless(result(folder)) == timeless(result(whole))
    assert [line["round"] for line in history(folder)] == [1, 2, 3, 4, 5]
    strip = [{k: v for k, v in line.items() if k not in TIMES} for line in history(folder)]
    assert strip == [{k: v for k, v in line.items() if k not in TIMES} for line in history(whole)]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedfomo", {"participation": 0.5}),
        ("pfedhn", {}),
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
        method, out=tmp_path / "whole", **SMALL | {"rounds": 5, "checkpoint_every": 1} | settings
    )
    assert models(folder) == models(tmp_path / "whole")
    assert timeless(result(folder)) == timeless(result(tmp_path / "whole"))


def test_resuming_a_finished_run_is_harmless(finished: Path) -> None:
    before = models(finished), timeless(result(finished)), history(finished)
    fedtailor.resume(finished)
    assert (models(finished), timeless(result(finished)), history(finished)) == before


def test_resume_survives_a_leftover_of_a_half_written_checkpoint(
    whole: Path, tmp_path: Path
) -> None:
    folder = broken_off(tmp_path / "run")
    (folder / "checkpoint" / "state-000009.safetensors.part").write_bytes(b"half")
    (folder / "checkpoint" / "latest.json.part").write_text('{"round"')
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
        (lambda f: edited(f / "checkpoint/latest.json", '"0.1.0"', '"0.0.9"'), "0.0.9"),
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


def test_a_strangers_config_does_not_make_a_folder_a_run(tmp_path: Path) -> None:
    """Many projects have a config.toml: --overwrite must not delete such a project."""
    (tmp_path / "config.toml").write_text('title = "my site"\n')
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput):
        open_folder(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


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
