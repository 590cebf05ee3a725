"""Puts the committed results into the docs: every table there is made here.

python benchmarks/tables.py            writes the tables between their markers
python benchmarks/tables.py --check    exits with 1 if one is not what the results say
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md")))]


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def rows(header: list[str], body: list[list[str]]) -> str:
    rule = ["---", *(["---:"] * (len(header) - 1))]
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *body])


def per_cent(value: float) -> str:
    return f"{100 * value:.1f}"


def megabytes(value: float) -> str:
    return f"{value / 1e6:.1f}"


def made_by(report: dict[str, Any]) -> str:
    return f"\n\n`{report['command']}`, commit {report['commit']}, {report['device']}."


def comparison(name: str) -> str:
    report = read(name)
    table = report["summary"]["table"]
    seeds = len(report["summary"]["seeds"])
    order = sorted(table, key=lambda m: -table[m]["accuracy"]["mean"]["mean"])
    body = []
    for method in order:
        row = table[method]
        cell = row["accuracy"]
        mean = per_cent(cell["mean"]["mean"])
        if seeds > 1:
            mean += f" ± {per_cent(cell['mean']['std'])}"
        body.append(
            [
                method,
                mean,
                *(per_cent(cell[k]["mean"]) for k in ("std", "bottom5", "top5")),
                "–" if method == "local" else f"{row['better_off']} / {len(row['gain'])}",
                megabytes(row["bytes"]["up"]),
                megabytes(row["bytes"]["down"]),
                f"{row['seconds']:.1f}",
            ]
        )
    header = [
        "method",
        "mean %",
        "std",
        "bottom 5 %",
        "top 5 %",
        "better off",
        "MB up",
        "MB down",
        "s",
    ]
    return rows(header, body) + made_by(report)


def speed(name: str) -> str:
    report = read(name)
    body = [
        [
            f"{r['model']}, {r['clients']} clients",
            r["engine"],
            f"{r['loop_seconds']:.2f}",
            f"{r['seconds']:.2f}",
            f"**{r['ratio']:.1f}×**",
        ]
        for r in report["rows"]
    ]
    header = ["work", "engine", "loop, s", "FedTailor, s", "ratio"]
    return rows(header, body) + made_by(report)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_shown(v)}" for k, v in value.items())
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)


def _mean(values: list[Any]) -> Any:
    if isinstance(values[0], bool):
        return f"{sum(values)} of {len(values)}"
    if isinstance(values[0], dict):
        return {k: _mean([v[k] for v in values]) for k in values[0]}
    return sum(values) / len(values)


def claims(name: str) -> str:
    report = read(name)
    body = []
    for claim in report["claims"].values():
        runs = list(claim["seeds"].values())
        numbers = [
            f"{key} {_shown(_mean([run[key] for run in runs]))}"
            for key in runs[0]
            if key not in ("holds", "seconds")
        ]
        held = f"**{claim['holds']} of {claim['of']}**"
        body.append([claim["claim"].splitlines()[0], held, "; ".join(numbers)])
    return rows(["claim", "holds in", "means over seeds"], body) + made_by(report)


TABLES: dict[str, Callable[[str], str]] = {
    "comparison": comparison,
    "speed": speed,
    "claims": claims,
}
MARK = re.compile(r"(<!-- table: (\w+) ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    return MARK.sub(lambda m: f"{m[1]}{TABLES[m[2]](m[3])}\n{m[4]}", text)


def main() -> None:
    stale = []
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        if filled(text) != text:
            stale.append(page)
            if "--check" not in sys.argv:
                path.write_text(filled(text), encoding="utf-8")
    if stale:
        print("not up to date:" if "--check" in sys.argv else "written:", ", ".join(stale))
    sys.exit(1 if stale and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
