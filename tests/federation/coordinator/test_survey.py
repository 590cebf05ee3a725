"""Preprocessing from what sites tell: equal to a simulation's, and clear where they differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

from flwr.app import Context, RecordDict

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.datasets.encoding.columns import Categorical, ColumnSums, Numeric
from fedtailor.federation.coordinator.app import server_app
from fedtailor.federation.coordinator.federation_file import find_plan, read_federation
from fedtailor.federation.coordinator.store import read_lines
from fedtailor.federation.coordinator.survey import SurveyedSite, agree
from fedtailor.federation.protocol.survey import SiteSurvey, ToldColumn
from fedtailor.federation.site.app import make_client_app
from fedtailor.federation.site.settings import read_settings
from fedtailor.federation.site.site import Site
from fedtailor.results.config import make_config
from fedtailor.results.storage import load_tensors
from fedtailor.runs.data import load_run_data
from tests.federation.local_grid import LocalGrid
from tests.federation.site.test_local_data import COLUMNS, write_sites
from tests.federation.trial import Trial, distance

SHARE = ["scores", "baseline", "columns"]
ALIKE = {"classification": ("ill", "1"), "survival": ("died", "0")}  # column and value


class SurveyTrial(Trial):
    """Three sites with tables; nobody has agreed on anything before they are asked."""

    def __init__(
        self, root: Path, task: str, normalise: str, *, alike: bool = False, **table: Any
    ) -> None:
        write_sites(root / "data")
        if alike:  # all rows of the second site
            path = root / "data" / "site-1" / "rows.csv"
            header, *rows = [line.split(",") for line in path.read_text().splitlines()]
            column, value = ALIKE[task]
            for row in rows:
                row[header.index(column)] = value
            path.write_text("".join(",".join(row) + "\n" for row in [header, *rows]))
        more = COLUMNS[task] | {"normalise": normalise}
        rules = {"survey": True, "wait": 0.5, "join": 5} | table
        super().__init__(root, "fedavg", table=rules, **more)
        (root / "preprocessing.json").unlink()
        self.columns = COLUMNS[task]
        for i in range(3):
            self.write_own(i)

    def write_own(self, i: int, **more: Any) -> Path:
        own: dict[str, Any] = {"share": SHARE, "min_category": 1, "min_rows": 1}
        return self.write_site(i, data=f"data/site-{i}/rows.csv", **self.columns, **own | more)

    def play(self, *, survey: bool) -> Path:
        sites: dict[Any, Site] = {}

        def answer(path: Any, packet: Any) -> Any:
            if path not in sites:
                sites[path] = Site(read_settings(path))
            return sites[path].answer(packet)

        nodes = {100 + i: {"site": str(path)} for i, path in enumerate(self.sites)}
        config = {"federation": str(self.federation), "survey": survey}
        server_app(
            LocalGrid(make_client_app(answer), nodes), Context(1, 1, {}, RecordDict(), config)
        )
        return self.root / "coordinator" / "trial"

    def said(self) -> list[tuple[str, str]]:
        lines = read_lines(self.root / "coordinator" / "trial" / "events.jsonl")
        told = [(e["site"], [e["event"], e.get("detail")]) for e in lines]
        return [(who, ": ".join(filter(None, what))) for who, what in told]


@pytest.mark.parametrize("normalise", ["federated", "own", "pooled"])
@pytest.mark.parametrize("task", COLUMNS)
def test_surveyed_sites_equal_the_simulation(
    task: str, normalise: str, tmp_path: Path, float64: None
) -> None:
    trial = SurveyTrial(tmp_path, task, normalise)
    trial.play(survey=True)
    found = json.loads((tmp_path / "preprocessing.json").read_text())
    theirs = trial.world.encoder.without_clients().to_json()
    if normalise == "federated":
        assert found == theirs  # to the last bit
    assert [c["name"] for c in found["columns"]] == [c["name"] for c in theirs["columns"]]
    folder = trial.play(survey=False)
    latest = json.loads((folder / "latest.json").read_text())
    assert latest["round"] == 2
    sim = trial.simulate()
    server = tree.unflatten(load_tensors(folder / latest["file"]))
    assert distance(server, sim.server) <= (1e-9 if normalise != "pooled" else 1e-6)
    for cid, model in sim.models():
        path = tmp_path / f"site-{cid}" / "federations" / "trial" / "models"
        kept = load_tensors(path / f"site-{cid}.safetensors")
        assert distance(tree.unflatten(kept), model) <= (1e-9 if normalise != "pooled" else 1e-6)


@pytest.mark.parametrize("task", ALIKE)
def test_a_site_where_all_are_alike_learns_what_others_know(
    task: str, tmp_path: Path, float64: None
) -> None:
    trial = SurveyTrial(tmp_path, task, "federated", alike=True)
    trial.play(survey=True)
    folder = trial.play(survey=False)
    rounds = [line for line in read_lines(folder / "history.jsonl") if "taken" in line]
    assert [line["taken"] for line in rounds] == [[0, 1, 2]] * 2
    latest = json.loads((folder / "latest.json").read_text())
    server = tree.unflatten(load_tensors(folder / latest["file"]))
    assert distance(server, trial.simulate().server) <= 1e-9


def test_before_the_survey_there_is_no_plan(tmp_path: Path) -> None:
    trial = SurveyTrial(tmp_path, "classification", "federated")
    for read in (read_federation, find_plan):
        with pytest.raises(BadInput, match="have not told their columns yet: say fedtailor fed"):
            read(trial.federation)
    trial.play(survey=True)
    assert read_federation(trial.federation).plan.encoder["normalise"] == "federated"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"share": ["scores"]}, "the site tells no sums and categories of its columns"),
        ({"max_epsilon": 3}, "sums of columns leave without noise"),
        ({"federations": ["other"]}, "takes part in other alone"),
        ({"data": "data/nowhere.csv"}, "its data cannot be used: the site's log says why"),
    ],
)
def test_a_site_may_refuse_and_is_named(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    trial = SurveyTrial(tmp_path, "classification", "federated")
    path = trial.write_own(1)
    text = path.read_text().splitlines()
    kept = [line for line in text if line.partition(" =")[0] not in change]
    path.write_text("\n".join([*kept, *(f"{k} = {json.dumps(v)}" for k, v in change.items())]))
    trial.play(survey=True)
    lines = [line for line in trial.said() if line[0] == "site-1"]
    assert len(lines) == 1 and lines[0][1].startswith("told no columns") and why in lines[0][1]
    assert (tmp_path / "preprocessing.json").exists()  # two of three are enough


def test_too_few_that_tell_leave_nothing_behind(tmp_path: Path) -> None:
    trial = SurveyTrial(tmp_path, "classification", "federated", min_sites=3)
    trial.write_own(2, share=[])
    trial.play(survey=True)
    assert not (tmp_path / "preprocessing.json").exists()
    who, what = trial.said()[-1]
    assert who == "all" and "2 of 3 sites told their columns, 3 must: site-2: columns: " in what


def test_a_federation_that_has_begun_is_not_asked_again(tmp_path: Path) -> None:
    trial = SurveyTrial(tmp_path, "classification", "federated")
    trial.play(survey=True)
    trial.play(survey=False)
    before = (tmp_path / "preprocessing.json").read_text()
    trial.play(survey=True)
    assert trial.said()[-1][1] == "stopped: 'trial' has begun: another preprocessing needs a new id"
    assert (tmp_path / "preprocessing.json").read_text() == before


def test_what_is_told_counts_as_an_answer_and_not_after_joining(tmp_path: Path) -> None:
    trial = SurveyTrial(tmp_path, "classification", "federated")
    trial.write_own(0, max_answers=1)
    trial.play(survey=True)
    trial.play(survey=True)
    why = [what for who, what in trial.said() if who == "site-0" and "told no" in what]
    assert len(why) == 1 and "the site answers 1 times in all (max_answers)" in why[0]


def test_noise_and_a_survey_do_not_go_together(tmp_path: Path) -> None:
    from fedtailor.federation.coordinator.federation_file import read_survey_file

    trial = SurveyTrial(tmp_path, "classification", "federated")
    text = trial.federation.read_text()
    trial.federation.write_text("dp_clip = 1.0\ndp_noise = 1.0\n" + text)
    with pytest.raises(BadInput, match="dp_noise is 1, but what sites tell of their columns has"):
        read_survey_file(trial.federation)


# --- sites whose columns differ ---


def numbers(name: str, rows: int = 20, total: float = 40.0, **more: Any) -> ToldColumn:
    return ToldColumn(name, "number", ColumnSums(rows, total, 5.0), **more)


def site(name: str, *columns: ToldColumn, **more: Any) -> SurveyedSite:
    told = {"classes": ("0", "1"), "label": "ill", "columns": columns} | more
    return SurveyedSite(name, SiteSurvey("table", "classification")._replace(**told))


def test_a_site_that_lacks_a_column_is_named_and_the_column_stays() -> None:
    age, ward = numbers("age"), ToldColumn("ward", "category", values=("a", "b"))
    found = agree([site("north", age, ward), site("south", ward), site("east", age, ward)], "own")
    assert [c.name for c in found.encoder.columns] == ["age", "ward"]
    assert found.lines == [
        ("south", "lacks column 'age' (number), which most have: it cannot join until its table "
         "has it"),
    ]  # fmt: skip


def test_a_column_that_few_have_is_left_out_and_said() -> None:
    age, own = numbers("age"), numbers("own")
    found = agree([site("north", age, own), site("south", age)], "own")
    assert [c.name for c in found.encoder.columns] == ["age"]
    line = "column 'own' is left out: no more than north (number) have it"
    assert found.lines == [("all", line)]


def test_a_column_of_another_kind_is_named_with_the_cure() -> None:
    code = ToldColumn("code", "category", values=("1", "2"))
    found = agree(
        [site("north", numbers("code")), site("south", code), site("east", numbers("code"))], "own"
    )
    assert found.lines == [
        ("south", "has column 'code' as category, most as number: say types = \"code=number\" in "
         "its site file"),
    ]  # fmt: skip
    assert isinstance(found.encoder.columns[0], Numeric)


def test_an_empty_column_is_of_any_kind_and_categories_are_joined() -> None:
    one = ToldColumn("ward", "category", values=("b", "c"))
    two = ToldColumn("ward", "category", values=("a",))
    found = agree([site("n", one), site("s", ToldColumn("ward", "empty")), site("e", two)], "own")
    assert found.encoder.columns == (Categorical("ward", ("a", "b", "c")),)
    assert found.lines == []


def test_words_at_one_site_are_read_so_everywhere() -> None:
    found = agree([site("n", numbers("crp")), site("s", numbers("crp", reads="words"))], "pooled")
    column = found.encoder.columns[0]
    assert isinstance(column, Numeric)
    assert (column.reads, column.shift) == ("words", 2.0)


def test_sites_that_learn_other_things() -> None:
    classes, time = site("a", numbers("x")), site("b", numbers("x"), task="survival", classes=())
    with pytest.raises(BadInput, match=r"no data in common .a: table for classification; b: table"):
        agree([classes, time], "own")
    found = agree([classes, time, site("c", numbers("x"))], "own")
    assert found.lines[0][0] == "b" and "it cannot join as it is" in found.lines[0][1]


def test_images_of_most_sites_and_their_range() -> None:
    def images(name: str, *shape: int, levels: Any = None) -> SurveyedSite:
        told = SiteSurvey("image", "classification", ("0", "1"), shape=shape, levels=levels)
        return SurveyedSite(name, told)

    found = agree(
        [images("a", 1, 8, 8, levels=(0.0, 900.0)), images("b", 1, 8, 8, levels=(5.0, 4000.0))],
        "own",
    )
    assert found.encoder.form.shape == (1, 8, 8) and found.encoder.levels == (0.0, 4000.0)
    found = agree([images("a", 1, 8, 8), images("b", 1, 9, 8), images("c", 1, 8, 8)], "own")
    assert found.lines[0][0] == "b" and "images of 1 × 9 × 8" in found.lines[0][1]


def test_a_median_cannot_be_had_from_sums() -> None:
    with pytest.raises(BadInput, match="sums tell no median"):
        agree([site("a", numbers("x", gap="median"))], "federated")
    own = agree([site("a", numbers("x", gap="median"))], "own").encoder.columns[0]
    assert isinstance(own, Numeric) and own.gap == "median"


def test_the_words_of_texts_are_those_of_a_simulation(tmp_path: Path) -> None:
    for name, words in (("a", "fever cough fever"), ("b", "rash cough itch")):
        (tmp_path / "d" / name).mkdir(parents=True)
        rows = "".join(f"{words},{row % 2}\n" for row in range(24))
        (tmp_path / "d" / name / "rows.csv").write_text("note,ill\n" + rows)
    given = {"data": str(tmp_path / "d"), "label": "ill", "text_column": "note"}
    world = load_run_data(make_config("local", given, {}))
    surveys = []
    for name in "ab":
        path = tmp_path / f"{name}.toml"
        path.write_text(
            f'client = {"ab".index(name)}\nname = "{name}"\ndata = "d/{name}/rows.csv"\n'
            'label = "ill"\ntext_column = "note"\nmin_category = 1\n'
        )
        from fedtailor.federation.site.local_data import survey_site

        surveys.append(SurveyedSite(name, survey_site(read_settings(path))))
    assert agree(surveys, "own").encoder.to_json() == world.encoder.without_clients().to_json()


def test_the_others_go_on_without_a_site_that_lacks_an_agreed_column(tmp_path: Path) -> None:
    trial = SurveyTrial(tmp_path, "classification", "federated")
    path = tmp_path / "data" / "site-1" / "rows.csv"
    cut = [row.partition(",")[2] for row in path.read_text().splitlines()]  # without `dose`
    path.write_text("\n".join(cut) + "\n")
    trial.play(survey=True)
    why = "lacks column 'dose' (number), which most have: it cannot join until its table has it"
    assert ("site-1", f"columns differ: {why}") in trial.said()
    folder = trial.play(survey=False)
    rounds = [line for line in read_lines(folder / "history.jsonl") if "taken" in line]
    assert [line["taken"] for line in rounds] == [[0, 2]] * 2
    said = "its table lacks 'dose', which the federation agreed on: add it, with empty cells"
    assert all(said in line["failed"]["site-1"] for line in rounds)
