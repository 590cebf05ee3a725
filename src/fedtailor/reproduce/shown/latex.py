"""An experiment's numbers as LaTeX tables that fit on a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fedtailor.reproduce.shown.outcome import taus
from fedtailor.reproduce.shown.writing import (
    Cell,
    Outcome,
    by_place,
    ends_of_training,
    is_partial,
    ours,
    paper_text,
    ranks_of,
    two_digits,
)

# the page of LaTeX's article class at 10 pt, which is the narrowest that is usual
WIDTH = 345.0  # points
LINES = 42  # of \small, beside the caption
LETTER, GAP = 4.9, 12.0  # points: a letter of \small on the average, the space around a column
HEAD = 6  # lines of a tabular that are not its rows: heads, rules, order, the space above
_SIGNS = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "<": "$<$", ">": "$>$", "|": "$|$", "\n": " ", "\t": " ",
    "[": "{[}", "*": "{*}",  # after the end of a row they would belong to it
    "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "–": "--", "—": "---", "−": "$-$",
    "≤": r"$\le$", "≥": r"$\ge$", "≈": r"$\approx$", "≠": r"$\ne$", "→": r"$\to$",
    "↗": r"$\nearrow$",
    "∞": r"$\infty$", "∈": r"$\in$", "√": r"$\surd$", "…": r"\ldots{}", "°": r"$^\circ$",
    "‘": "`", "’": "'", "“": "``", "”": "''", "\u00a0": "~",
    "²": "$^2$", "³": "$^3$", "₀": "$_0$", "₁": "$_1$", "₂": "$_2$", "₃": "$_3$",
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$",
    "ε": r"$\varepsilon$", "ζ": r"$\zeta$", "η": r"$\eta$", "θ": r"$\theta$",
    "κ": r"$\kappa$", "λ": r"$\lambda$", "μ": r"$\mu$", "µ": r"$\mu$", "ν": r"$\nu$",
    "ξ": r"$\xi$", "π": r"$\pi$", "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$",
    "φ": r"$\varphi$", "χ": r"$\chi$", "ψ": r"$\psi$", "ω": r"$\omega$",
    "Γ": r"$\Gamma$", "Δ": r"$\Delta$", "Θ": r"$\Theta$", "Λ": r"$\Lambda$", "Σ": r"$\Sigma$",
    "Φ": r"$\Phi$", "Ψ": r"$\Psi$", "Ω": r"$\Omega$",
}  # fmt: skip
# letters with accents that LaTeX makes of any font
_ACCENTED = frozenset(
    "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿß"
    "ĀāĂăĆćČčĎďĒēĚěĞğİıŁłŃńŇňŌōŐőŒœŔŕŘřŚśŞşŠšŤťŪūŮůŰűŸŹźŻżŽž"
)


def _sign(sign: str) -> str:
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign in _ACCENTED or " " <= sign <= "~":
        return sign
    return f"(U+{ord(sign):04X})"  # it could not be set, and one sign must not stop the whole


def latex(text: str) -> str:
    """Text as LaTeX shows it, whatever it holds."""
    return "".join(map(_sign, text))


def _numbers(text: str) -> str:
    return latex(text.replace("-", "−"))


def _plain(cell: Cell | None, wanted: int) -> str:
    return "–" if cell is None else ours(cell, wanted)


def _ours(cell: Cell | None, wanted: int) -> str:
    text = _numbers(_plain(cell, wanted))
    if cell and cell["status"] != "done":
        return rf"\emph{{{text}}}"
    return text + (r"$^{\dagger}$" if cell and cell["outside"] else "")


def _order(outcome: Outcome, name: str) -> str:
    found, ranks = outcome["tau"][name], ranks_of(outcome)
    return f"{two_digits(found['tau'])} ({found[ranks]} {ranks})"


def _orders(outcome: Outcome, columns: Sequence[str]) -> list[str]:
    """What stands below columns: nothing where there is no order of rows."""
    if ranks_of(outcome) != "rows" or all(outcome["tau"][c]["tau"] is None for c in columns):
        return []
    return [_order(outcome, c) for c in columns]


def _breadth(outcome: Outcome, column: str) -> float:
    """Points that ours and the paper's of a column need, side by side."""
    cells, wanted = by_place(outcome), outcome["seeds"]
    here = [cells.get((row, column)) for row in outcome["rows"]]
    mine = max(len(_plain(cell, wanted)) for cell in here)
    printed = max(len(paper_text(cell)) for cell in here)
    pair = LETTER * (max(mine, len("ours")) + max(printed, len("paper"))) + GAP
    around = LETTER * max(map(len, [column, *_orders(outcome, [column])]))
    return max(pair, around) + GAP


