"""The command `reproduce`: list, run with several processes, say what is wrong."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedtailor.cli import main
from fedtailor.cli.reproducing_view import outcome_table

PAPERS = Path(__file__).parents[1] / "reproduce" / "papers"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDTAILOR_DATA", raising=False)

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as end:
            main(["reproduce", *arguments])
        said = capsys.readouterr()
        assert (end.value.code or 0) == code, said.err
        assert "Traceback" not in said.err
        return said.out, said.err

    return run


TINY = ("--papers", str(PAPERS), "--device", "cpu")


def test_list(cli: Any) -> None:
    out, _ = cli("--list", "tiny", *TINY)
    assert "tiny/table1" in out
    assert "cifar100 (not here)" in out
    entries = {e["experiment"]: e for e in json.loads(cli("--list", *TINY, "--json")[0])}
    assert entries["tiny/table1"]["runs"] == 6
    assert entries["tiny/table1"]["data"] == {"digits": True}
    assert entries["tiny/needs"]["data"] == {"digits": True, "cifar100": False}
    assert entries["tiny/table1"]["small"] == "2 runs"
    assert "~" not in out  # nobody knows how long before any round


def test_a_run_begins_with_what_is_left_and_says_how_long_after_two_rounds(cli: Any) -> None:
    first = ("tiny/table1", *TINY, "--only", "iid", "--json")
    assert cli(*first, "--seeds", "1")[1].splitlines()[0] == "2 runs"
    _, err = cli(*first)
    assert err.splitlines()[0] == "4 runs, 2 finished already"
    assert re.search(r"\[3/4 runs\] .*: done, about \d+ s left\n", err)
    assert re.search(r"round 1/2 .* % \(2 of 4 runs\)\n", err)  # it prepared steps, too
    assert cli(*first)[1].splitlines() == ["4 runs, all finished already"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no experiment: name one"),
        (("tiny/tabel1",), "did you mean 'tiny/table1'?"),
        (("tiny/table1", "--only", "FedAvgg"), "unknown row or column in --only 'FedAvgg'"),
        (("tiny/table1", "--scale", "tiny"), "--scale is 'tiny': the only other scale is small"),
        (("tiny/table1", "--jobs", "0"), "--jobs is '0': give a whole number"),
        (("tiny/fig1", "--scale", "small"), "has no small version"),
        (("tiny/needs",), "data set 'cifar100' is not in"),
        (("tiny/table1", "--device", "abacus"), "device 'abacus' cannot be used"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(
    cli: Any, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    _, err = cli(*TINY, *arguments, code=2)
    assert said in err
    assert not list(tmp_path.iterdir())


def test_a_failure_ends_with_code_1(cli: Any) -> None:
    out, err = cli("tiny/fails", *TINY, code=1)
    assert "Diverges, huge: failed" in out
    assert "1 runs failed" in err
    out, err = cli("tiny/fails", *TINY, code=1)
    assert "2 runs, 1 finished already, 1 diverged before\n" in err
    assert "found before; remove" in " ".join(err.split())
    assert "Diverges, huge: failed" in out


def test_a_narrow_terminal_shows_a_column_at_a_time(cli: Any) -> None:
    text, _ = cli("tiny/table1", *TINY, "--scale", "small", "--json")
    outcome = json.loads(text)["tiny/table1"]
    outcome["columns"] = ["iid", "one that has a long name", "another with a long name"]
    outcome["cells"] += [
        c | {"column": n} for c in outcome["cells"] for n in outcome["columns"][1:]
    ]
    for width, heads in ((120, 0), (60, 3)):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(outcome_table(outcome, console))
        shown = console.export_text()
        assert shown.count("difference") == heads
        assert all(len(line) <= width for line in shown.splitlines())
        assert "…" not in shown


def _lines(folder: Path) -> int:
    return sum(p.read_bytes().count(b"\n") for p in folder.glob("runs/*/history.jsonl"))


def _start(folder: Path, *more: str) -> subprocess.Popen[str]:
    script = Path(sys.executable).with_name("fedtailor")
    words = [script, "reproduce", *TINY, "--jobs", "2", "--out", str(folder), *more]
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder.parent,
    )


@pytest.mark.slow
def test_two_processes_ctrl_c_and_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = ("tiny/table1", "--rounds", "60", "--checkpoint-every", "1000", "--json")
    process = _start(out, *more)
    end = time.monotonic() + 200
    while _lines(out) < 20:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "the same command goes on" in err
    assert "Traceback" not in err
    halves = [p for p in out.glob("runs/*") if not (p / "result.json").exists()]
    assert halves
    kept = {p: json.loads((p / "checkpoint/latest.json").read_text())["round"] for p in halves}
    assert all(kept.values())  # checkpoints were written on the way out
    process = _start(out, *more)
    text, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found = json.loads(text)["tiny/table1"]
    assert found["complete"]
    assert found["scale"] == "60 rounds instead of 2"
    for half in halves:
        rounds = [json.loads(row)["round"] for row in (half / "history.jsonl").open()]
        assert rounds == list(range(1, 61))


@pytest.mark.slow
def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = _start(out, "tiny/fig1", "--rounds", "80", "--json")
    end = time.monotonic() + 200
    while _lines(out) < 5:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    children = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    victim = next(int(pid) for pid, name in names.items() if b"spawn_main" in name)
    os.kill(victim, signal.SIGKILL)
    text, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "signal 9" in err
    assert "tried again" in err
    assert json.loads(text)["tiny/fig1"]["complete"]
