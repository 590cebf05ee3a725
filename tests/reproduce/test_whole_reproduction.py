"""Whole reproductions: interrupted, failed, without data, small."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedtailor.cli.reproducing_view import show_outcome
from fedtailor.core.errors import BadInput
from fedtailor.reproduce import reproduce
from fedtailor.reproduce.playing import play
from fedtailor.reproduce.playing.cells import Scale, world_key
from fedtailor.reproduce.playing.plan import plan_runs
from fedtailor.reproduce.playing.queue import RunEvent, RunQueue
from fedtailor.reproduce.shown.finish import write_experiment

PAPERS = Path(__file__).parent / "papers"


def again(out: Path, *names: str, **more: Any) -> dict[str, dict[str, Any]]:
    return reproduce(*names, papers=PAPERS, out=out, device="cpu", **more)


def test_interrupted_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str, int]] = []

    def press(news: RunEvent) -> None:
        """Ctrl-C after the first round of the second run."""
        seen.append((news.kind, news.task.key, (news.line or {}).get("round", 0)))
        if news.kind == "round" and len({key for _, key, _ in seen}) == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        again(tmp_path, "tiny/fig1", tell=press)
    first, half = dict.fromkeys(key for _, key, _ in seen)
    results = {p: p.stat().st_mtime_ns for p in tmp_path.glob("runs/*/result.json")}
    assert len(results) == 1
    table = (tmp_path / "tiny/fig1/table.json").read_text()
    assert '"not finished"' in table

    later: list[tuple[str, str, int]] = []
    started: list[Any] = []
    monkeypatch.setattr(play, "play_config", lambda *a, **k: started.append(a))
    found = again(
        tmp_path,
        "tiny/fig1",
        tell=lambda n: later.append((n.kind, n.task.key, (n.line or {}).get("round", 0))),
    )
    # the half one only, from its second round, and from its checkpoint
    assert later == [("begins", half, 0), ("round", half, 2), ("done", half, 0)]
    assert started == []
    assert all(p.stat().st_mtime_ns == at for p, at in results.items())
    assert found["tiny/fig1"]["complete"]
    assert first != half


def test_a_failed_run_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    found = again(tmp_path, "tiny/fails")["tiny/fails"]
    bad, good = found["cells"]
    assert bad["status"] == "failed"
    assert "diverged" in bad["reason"]
    assert bad["mean"] is None
    assert good["status"] == "done"
    assert not found["complete"]
    assert "diverged" in (tmp_path / "tiny/fails/index.html").read_text()
    assert r"\emph{failed}" in (tmp_path / "tiny/fails/table.tex").read_text()


def test_missing_data_are_found_before_anything_is_run(tmp_path: Path) -> None:
    out, empty = tmp_path / "out", tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BadInput, match=r"'cifar100' is not in .*--skip-missing"):
        again(out, "tiny/needs", data_dir=str(empty))
    assert not out.exists()
    found = again(out, "tiny/needs", data_dir=str(empty), skip_missing=True)["tiny/needs"]
    assert [c["status"] for c in found["cells"]] == ["done", "missing data"]


def test_a_smaller_version_is_marked_everywhere(tmp_path: Path) -> None:
    found = again(tmp_path, "tiny/table1", small=True, only=["FedAvg"])["tiny/table1"]
    mark = "small scale, 1 rounds instead of 2, 1 of 2 seeds"
    assert found["scale"] == mark
    assert not found["as_in_paper"]
    assert found["rows"] == ["FedAvg"]
    folder = tmp_path / "tiny/table1"
    for name in ("table.json", "table.csv", "table.tex", "index.html"):
        assert mark in (folder / name).read_text(), name


def test_a_mean_over_some_seeds_is_shown_as_such(tmp_path: Path, experiments: Any) -> None:
    first = again(tmp_path, "tiny/table1", seeds=1, only=["iid"])["tiny/table1"]
    plan = plan_runs([experiments["table1"]], Scale(), tmp_path, only=["iid"])
    (part,) = plan.parts
    found = write_experiment(part, plan.folder(part), {}, "the command")
    for one, some in zip(first["cells"], found["cells"], strict=True):
        assert (some["status"], some["mean"]) == ("not finished", one["mean"])
        assert (some["outside"], some["std"]) == (None, None)
    assert found["tau"]["iid"]["rows"] == 2
    mine = f"{first['cells'][0]['mean']:.2f} (1 of 2 seeds)"
    page = (tmp_path / "tiny/table1/index.html").read_text()
    for text in (mine, "Kendall&#39;s τ counts them", "2 of them with some seeds only"):
        assert text in page or text.replace("&#39;", "'") in page
    assert mine in (tmp_path / "tiny/table1/table.tex").read_text()
    console = Console(width=120, file=io.StringIO())
    show_outcome(found, console)
    assert mine in console.file.getvalue()  # type: ignore[attr-defined]
    assert "(2 rows, 2 of them with some seeds only)" in console.file.getvalue()  # type: ignore[attr-defined]


def test_infinity_is_shown_and_json_stays_json(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    endless, noisy = again(tmp_path, "tiny/privacy")["tiny/privacy"]["cells"]
    assert (endless["status"], endless["mean"], endless["text"]) == ("done", None, "∞")
    assert (endless["std"], endless["difference"], endless["outside"]) == (None, None, None)
    assert endless["paper"] == {"text": "∞", "mean": None, "std": None, "low": None, "high": None}
    assert [(s["main"], s["text"]) for s in endless["seeds"]] == [(None, "∞")] * 2
    assert noisy["difference"] == pytest.approx(noisy["mean"] - 3)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = (tmp_path / "tiny/privacy/table.json").read_text()
    assert json.loads(text, parse_constant=refuse)["cells"][0] == endless
    assert (tmp_path / "tiny/privacy/index.html").read_text().count(">∞</td>") == 2
    assert r"$\infty$ & $\infty$" in (tmp_path / "tiny/privacy/table.tex").read_text()


def test_sweeps_and_matrices_are_drawn(tmp_path: Path) -> None:
    found = again(tmp_path, "tiny/fig2", "tiny/fig3", keep_models=True)
    assert found["tiny/fig2"]["pictures"] == ["sweep.png"]
    (name,) = found["tiny/fig3"]["pictures"]
    assert name.startswith("matrix-FedFomo-iid-")
    assert (tmp_path / "tiny/fig3" / name).stat().st_size > 5000
    assert len(list(tmp_path.glob("runs/*/models"))) == 3  # as was asked for


def test_a_picture_of_the_models_wants_them(tmp_path: Path, experiments: Any) -> None:
    again(tmp_path, "tiny/fig2", only=["3 clients"])
    plain = plan_runs([experiments["fig2"]], Scale(), tmp_path, only=["3*"]).tasks[0]
    shown = dataclasses.replace(experiments["fig2"], shows="landscape")
    task = plan_runs([shown], Scale(), tmp_path, only=["3*"]).tasks[0]
    assert plain.folder == task.folder
    assert plain.finished
    assert not task.finished  # its models were dropped
    play.play(task, play.DataCache())
    assert task.finished
    play.play(task, play.DataCache())
    assert (task.folder / "models").is_dir()


def test_what_is_finished_is_written_without_a_run(tmp_path: Path) -> None:
    def never(news: RunEvent) -> None:
        raise AssertionError(news)

    empty = again(tmp_path / "a", "tiny/fig1", run=False, tell=never)["tiny/fig1"]
    assert {cell["status"] for cell in empty["cells"]} == {"not finished"}
    whole = again(tmp_path / "b", "tiny/fig1")["tiny/fig1"]
    (tmp_path / "b" / "runs").rename(tmp_path / "a" / "runs")  # as if it came from elsewhere
    found = again(tmp_path / "a", "tiny/fig1", run=False, tell=never)["tiny/fig1"]
    assert found["cells"] == whole["cells"] and found["complete"]


def test_finished_runs_need_no_data(tmp_path: Path) -> None:
    found = again(tmp_path, "tiny/needs", data_dir=str(tmp_path), run=False)["tiny/needs"]
    assert {cell["status"] for cell in found["cells"]} == {"not finished"}


def test_counts_are_checked(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="jobs is 0: give at least 1"):
        again(tmp_path, "tiny/fig1", jobs=0)


def test_workers_keep_to_a_world(experiments: Any, tmp_path: Path) -> None:
    tasks = plan_runs([experiments["table1"]], Scale(), tmp_path).tasks
    waiting = RunQueue(tasks)
    world, first = waiting.take()
    other, second = waiting.take("", others=[first])
    assert world != other
    assert first.config.partition != second.config.partition
    order = []
    while waiting:
        world, task = waiting.take(world)
        order.append(task.config.partition)
    assert order == ["iid", "iid", "iid", "pathological:2"]


def test_what_another_compiles_comes_later(experiments: Any, tmp_path: Path) -> None:
    """Where there is something else to do in the same world."""
    tasks = plan_runs([experiments["table1"]], Scale(), tmp_path).tasks
    method, world = tasks[0].config.method, world_key(tasks[0].config)
    _, first = RunQueue(tasks).take(world, others=[tasks[0]])
    assert first.config.method != method
    same = [task for task in tasks if task.config.method == method]
    assert RunQueue(same).take(world, others=[same[0]])[1] is same[0]
