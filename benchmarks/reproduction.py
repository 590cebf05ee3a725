"""Puts finished runs of the papers' experiments into the committed results, and draws these.

    python benchmarks/reproduction.py --runs reproduction --commit 1234567

takes what PUBLISHED names (or NAMES) from the folder that `fedtailor reproduce` wrote, as far as it
is finished, writes `results/reproduction/NAME.json`, and draws the picture of docs/reproduction.md
from all that is there. Without `--runs` it only draws.
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.reproduce.playing.cells import Scale
from fedtailor.reproduce.playing.request import ReproductionRequest
from fedtailor.reproduce.shown.outcome import outcome

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "reproduction"
PICTURE = ROOT / "docs" / "img" / "reproduction.png"
MARKERS = "os^vDP*X<>p"


class Table(NamedTuple):
    """What is published of an experiment: which cells, and how far from the paper."""

    experiment: str
    only: list[str] = []  # noqa: RUF012  # nobody changes it
    scale: Scale = Scale()


FEDALA = ["MNIST pat", "Cifar10 pat", "Cifar10"]
PFEDLA = ["FMNIST 10", "CIFAR10 10"]
PUBLISHED = {
    "fedfomo-table1": Table("fedfomo/table1"),
    "fedfomo-table3": Table("fedfomo/table3", ["CIFAR-10"]),
    "fedala-table2": Table("fedala/table2", FEDALA, Scale(rounds=50, seeds=1)),
    "fedala-table2-long": Table(
        "fedala/table2", ["Cifar10"], Scale(rounds=500, seeds=1, patience=10)
    ),
    "fedala-table2-long-pat": Table(
        "fedala/table2", ["Cifar10 pat"], Scale(rounds=500, seeds=1, patience=10)
    ),
    "fedala-table2-long-100": Table(
        "fedala/table2", ["Cifar100"], Scale(rounds=500, seeds=3, patience=10)
    ),
    "fedala-table2-long-mnist": Table(
        "fedala/table2", ["MNIST pat"], Scale(rounds=500, seeds=3, patience=10)
    ),
    # sixteen epochs a round instead of one
    "fedala-table2-c": Table("fedala/table2", ["Fed*-C", *FEDALA], Scale(rounds=10, seeds=1)),
    "plgu-table1": Table("plgu/table1", ["CIFAR10 C=10"], Scale(rounds=30)),
    "plgu-table2": Table("plgu/table2", ["CIFAR10 C=10"], Scale(rounds=30)),
    "pmixfed-table2-all": Table("pmixfed/table2", ["CIFAR-10? N*C = 100%"], Scale(rounds=10)),
    "pmixfed-table2-some": Table("pmixfed/table2", ["CIFAR-10? N*C = 10%"], Scale(rounds=50)),
    "pmixfed-table2-long": Table("pmixfed/table2", ["CIFAR-10? N = 100, C = 10%"]),
    "pmixfed-table2-mnist": Table("pmixfed/table2", ["MNIST*"], Scale(rounds=20)),
    "pmixfed-table3": Table("pmixfed/table3", ["CIFAR-10"], Scale(rounds=10)),
    "pmixfed-table4": Table("pmixfed/table4", ["CIFAR-10? *"], Scale(rounds=10)),
    "pmixfed-table4-mnist": Table("pmixfed/table4", ["MNIST*"], Scale(rounds=20)),
    "pfedla-table1": Table("pfedla/table1", PFEDLA, Scale(rounds=30, seeds=1)),
    "pfedla-table1-long": Table("pfedla/table1", ["CIFAR10 10"], Scale(rounds=300, seeds=1)),
    "pfedla-table2": Table("pfedla/table2", PFEDLA, Scale(rounds=30, seeds=1)),
    "pfedla-table3": Table("pfedla/table3", ["CIFAR10 k=*"], Scale(rounds=30, seeds=1)),
}


def command_of(table: Table) -> str:
    """What runs it all; it may have been done in parts."""
    words = ["fedtailor", "reproduce", table.experiment]
    words += [word for name in table.only for word in ("--only", name)]
    for name in ("rounds", "seeds", "patience"):
        if (value := getattr(table.scale, name)) is not None:
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def four_digits(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {k: four_digits(v) for k, v in value.items()}
    return [four_digits(v) for v in value] if isinstance(value, list) else value


def where(cells: list[dict[str, Any]], gpu: str) -> str:
    """The devices, and the cells that were not played on the GPU."""
    elsewhere = [
        f"{c['row']}, {c['column']}" for c in cells if {d[:3] for d in c["devices"]} == {"cpu"}
    ]
    return f"{gpu}; on two CPU cores: {'; '.join(elsewhere)}" if elsewhere else gpu


def collect(name: str, runs: Path, commit: str, gpu: str) -> str:
    """Writes one table; says how much of it there is."""
    table, command = PUBLISHED[name], command_of(PUBLISHED[name])
    plan = ReproductionRequest(table.scale, table.only).plan(
        [table.experiment], runs, look_for_data=False
    )
    (part,) = plan.parts
    found = outcome(part, {}, command)
    found |= {"commit": commit, "device": where(found["cells"], gpu)}
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps(four_digits(found), indent=1, ensure_ascii=False) + "\n")
    done = sum(len(cell["seeds"]) for cell in found["cells"])
    return f"{name}: {done} of {sum(len(tasks) for _, tasks in part.cells)} runs"


def draw() -> None:
    """Every cell: the paper's number across, ours upwards."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from fedtailor.figures.style import COLOURS

    figure, axes = plt.subplots(figsize=(9.6, 5.4), layout="constrained")
    axes.plot([0, 100], [0, 100], color="0.6", linewidth=1, zorder=0)
    series: dict[str, list[tuple[float, float]]] = {}
    for file in sorted(RESULTS.glob("*.json")):
        table = json.loads(file.read_text(encoding="utf-8"))
        pairs = [
            (cell["paper"]["mean"], cell["mean"])
            for cell in table["cells"]
            if cell["paper"] and cell["mean"] is not None and cell["unit"] == "%"
        ]
        rounds, whole = max(table["rounds"]), max(table["rounds_of_paper"])
        cut = "" if rounds == whole else f" ({rounds} of {whole} rounds)"
        label = f"{table['paper']['name']}, {table['experiment'].partition('/')[2]}{cut}"
        series.setdefault(label, []).extend(pairs)
    for number, (label, pairs) in enumerate(series.items()):
        marker, colour = MARKERS[number % len(MARKERS)], COLOURS[number % len(COLOURS)]
        axes.scatter(
            *zip(*pairs, strict=True), s=34, c=colour, marker=marker, alpha=0.75, label=label
        )
    axes.set(xlabel="in the paper, %", ylabel="FedTailor, %", xlim=(0, 102), ylim=(0, 102))
    axes.set_title("Accuracies in the papers' tables, run again", loc="left")
    figure.legend(fontsize=8, frameon=False, loc="outside right upper")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=130, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*PUBLISHED, []], help="tables; else all")
    parser.add_argument("--runs", type=Path, help="the folder that fedtailor reproduce wrote")
    parser.add_argument("--commit", default="", help="of the code that played them")
    parser.add_argument("--gpu", default="cuda (NVIDIA H200)", help="what `cuda` was")
    args = parser.parse_args()
    if args.runs:
        for name in args.names or PUBLISHED:
            print(collect(name, args.runs, args.commit, args.gpu))
    draw()


if __name__ == "__main__":
    main()
