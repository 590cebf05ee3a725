"""Rounds of two versions of FedTailor in one run, in turns: does a change make any row slower?

    git worktree add ../before v0.1.0
    python benchmarks/before_after.py --before ../before --device cuda --out FILE.json

The rows are those of `speed.py`, without the loop. Each version runs in a process of its own with
its own `src` and `benchmarks/speed.py`; both prepare at the same time, then rounds alternate while
the other process waits, so that a slow moment of the machine meets both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
LIMIT = 1.05  # a row may be this much slower


def work(root: Path, device: str) -> None:
    """Plays what the parent asks for, one line a request: a case's name, `round`, or `end`."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever else prints must not come between
    sys.path[:0] = [str(root / "src"), str(root / "benchmarks")]
    import speed
    import torch

    cases = {case.name: case for case in speed.CASES}
    sim, ids = None, torch.arange(0)

    def say(**found: Any) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    for request in (line.strip() for line in sys.stdin):
        if request == "round":
            say(seconds=speed.seconds(device, sim.step, ids))
            continue
        if sim is not None:
            sim.close()
            sim = None
            if device == "cuda":
                torch.cuda.empty_cache()
        if request == "end":
            return
        if request not in cases:
            say(missing=request)
            continue
        case = cases[request]
        speed.use_precision(case.precision)
        fed = speed.world(speed.sizes_of(case), case.form, device)
        sim = speed.simulation(case, fed, device, "compiled")
        ids = torch.arange(case.clients)
        warm = [speed.seconds(device, sim.step, ids) for _ in range(max(case.timed) + 4)]
        say(preparing=round(sum(warm), 2))


class Version:
    """One version at work in a process of its own."""

    def __init__(self, root: Path, device: str) -> None:
        command = [sys.executable, __file__, "--work", str(root), "--device", device]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def ask(self, request: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a version ended with exit code {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


def row_of(name: str, rounds: int, versions: dict[str, Version]) -> dict[str, Any]:
    """One case: both versions' medians and the ratio of after to before."""
    for version in versions.values():
        version.ask(name)
    row: dict[str, Any] = {"name": name}
    ready = {key: version.answer() for key, version in versions.items()}
    if missing := [key for key, said in ready.items() if "missing" in said]:
        return row | {"missing": missing}
    for key, said in ready.items():
        row[f"{key}_preparing_seconds"] = said["preparing"]
    times: dict[str, list[float]] = {key: [] for key in versions}
    for _ in range(rounds):
        for key, version in versions.items():
            version.ask("round")
            times[key].append(version.answer()["seconds"])
    for key, took in times.items():
        row[f"{key}_seconds"] = statistics.median(took)
        row[f"{key}_spread"] = [min(took), max(took)]
    row["ratio"] = row["after_seconds"] / row["before_seconds"]
    return row | {"passed": row["ratio"] <= LIMIT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="the other version's checkout")
    parser.add_argument("--after", type=Path, default=HERE)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cpu")
    parser.add_argument("--only", nargs="+", help="names of rows")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--commit", help="where there is no git to ask")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work.resolve(), arguments.device)
        return
    if arguments.before is None:
        parser.error("--before: name the checkout of the other version")
    sys.path[:0] = [str(HERE / "src"), str(HERE / "benchmarks")]
    import torch
    from speed import CASES, commit, hardware

    device = arguments.device
    report: dict[str, Any] = {
        "command": f"python {' '.join(sys.argv)}",
        "commit": arguments.commit or commit(),
        "device": f"{device} ({hardware(torch.device(device))})",
        "torch": torch.__version__,
        "limit": LIMIT,
        "rows": [],
    }
    versions = {
        "before": Version(arguments.before.resolve(), device),
        "after": Version(arguments.after.resolve(), device),
    }
    for case in CASES:
        if case.where == device and (not arguments.only or case.name in arguments.only):
            row = row_of(case.name, arguments.rounds, versions)
            print(json.dumps(row), flush=True)
            if "missing" in row:
                continue
            report["rows"].append(row)
            if arguments.out:
                arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for version in versions.values():
        version.ask("end")
        version.process.wait()


if __name__ == "__main__":
    main()