def _packed(
    things: Iterable[str], size: Callable[[str], float], room: float, first: float = 0.0
) -> list[list[str]]:
    """Things in groups that have room; `first` is what every group needs beside them."""
    groups: list[list[str]] = []
    used = 0.0
    for thing in things:
        needed = size(thing)
        if not groups or used + needed > room:
            groups.append([])
            used = first
        groups[-1].append(thing)
        used += needed
    return groups


def side_by_side(outcome: Outcome) -> list[list[str]]:
    """Columns of the experiment that have room beside each other."""
    names = LETTER * max(len(row) for row in [*outcome["rows"], "Kendall's t"]) + GAP
    return _packed(outcome["columns"], lambda c: _breadth(outcome, c), WIDTH, names)


def _tabular(outcome: Outcome, columns: Sequence[str]) -> list[str]:
    cells, wanted = by_place(outcome), outcome["seeds"]
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
        here = [cells.get((row, c)) for c in columns]
        pairs = [f"{_ours(cell, wanted)} & {_numbers(paper_text(cell))}" for cell in here]
        lines.append(rf"{latex(row)} & {' & '.join(pairs)} \\")
    if orders := _orders(outcome, columns):
        each = [rf"\multicolumn{{2}}{{c}}{{{_numbers(text)}}}" for text in orders]
        lines += [r"\midrule", rf"Kendall's $\tau$ & {' & '.join(each)} \\"]
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def caption(outcome: Outcome, more: str = "") -> str:
    """What stands above a table: title, paper, whatever is not as in the paper, and the signs."""
    paper, cells = outcome["paper"], outcome["cells"]
    title = f"{outcome['title']} ({paper['name']}, {paper['venue']}), ours and the paper's"
    words = [latex(title) + more]
    if outcome["scale"]:
        words.append(latex(f"NOT AS IN THE PAPER: {outcome['scale']}"))
    if any(map(is_partial, cells)):
        words.append(
            r"\emph{In italics}: over some of the seeds only, and counted so by Kendall's $\tau$"
        )
    if any(cell["outside"] for cell in cells):
        words.append(r"$\dagger$: more than two of the paper's standard deviations apart")
    if ends := ends_of_training(outcome):
        words.append(latex(ends[0].upper() + ends[1:]))
    if ranks_of(outcome) == "columns":
        ranked = [n for n, found in outcome["tau"].items() if found["tau"] is not None]
        each = "; ".join(f"{latex(n)} {_numbers(_order(outcome, n))}" for n in ranked)
        words += [rf"Kendall's $\tau$ of the columns' order: {each}"] if each else []
    return ". ".join(words) + "."


def _upright(outcome: Outcome) -> Outcome:
    """An experiment of one row, as one column: thirteen numbers side by side have no room."""
    if len(outcome["rows"]) > 1:
        return outcome
    cells = [c | {"row": c["column"], "column": c["row"]} for c in outcome["cells"]]
    turned = {"rows": outcome["columns"], "columns": outcome["rows"], "cells": cells}
    ranked = cells if ranks_of(outcome) == "columns" else []
    return outcome | turned | {"ranks": "rows", "tau": taus(ranked, outcome["rows"], "rows")}


def _floats(outcome: Outcome) -> list[list[list[str]]]:
    """Groups of columns, as many as have room below each other on a page."""
    groups = side_by_side(outcome)
    lines = len(outcome["rows"]) + HEAD
    at_once = max(1, LINES // lines)
    return [groups[i : i + at_once] for i in range(0, len(groups), at_once)]


def as_latex(outcome: Outcome) -> str:
    """Table environments that need booktabs: as many columns at a time as fit on a page."""
    outcome = _upright(outcome)
    lines = [
        rf"% FedTailor {outcome['version']}: {outcome['command']}".replace("\n", " "),
        r"% needs \usepackage{booktabs}",
    ]
    for page, groups in enumerate(_floats(outcome)):
        more = " (continued)" if page else ""
        lines += [
            r"\begin{table}",
            r"\centering\small",
            *([r"\addtocounter{table}{-1}"] if page else []),
            rf"\caption{{{caption(outcome, more)}}}",
        ]
        if not page:
            lines.append(rf"\label{{tab:{outcome['experiment'].replace('/', '-')}}}")
        for group in groups:
            lines += [r"\par\medskip", *_tabular(outcome, group)]
        lines.append(r"\end{table}")
    return "\n".join(lines) + "\n"
