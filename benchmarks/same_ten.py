"""FedFomo's Table 1 with the same ten of 100 clients in every round, as in its authors' code.

    python benchmarks/same_ten.py --data-dir DATA --runs RUNS --out benchmarks/results/same-ten.json

The column of CIFAR-10 with 100 clients as `fedtailor reproduce fedfomo/table1` declares it, but
ninety clients are held out and the other ten train in all rounds; what counts is their accuracy.
Runs that are finished in RUNS are not played again.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtailor.reproduce.declared.measures import result_and_history
from fedtailor.reproduce.playing.cells import Scale
from fedtailor.reproduce.playing.request import ReproductionRequest
from fedtailor.results.config import Config, config_of
from fedtailor.runs.run import play_config

COLUMN, HELD_OUT = "CIFAR-10, 100 clients", 90
ROWS = ("Local Training", "FedFomo (n=5)")


def configs(data_dir: str, device: str) -> dict[str, tuple[Config, str]]:
    """Row -> (its settings with the same ten clients, what the paper has)."""
    plan = ReproductionRequest(Scale(seeds=1), [COLUMN]).plan(
        ["fedfomo/table1"], Path("reproduction"), look_for_data=False
    )
    (part,) = plan.parts
    found = {}
    for cell, _ in part.cells:
        if cell.row in ROWS and cell.published:
            same = replace(
                cell.configs[0],
                held_out=HELD_OUT,
                participation=1.0,
                eval_every=50,
                data_dir=data_dir,
                device=device,
            )
            found[cell.row] = (same, cell.published.text)
    return found


def of_the_ten(folder: Path, config: Config) -> dict[str, Any]:
    """The accuracies of those that trained, after the last round."""
    result, history = result_and_history(folder)
    played = config_of(folder)
    assert (played.recipe(), played.held_out) == (config.recipe(), HELD_OUT), folder
    assert config.options.items() <= result["options"].items(), folder
    ten, each = history[-1]["cohort"], list(result["per_client"].values())
    seen = [each[i] for i in ten]
    return {
        "accuracy": round(sum(seen) / len(seen), 6),
        "worst": min(seen),
        "best": max(seen),
        "clients": ten,
        "rounds": result["rounds"],
        "seconds": result["seconds"],
    }


def main() -> None:
    from speed import commit

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True, help="where cifar10.npz lies")
    parser.add_argument("--runs", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--commit", help="of the code that played the runs")
    args = parser.parse_args()
    rows = []
    for name, (config, paper) in configs(args.data_dir, args.device).items():
        folder = args.runs / f"{config.method}-seed{config.seed}"
        if not (folder / "result.json").exists():
            play_config(config, folder)
        rows.append({"row": name, "paper": paper} | of_the_ten(folder, config))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    report = {
        "command": "python benchmarks/same_ten.py --data-dir DATA --runs RUNS",
        "commit": args.commit or commit(),
        "device": f"{args.device}, 2 cores" if args.device == "cpu" else args.device,
        "rows": rows,
    }
    args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
