"""An experiment's numbers as files: CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

Outcome = dict[str, Any]
Cell = dict[str, Any]

FIELDS = (
    "experiment", "row", "column", "x", "method", "metric", "unit", "status",
    "mean", "std", "low", "high", "seeds",
    "paper", "paper_mean", "paper_std", "paper_low", "paper_high",
    "difference", "outside", "scale", "reason",
)  # fmt: skip
SIGNS = {"above": "▲", "below": "▼", "within": "≈", "": ""}  # where colour cannot say it
AT_ONCE = 3  # columns of a LaTeX table side by side: more do not fit on a page
_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "±": r"$\pm$", "×": r"$\times$", "–": "--", "—": "---", "−": "$-$", "≤": r"$\le$",
    "≥": r"$\ge$", "→": r"$\to$", "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$",
    "δ": r"$\delta$", "ε": r"$\varepsilon$", "η": r"$\eta$", "λ": r"$\lambda$", "μ": r"$\mu$",
    "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$", "θ": r"$\theta$", "Δ": r"$\Delta$",
}  # fmt: skip


def number(value: float | None) -> str:
    """Two digits, as papers have it."""
    return "–" if value is None else f"{value:.2f}"


def shown(cell: dict[str, Any]) -> str:
    """Mean, standard deviation and groups of a cell: ours or the paper's."""
    text = number(cell["mean"])
    if cell.get("std") is not None:
        text += f"±{number(cell['std'])}"
    if cell.get("low") is not None:
        text += f" ({number(cell['low'])}/{number(cell['high'])})"
    return text


def signed(value: float | None) -> str:
    """A difference with its sign."""
    return "–" if value is None else f"{value:+.2f}"


def verdict(cell: Cell | None) -> str:
    """How a cell lies to the paper's: `above`, `below`, `within`, or nothing where that is open."""
    if cell is None or cell["outside"] is None:
        return ""
    if not cell["outside"]:
        return "within"
    return "above" if cell["difference"] > 0 else "below"


def by_place(outcome: Outcome) -> dict[tuple[str, str], Cell]:
    """Cells by row and column."""
    return {(c["row"], c["column"]): c for c in outcome["cells"]}


def as_csv(outcome: Outcome) -> str:
    """A line per cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
    writer.writeheader()
    for cell in outcome["cells"]:
        paper = cell["paper"] or {}
        line = {k: cell[k] for k in FIELDS if k in cell}
        line |= {f"paper_{k}": paper.get(k) for k in ("mean", "std", "low", "high")}
        line |= {"experiment": outcome["experiment"], "scale": outcome["scale"]}
        line |= {"seeds": len(cell["seeds"]), "paper": paper.get("text", "")}
        writer.writerow(line)
    return out.getvalue()


def latex(text: str) -> str:
    """Text as LaTeX shows it."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _ours(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    if cell["status"] != "done":
        return rf"\emph{{{latex(cell['status'])}}}"
    mark = r"$^{\dagger}$" if cell["outside"] else ""
    return latex(shown(cell)) + mark


def _paper(cell: Cell | None) -> str:
    return latex(cell["paper"]["text"]) if cell and cell["paper"] else "--"


def _tabular(outcome: Outcome, columns: Sequence[str]) -> list[str]:
    cells = by_place(outcome)
    heads = " & ".join(rf"\multicolumn{{2}}{{c}}{{{latex(c)}}}" for c in columns)
    rules = " ".join(rf"\cmidrule(lr){{{2 * i + 2}-{2 * i + 3}}}" for i in range(len(columns)))
    lines = [
        rf"\begin{{tabular}}{{l{'rr' * len(columns)}}}",
        r"\toprule",
        rf" & {heads} \\",
        rules,
        " & ".join(["", *(["ours & paper"] * len(columns))]) + r" \\",
        r"\midrule",
    ]
    for row in outcome["rows"]:
        pairs = [f"{_ours(cells.get((row, c)))} & {_paper(cells.get((row, c)))}" for c in columns]
        lines.append(rf"{latex(row)} & {' & '.join(pairs)} \\")
    taus = [outcome["tau"][c] for c in columns]
    if any(t["tau"] is not None for t in taus):
        each = [rf"\multicolumn{{2}}{{c}}{{{_order(t)}}}" for t in taus]
        lines += [r"\midrule", rf"Kendall's $\tau$ & {' & '.join(each)} \\"]
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _order(found: dict[str, Any]) -> str:
    known = "--" if found["tau"] is None else f"${number(found['tau'])}$"
    return f"{known} ({found['rows']} rows)"


def caption(outcome: Outcome) -> str:
    """What stands below a table: title, paper, and whatever is not as in the paper."""
    paper = outcome["paper"]
    words = [f"{outcome['title']} ({paper['name']}, {paper['venue']}), ours and the paper's"]
    if outcome["scale"]:
        words.append(f"NOT AS IN THE PAPER: {outcome['scale']}")
    return ". ".join(words)


def as_latex(outcome: Outcome) -> str:
    """A table environment that needs booktabs, a few columns of the experiment at a time."""
    columns = outcome["columns"]
    groups = [columns[i : i + AT_ONCE] for i in range(0, len(columns), AT_ONCE)]
    lines = [
        rf"% FedTailor {outcome['version']}: {outcome['command']}".replace("\n", " "),
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering\small",
        rf"\caption{{{latex(caption(outcome))}. "
        r"$\dagger$: more than two of the paper's standard deviations apart.}",
        rf"\label{{tab:{outcome['experiment'].replace('/', '-')}}}",
    ]
    for position, group in enumerate(groups):
        lines += ([r"\par\medskip"] if position else []) + _tabular(outcome, group)
    return "\n".join([*lines, r"\end{table}"]) + "\n"
