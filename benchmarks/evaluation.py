"""What evaluating by a metric costs, against accuracy alone, in one run.

    python benchmarks/evaluation.py --device cuda --out benchmarks/results/evaluation-h200.json
    python benchmarks/evaluation.py --before ../before ...   also times another checkout's `score`

100 clients of unequal sizes with a CNN on images of 32 x 32 (a row of `speed.py`): everyone's model
is asked about its test and validation rows, and judged.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
CASE = "unequal"  # of speed.py: 100 clients, the largest with many times the rows of the least
TIMES = 15


def simulation(root: Path, device: str, name: str) -> tuple[Any, Any, Any, Any]:
    """The benchmark's own simulation after two rounds, with tests rows of every client."""
    sys.path[:0] = [str(root / "src"), str(root / "benchmarks")]
    import speed
    import torch

    case = next((c for c in speed.CASES if c.name == name), speed.CASES[0])
    fed = speed.world(speed.sizes_of(case), case.form, device)
    fed = fed._replace(val=fed.train, test=fed.train)
    sim = speed.simulation(case, fed, device, "compiled")
    for _ in range(2):
        sim.step(torch.arange(case.clients))
    return sim, fed, case, speed


def middle(speed: Any, device: str, work: Any) -> float:
    """The median time of some work."""
    for _ in range(4):
        work()
    return statistics.median(speed.seconds(device, work) for _ in range(TIMES))


def before(root: Path, device: str, name: str) -> None:
    """Prints how long the other checkout's evaluation takes."""
    sim, _, _, speed = simulation(root, device, name)
    print(json.dumps(middle(speed, device, sim.score)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--case", default=CASE)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--only-before", action="store_true")
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.only_before:
        before(given.before, given.device, given.case)
        return
    sim, fed, case, speed = simulation(HERE, given.device, given.case)
    import torch

    from fedtailor.results.metrics.named import METRICS
    from fedtailor.runs.evaluation import Evaluation

    def evaluated(metric: str) -> Any:
        judge = Evaluation(fed, case.form, METRICS[metric], None)

        def work() -> None:
            said = sim.outputs()
            judge.judged(said.test)
            judge.judged(said.val, "val")

        return work

    found = {"outputs alone": middle(speed, given.device, sim.outputs)}
    for metric in ("accuracy", "balanced-accuracy", "roc-auc", "log-loss"):
        found[metric] = middle(speed, given.device, evaluated(metric))
    if given.before:
        told = subprocess.run(
            [sys.executable, __file__, "--only-before", "--before", str(given.before),
             "--device", given.device, "--case", given.case],
            capture_output=True, text=True, check=True,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            | {"PYTHONPATH": os.environ.get("EXTRA_PATH", "")},
        )  # fmt: skip
        found["score before"] = json.loads(told.stdout.splitlines()[-1])
    cuda = given.device.startswith("cuda")
    result = {
        "command": f"python benchmarks/evaluation.py --device {given.device} --case '{case.name}'",
        "commit": given.commit,
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "rows": int(fed.test.n.sum()),
        "seconds": {k: round(v, 5) for k, v in found.items()},
        "against_accuracy": {k: round(v / found["accuracy"], 3) for k, v in found.items()},
    }
    text = json.dumps(result, indent=1) + "\n"
    if given.out:
        given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
