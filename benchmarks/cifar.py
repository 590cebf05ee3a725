"""Eight methods on real CIFAR-10: 100 clients, Dirichlet 0.1, 200 rounds, with time and accuracy.

    python benchmarks/cifar.py --data-dir DATA --jobs 8 --out benchmarks/results/cifar-h200.json

Methods run side by side in processes of their own (`--jobs`), so times are of a shared GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from speed import commit

METHODS = ("fedavg", "fedala", "ditto", "fedrep", "fedfomo", "pmixfed", "plgu-lf", "pfedla")
KEPT = (
    "accuracy", "best", "best_round", "bytes", "seconds", "train_seconds", "preparing_seconds",
    "way", "precision", "peak_memory_bytes", "rounds", "clients", "options",
)  # fmt: skip
SETTINGS = {
    "data": "cifar10",
    "clients": 100,
    "partition": "dirichlet:0.1",
    "model": "cnn",
    "batch": 10,
    "lr": 0.005,
    "eval-every": 20,
    "checkpoint-every": 1000,
    "compile": "always",
}


def play(method: str, rounds: int, data_dir: Path, device: str, folder: Path) -> dict[str, Any]:
    """One run in a process of its own; what it said goes to a file beside its results."""
    settings = [f"--{k}={v}" for k, v in (SETTINGS | {"rounds": rounds, "device": device}).items()]
    command = [
        sys.executable, "-c", "from fedtailor.cli import main; main()", "run", method, *settings,
        "--data-dir", str(data_dir), "--out", str(folder / method), "--overwrite",
    ]  # fmt: skip
    begun = time.perf_counter()
    with (folder / f"{method}.log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
    took = time.perf_counter() - begun
    if done.returncode:
        lines = (folder / f"{method}.log").read_text().splitlines()
        return {"method": method, "failed": lines[-1] if lines else done.returncode}
    result = json.loads((folder / method / "result.json").read_text())
    curve = [
        [line["round"], line["pre"]["mean"]]
        for line in map(json.loads, (folder / method / "history.jsonl").read_text().splitlines())
        if "pre" in line
    ]
    return {"method": method, "wall_seconds": took, "curve": curve} | {k: result[k] for k in KEPT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--commit", help="where there is no git to ask")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    report: dict[str, Any] = {
        "command": f"python {' '.join(sys.argv)}",
        "commit": arguments.commit or commit(),
        "device": f"{arguments.device} ({name}), {arguments.jobs} runs side by side",
        "torch": torch.__version__,
        "settings": SETTINGS | {"rounds": arguments.rounds},
        "runs": [],
    }
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [
            pool.submit(
                play, m, arguments.rounds, arguments.data_dir, arguments.device, Path(folder)
            )
            for m in arguments.methods
        ]
        for job in jobs:
            found = job.result()
            print(json.dumps({k: v for k, v in found.items() if k != "curve"}), flush=True)
            report["runs"].append(found)
            if arguments.out:
                arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
