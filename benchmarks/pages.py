"""Writes what the docs quote: methods with their papers and deviations, and the examples' code.

python benchmarks/pages.py            writes it
python benchmarks/pages.py --check    exits with 1 if a page is not what its sources say
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fedtailor.methods import KINDS, Factory
from fedtailor.methods.check import tasks_of
from fedtailor.methods.describe import page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [DOCS / "faithful.md", DOCS / "own-method.md", *sorted((DOCS / "howto").glob("*.md"))]
METHODS = re.compile(r"(<!-- pages -->\n).*?(<!-- end -->)", re.DOTALL)
CODE = re.compile(r"(<!-- code: ([\w/.]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def refused(factory: Factory) -> list[str]:
    """The tasks that a method does not learn, and why."""
    reasons: dict[str, list[str]] = {}
    for task, why in tasks_of(factory).items():
        reasons.setdefault(why, []).append(task)
    return [f"- Not for {' or '.join(t)}: {why}." for why, t in reasons.items() if why]


def listing() -> str:
    lines = []
    for kind, methods in KINDS.items():
        lines += [f"## {kind.capitalize()}", ""]
        for name, factory in methods.items():
            found = page(factory)
            lines += [
                f"**{name}**: {found.title}",
                f"- Paper: {found.reference}",
                f"- Deviations: {found.deviations or 'none.'}",
                *refused(factory),
                "",
            ]
    return "\n".join(lines)


def quoted(path: str) -> str:
    return f"```python\n{(ROOT / path).read_text(encoding='utf-8').rstrip()}\n```\n"


def made(text: str) -> str:
    text = METHODS.sub(lambda m: f"{m[1]}{listing()}{m[2]}", text)
    return CODE.sub(lambda m: f"{m[1]}{quoted(m[2])}{m[3]}", text)


def main() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in PAGES}
    stale = {path: new for path, old in texts.items() if (new := made(old)) != old}
    if "--check" in sys.argv:
        sys.exit(", ".join(path.name for path in stale) or None)
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
