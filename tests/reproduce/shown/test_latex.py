"""LaTeX tables fit on a page and can be set, whatever names hold."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedtailor.reproduce.declared.declare import read_papers
from fedtailor.reproduce.shown.latex import _ACCENTED, _SIGNS, as_latex, latex, side_by_side
from tests.reproduce.shown.outcomelab import a_cell, an_outcome, as_printed, half

WIDE = ("fedala/table2", "plgu/table2", "pmixfed/table1", "fedfomo/table4")
ODD = ["[odd]", "*odd", r"<b> & $x$ #1 ~^\\ | {} 50 %", "日本 ★", "π ≈ 3 …", 'a\n\nb "c"']


def printed(key: str) -> dict:
    return as_printed(
        next(e for p in read_papers().values() for e in p.experiments if e.key == key)
    )


def test_every_sign_is_one_that_can_be_set() -> None:
    assert latex("50 % α_1 ≤ ∞") == r"50 \% $\alpha$\_1 $\le$ $\infty$"
    assert latex("Çağrı") == "Çağrı"
    assert latex("★") == "(U+2605)"
    for text in (*_SIGNS.values(), latex("日本\u200b")):
        assert text.isascii()


def test_no_name_of_the_papers_is_changed() -> None:
    for paper in read_papers().values():
        for e in paper.experiments:
            names = [e.title, *(r.name for r in e.rows), *(c.name for c in e.columns)]
            assert "(U+" not in latex("".join(names)), e.key


def test_columns_stand_side_by_side_as_long_as_there_is_room() -> None:
    short = an_outcome([a_cell(r, f"c{i}") for r in "AB" for i in range(5)])
    assert [len(g) for g in side_by_side(short)] == [2, 2, 1]
    grouped = an_outcome(
        [a_cell(r, f"c{i}", low=88.88, high=88.88) for r in "AB" for i in range(3)]
    )
    assert [len(g) for g in side_by_side(grouped)] == [1, 1, 1]
    assert [c for group in side_by_side(grouped) for c in group] == grouped["columns"]


def test_a_long_table_goes_on_on_the_next_page() -> None:
    text = as_latex(printed("fedala/table2"))
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    assert text.count("(continued)") == text.count(r"\addtocounter{table}{-1}") == 1
    assert text.count(r"\label{tab:fedala-table2}") == 1


def test_one_row_is_shown_as_one_column() -> None:
    text = as_latex(printed("fedala/table1"))
    assert text.count(r"\begin{tabular}") == 1
    assert r"s=5, p=1 & 93.20$\pm$0.05$^{\dagger}$ & 39.53 \\" in text


def test_a_mean_over_some_seeds_is_marked() -> None:
    text = as_latex(an_outcome([a_cell("A"), half("B"), half("C", mean=None, text="", seeds=[])]))
    assert r"\emph{93.20 (1 of 3 seeds)} &" in text
    assert r"\emph{not finished} &" in text
    assert "over some of the seeds only, and counted so by Kendall" in text
    assert "In italics" not in as_latex(an_outcome([a_cell("A"), a_cell("B")]))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not here")
def test_latex_sets_them_within_the_page(tmp_path: Path) -> None:
    tables = [as_latex(printed(key)) for key in WIDE]
    letters = " ".join(sorted(_ACCENTED))
    odd = an_outcome([a_cell(row, mean=-1.5) for row in ODD], title=f"{letters} {' '.join(ODD)}")
    begin = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    body = "\\clearpage\n".join([*tables, as_latex(odd)])
    (tmp_path / "all.tex").write_text(f"{begin}\n{body}\n" + r"\end{document}", encoding="utf-8")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=100)
    log = (tmp_path / "all.log").read_text(encoding="latin-1")
    assert done.returncode == 0, log[-2000:]
    assert not re.findall(r"Overfull|Float too large|not set up", log)


def test_the_order_of_columns_is_told_below_one_row_and_above_several() -> None:
    row = [a_cell("A", name, mean=mean) for name, mean in (("x", 90.0), ("y", 91.0))]
    for cell, mean in zip(row, (1.0, 2.0), strict=True):
        cell["paper"] = cell["paper"] | {"mean": mean}
    one = as_latex(an_outcome(row, ranks="columns"))
    assert r"Kendall's $\tau$ & \multicolumn{2}{c}{1.00 (2 rows)}" in one  # it stands upright
    other = [cell | {"row": "B", "mean": -cell["mean"]} for cell in row]
    several = as_latex(an_outcome([*row, *other], ranks="columns"))
    caption = next(line for line in several.splitlines() if line.startswith(r"\caption"))
    assert "columns' order: A 1.00 (2 columns); B " in caption
    assert r"Kendall's $\tau$ &" not in several
