"""What one federation gives away, with and without protection, for docs/audit.md.

python benchmarks/audit.py    a few minutes on one core; DP-SGD needs fedtailor[privacy]
"""

from __future__ import annotations

import argparse
import base64
import json
import platform
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import fedtailor

ROOT = Path(__file__).resolve().parent.parent
FEDERATION = {
    "data": "digits", "model": "mlp", "clients": 10, "partition": "dirichlet:0.5", "rounds": 20,
    "device": "cpu",
}  # fmt: skip


class Setting(NamedTuple):
    name: str  # of its picture
    words: str
    recipe: dict[str, Any]
    rows: int  # of an attacked upload; 0: all of the client's


DP = {"dp_clip": 1.0, "dp_noise": 1.0}
SETTINGS = (
    Setting("one-row", "one row, one step", {"steps": 1, "batch": 1}, 1),
    Setting("one-row-dp", "one row, one step, DP-SGD", {"steps": 1, "batch": 1, **DP}, 1),
    Setting("few-rows", "batches of 10, a client of 4 rows", {}, 4),
    Setting("few-rows-dp", "batches of 10, a client of 4 rows, DP-SGD", DP, 4),
    Setting("all-rows", "batches of 10, all rows of the client", {}, 0),
)


def measured(setting: Setting, steps: int, pictures: Path) -> dict[str, Any]:
    """One run and its audit."""
    with TemporaryDirectory() as place:
        result = fedtailor.run("fedavg", out=place, **FEDERATION, **setting.recipe)
        found = fedtailor.audit(place, rows=setting.rows, steps=steps, device="cpu")
    kept = {}
    for part in ("inversion", "membership"):  # a protected run is also compared with no protection
        first = found[part][0]["protection"]
        kept[part] = [told for told in found[part] if told["protection"] == first]
    drawn = [case.pop("picture") for case in kept["inversion"]]
    (pictures / f"audit-{setting.name}.png").write_bytes(
        base64.b64decode(drawn[0].partition(",")[2])
    )
    accuracy = result["accuracy"]["mean"]
    return {"setting": setting.words, "accuracy": accuracy, **kept, "seconds": found["seconds"]}


def main() -> None:
    from speed import commit

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "audit.json")
    parser.add_argument("--pictures", type=Path, default=ROOT / "docs" / "img")
    parser.add_argument("--steps", type=int, default=300, help="of an attack")
    args = parser.parse_args()
    made_of, found = commit(), []  # before it writes anything
    for setting in SETTINGS:
        found.append(measured(setting, args.steps, args.pictures))
        last = found[-1]
        print(
            last["setting"],
            [c["psnr"] for c in last["inversion"]],
            last["seconds"],
            file=sys.stderr,
        )
    report = {
        "command": "python benchmarks/audit.py"
        + ("" if args.steps == 300 else f" --steps {args.steps}"),
        "commit": made_of,
        "device": f"cpu ({platform.machine()})",
        "federation": FEDERATION,
        "rows": found,
    }
    args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
