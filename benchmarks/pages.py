"""Writes the list of methods with their papers and deviations into docs/faithful.md.

python benchmarks/pages.py            writes it
python benchmarks/pages.py --check    exits with 1 if it is not what the docstrings say
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fedtailor.methods import KINDS
from fedtailor.methods.describe import page

PATH = Path(__file__).resolve().parent.parent / "docs" / "faithful.md"
MARK = re.compile(r"(<!-- pages -->\n).*?(<!-- end -->)", re.DOTALL)


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
                "",
            ]
    return "\n".join(lines)


def main() -> None:
    text = PATH.read_text(encoding="utf-8")
    made = MARK.sub(lambda m: f"{m[1]}{listing()}{m[2]}", text)
    if made != text and "--check" not in sys.argv:
        PATH.write_text(made, encoding="utf-8")
    sys.exit(1 if made != text and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
