"""The declared experiments can all be run; a slip in a declaration is found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.reproduce.declared.declare import find_experiments, read_paper, read_papers, shipped
from fedtailor.reproduce.playing.cells import Scale, make_cells

FILES = sorted(shipped().glob("*.toml"))
TINY = Path(__file__).parents[1] / "papers" / "tiny.toml"


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_every_declared_cell_is_a_run(path: Path) -> None:
    paper = read_paper(path)
    for experiment in paper.experiments:
        assert make_cells(experiment), experiment.key
        if experiment.small:
            assert make_cells(experiment, Scale(small=True)), experiment.key
    used = {c.name for e in paper.experiments for c in e.chosen}
    assert used == set(paper.choices), "a choice that no experiment uses"


SLIPS = [
    ('venue = "Nowhere 2020"', "", "tiny.toml, paper: venue is missing"),
    ("batch = 50", "bach = 50", "unknown setting 'bach': did you mean 'batch'"),
    ("batch = 50", "rounds = 50", "setting 'rounds' is not for settings"),
    ('reason = "the paper does not say"', "", "choices 'rate': reason is missing"),
    ('choices = ["rate"]', 'choices = ["rat"]', "unknown choice 'rat': did you mean 'rate'"),
    ('metric = "last"', 'metric = "lasst"', "unknown metric 'lasst': did you mean 'last'"),
    ("rounds = 2", "rounds = 0", "experiment 'table1': rounds is 0: give a whole number"),
    ("rounds = 2", 'rounds = "2"', "rounds is '2': give a whole number"),
    ("rounds = 2", "rouns = 2", "unknown setting 'rouns': did you mean 'rounds'"),
    ('name = "table1"', 'name = "../table1"', "the name is part of a path"),
    ('name = "fig1"', 'name = "table1"', "experiment 'table1' is there twice"),
    ('name = "two classes"', 'name = "iid"', "column 'iid' is there twice"),
    ('name = "Ditto"', 'name = "FedAvg"', "row 'FedAvg' is there twice"),
    ('paper = ["40.00", "-"]', 'paper = ["40.00"]', "row 'Ditto': paper has 1 cells for 2 columns"),
    ('paper = ["40.00", "-"]', 'paper = ["4o", "-"]', "rows 'Ditto': paper cell '4o'"),
    ('paper = ["40.00", "-"]', 'paper = [40.0, "-"]', "paper is 40.0: give a list, each text"),
    ('columns = ["iid"]', 'columns = ["idd"]', "unknown column 'idd': did you mean 'iid'"),
    ('shows = "curves"', 'shows = "curve"', "did you mean 'curves'"),
    ('shows = "curves"', 'shows = "curves"\nranks = "cols"', "did you mean 'columns'"),
    ("x = 3\n", "", "column '3 clients': x is missing"),
    ('x = "clients"', "", "experiment 'fig2': x is missing"),
    ("[paper]", "[paper", "is not valid TOML"),
]


@pytest.mark.parametrize(("right", "wrong", "said"), SLIPS, ids=[s[2][-30:] for s in SLIPS])
def test_a_slip_is_named(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    text = TINY.read_text(encoding="utf-8")
    assert right in text
    path = tmp_path / "tiny.toml"
    path.write_text(text.replace(right, wrong, 1), encoding="utf-8")
    with pytest.raises(BadInput) as error:
        read_paper(path)
    assert said in str(error.value)


def test_experiments_by_paper_or_name() -> None:
    papers = read_papers(TINY.parent)
    every = [e.key for e in papers["tiny"].experiments]
    assert [e.key for e in find_experiments(["tiny"], papers)] == every
    assert [e.key for e in find_experiments(["tiny/fig1", "tiny/fig1"], papers)] == ["tiny/fig1"]
    with pytest.raises(BadInput, match="did you mean 'tiny/fig1'"):
        find_experiments(["tiny/fig11"], papers)


def test_a_folder_without_declarations(tmp_path: Path) -> None:
    (tmp_path / "table1.json").touch()
    with pytest.raises(BadInput, match="no TOML file") as error:
        read_papers(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_figures_that_are_no_experiments_say_so() -> None:
    with pytest.raises(BadInput, match=r"^fedfomo/fig8 cannot be run: a drawing of how"):
        find_experiments(["fedfomo/fig8"], read_papers())
    for paper in read_papers().values():
        assert not {e.name for e in paper.experiments} & paper.not_run.keys()
