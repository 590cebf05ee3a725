"""Counts what the methods of all declared experiments compute beside FedAvg, for estimates of time.

    python benchmarks/efforts.py            writes src/fedtailor/reproduce/playing/efforts.json
    python benchmarks/efforts.py --all      counts all of it anew: after a method has changed

Takes some seconds per method and options. Counts depend on the methods alone, not on the machine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fedtailor.reproduce.declared.declare import find_experiments, read_papers
from fedtailor.reproduce.playing.cells import Scale, make_cells
from fedtailor.reproduce.playing.effort import Effort, effort_name, effort_of

FILE = Path(__file__).resolve().parent.parent / "src/fedtailor/reproduce/playing/efforts.json"


def main() -> None:
    papers = read_papers(None)
    configs = {
        effort_name(config): config
        for experiment in find_experiments(list(papers), papers)
        for scale in (Scale(), Scale(small=True))
        if experiment.small or not scale.small
        for cell in make_cells(experiment, scale, {})
        for config in cell.configs
    }
    known = {} if "--all" in sys.argv[1:] else json.loads(FILE.read_text(encoding="utf-8"))
    found: dict[str, list[float]] = {}
    for number, (name, config) in enumerate(sorted(configs.items()), 1):
        sys.stderr.write(f"\r{number} of {len(configs)} ")
        if name in known:
            found[name] = known[name]
            continue
        try:
            counted = effort_of(config.method, config.options, config.recipe())
        except Exception as error:
            sys.stderr.write(f"\n{name}: {error}\n")
            counted = Effort()
        found[name] = [round(value, 2) for value in counted]
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
