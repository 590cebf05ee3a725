"""Every method with its defaults on digits, several repeats, many runs side by side.

    python benchmarks/every_method.py --repeats 5 --out benchmarks/results/all.json

The same as `fedtailor compare all`, which plays one run after the other: here processes play the
runs of its plan, each on one core, and the comparison then finds them finished and sums them up.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from fedtailor.runs.comparison.plan import ComparisonPlan

SETTING: dict[str, object] = {"data": "digits", "model": "mlp", "rounds": 20, "device": "cpu"}


def plan_of(repeats: int) -> ComparisonPlan:
    return ComparisonPlan(["all"], 1, SETTING, {}, repeats=repeats)


def play(job: tuple[str, int, str, int]) -> str:
    """One run of the plan, in the place where the comparison will look for it."""
    import torch

    from fedtailor.results import folder as files
    from fedtailor.runs.run import play_config

    method, seed, folder, repeats = job
    torch.set_num_threads(1)
    place = files.run_folder(Path(folder), method, seed)
    files.open_folder(place)
    play_config(plan_of(repeats).configs[method, seed], place)
    return f"{method} {seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    from speed import commit

    from fedtailor.runs.comparison.play import open_comparison, play_comparison

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "all"
        plan = plan_of(args.repeats)
        plan.load_data()
        open_comparison(plan, folder)
        # the longest first: methods that train a head or adapt in every round
        order = sorted(plan.configs, key=lambda run: not run[0].endswith("-c"))
        jobs = [(method, seed, str(folder), args.repeats) for method, seed in order]
        with ProcessPoolExecutor(args.processes) as pool:
            for done, name in enumerate(pool.map(play, jobs), 1):
                print(f"{done}/{len(jobs)} {name}", flush=True)
        summary, _ = play_comparison(plan, folder)
    report = {
        "command": shlex.join(["python", "benchmarks/every_method.py", *sys.argv[1:]]),
        "commit": args.commit or commit(),
        "device": f"one CPU core of {os.cpu_count()} for each run",
        "summary": summary,
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
