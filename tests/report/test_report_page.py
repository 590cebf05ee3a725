"""The page as a file: well-formed, on its own, safe from names that come from outside."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedtailor import report
from fedtailor.cli import main
from fedtailor.core.errors import BadInput
from fedtailor.report import write_report
from fedtailor.report.page import _headline, as_script
from fedtailor.results.folder import FAILED
from fedtailor.results.lock import lock_folder
from tests.report import synthetic

EVIL = [
    '</script><script>document.title="owned"</script>',
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "a&b\"c'd",
    "line\u2028separator",
    "{{ 7 * 7 }}",
    "client 6 (ward “B”, 東京)",
    "]]>",
]
VOID = {"meta", "input", "br", "img", "link", "hr"}


class Checker(HTMLParser):
    """Sees that every element that is opened is closed, in order, and collects what is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data


def parse(page: str) -> Checker:
    found = Checker()
    found.feed(page)
    found.close()
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page") / "compared"
    synthetic.make_comparison(folder, names=EVIL, seeds=2)
    return write_report([folder]).read_text(encoding="utf-8")


def test_it_is_well_formed(page: str) -> None:
    found = parse(page)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    links = [a["href"] for tag, a in found.tags if tag == "a"]
    assert links and all(str(link)[1:] in found.ids for link in links)
    for tag, attributes in found.tags:
        for name in ("aria-labelledby", "aria-describedby", "for"):
            for wanted in (attributes.get(name) or "").split():
                assert wanted in found.ids, f"{tag} {name}={wanted}"


def test_it_needs_nothing_from_outside(page: str) -> None:
    found = parse(page)
    addresses = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"'<)]*", page))
    # a name space is a name, not an address: nothing is fetched from it
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not [a for tag, a in found.tags if tag in ("link", "img", "iframe") or "src" in a]
    assert "@import" not in page and "url(" not in page
    assert "default-src 'none'" in page


def test_names_from_outside_stay_names(page: str) -> None:
    found = parse(page)
    assert len(found.scripts) == 3, "somebody's name became a script"
    numbers = json.loads(found.scripts[1])
    assert numbers["clients"] == EVIL
    assert "49" not in [row["label"] for row in numbers["methods"]]
    assert "onerror=alert" not in [name for _, a in found.tags for name in a]
    assert not [tag for tag, _ in found.tags if tag == "img"]


def test_method_names_are_escaped(tmp_path: Path) -> None:
    name = "x:<b>bold</b></script><script>"
    synthetic.make_run(tmp_path / "run", "fedala")
    path = tmp_path / "run" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"method": name}))
    found = parse(write_report([tmp_path / "run"]).read_text())
    assert len(found.scripts) == 3
    assert not [tag for tag, _ in found.tags if tag == "b"]
    assert json.loads(found.scripts[1])["methods"][0]["method"] == name


def test_script_data_holds_no_markup() -> None:
    text = as_script({"a": EVIL})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": EVIL}
    with pytest.raises(ValueError):
        as_script({"a": float("nan")})


def test_the_table_has_the_results(tmp_path: Path) -> None:
    folder = synthetic.make_comparison(tmp_path / "c", ("local", "fedavg"))
    page = write_report([folder]).read_text()
    for method in ("local", "fedavg"):
        result = json.loads((folder / "runs" / f"{method}-seed0" / "result.json").read_text())
        for key in ("mean", "bottom5", "std"):
            assert f"{100 * result['accuracy'][key]:.2f}" in page


def test_runs_without_counts_and_records_have_a_page(tmp_path: Path) -> None:
    folder = synthetic.make_run(tmp_path / "run", "fedavg")
    (folder / "confusion.safetensors").unlink()
    numbers = json.loads(parse(write_report([folder]).read_text()).scripts[1])
    assert numbers["class_counts"] is None
    assert numbers["confusion"] == [None]


def test_unfinished_runs_are_left_out_and_named(tmp_path: Path) -> None:
    folder = synthetic.make_comparison(tmp_path / "c", ("local", "fedavg", "fedala"))
    (folder / "runs" / "fedala-seed0" / "result.json").unlink()
    page = write_report([folder]).read_text()
    assert "Left out, since not finished: fedala-seed0." in page
    (folder / "runs" / "fedala-seed0" / FAILED).write_text('{"reason": "b <diverged>"}')
    page = write_report([folder]).read_text()
    assert "Left out, since not finished: fedala-seed0 (failed: b &lt;diverged&gt;)." in page


def test_what_was_not_begun_is_named(tmp_path: Path) -> None:
    """fedala was never begun, fedavg was with its first seed, ditto with one of its last two."""
    methods = ("local", "fedavg", "fedala", "ditto")
    folder = synthetic.make_comparison(tmp_path / "c", methods, seeds=3)
    for name in ("fedavg-seed1", "fedavg-seed2", "ditto-seed1"):
        shutil.rmtree(folder / "runs" / name)
    for seed in range(3):
        shutil.rmtree(folder / "runs" / f"fedala-seed{seed}")
    page = write_report([folder]).read_text()
    assert "Not run yet: fedavg (seeds 1, 2), fedala (3 seeds), ditto (seed 1)." in page
    assert f"To go on: fedtailor resume {folder}<" in page
    assert "mean ± standard deviation over 1 to 3 seeds, " in page
    assert "<dt>Seeds</dt><dd>1 to 3</dd>" in page
    assert "Whether federation helps cannot be judged" in page
    with lock_folder(folder):  # somebody goes on with it already
        page = write_report([folder]).read_text()
    assert "Not run yet" in page and "To go on" not in page


def test_seeds_of_a_comparison_may_begin_anywhere(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    for seed in (5, 6):
        synthetic.make_run(folder / "runs" / f"local-seed{seed}", "local", seed=seed)
    synthetic.make_run(folder / "runs" / "a.b-seed5", "a:b", seed=5)
    kept = {"methods": ["a:b"], "seeds": 2, "settings": {"seed": 5}}
    (folder / "comparison.json").write_text(json.dumps(kept))
    assert "Not run yet: a:b (seed 6)." in write_report([folder]).read_text()


def test_settings_that_differ_are_all_shown(tmp_path: Path) -> None:
    folders = []
    for i, rounds in enumerate((3, 2, 3)):
        folders.append(synthetic.make_run(tmp_path / str(i), synthetic.METHODS[i], rounds=rounds))
        path = folders[-1] / "result.json"
        kept = json.loads(path.read_text()) | {"participation": (0.07, 1.0, 0.5)[i]}
        path.write_text(json.dumps(kept))
    page = write_report(folders).read_text()
    assert "<dt>Rounds</dt><dd>2, 3</dd>" in page
    assert "<dt>Per round</dt><dd>7, 50, 100 % of clients</dd>" in page


def test_settings_with_many_values_are_cut_short(tmp_path: Path) -> None:
    folders = [synthetic.make_run(tmp_path / str(n), "fedavg", rounds=n) for n in range(1, 6)]
    page = write_report(folders).read_text()
    assert "<dt>Rounds</dt><dd>1 to 5</dd>" in page
    assert "<dt>Per round</dt><dd>100 % of clients</dd>" in page


def test_nothing_is_left_of_a_whole_comparison(page: str) -> None:
    assert "Not run yet" not in page and "To go on" not in page
    assert "mean ± standard deviation over 2 seeds, " in page


def _broken(what: str, tmp_path: Path) -> list[Path]:
    if what == "missing":
        return [tmp_path / "nowhere"]
    if what == "empty":
        return [tmp_path]
    run = synthetic.make_run(tmp_path / "run", "fedavg")
    if what == "unfinished":
        (run / "result.json").unlink()
    elif what == "not json":
        (run / "result.json").write_text("{")
    elif what == "another's":
        (run / "result.json").write_text(json.dumps({"site": "ward", "accuracy": 0.5}))
    elif what == "history":
        (run / "history.jsonl").write_text("[]\n")
    elif what == "counts":
        synthetic.save_file(
            {"class_counts": synthetic.np.ones((1, 3))}, run / "confusion.safetensors"
        )
        (run / "preprocessing.json").write_text('{"classes": ["one"]}')
    elif what == "records":
        (run / "records").mkdir()
        (run / "records" / "000001.safetensors").write_bytes(b"no")
    elif what == "others":
        other = synthetic.make_run(tmp_path / "other", "fedala", clients=5)
        return [run, other]
    return [run]


@pytest.mark.parametrize(
    "what, said",
    [
        ("missing", "is no folder"),
        ("empty", "holds no run"),
        ("unfinished", "fedtailor resume"),
        ("not json", "cannot be read"),
        ("another's", "no result of fedtailor run"),
        ("history", "history.jsonl"),
        ("counts", "does not fit"),
        ("records", "is broken"),
        ("others", "make a report of each"),
    ],
)
def test_bad_folders_are_told_in_one_line(what: str, said: str, tmp_path: Path) -> None:
    folders = _broken(what, tmp_path)
    with pytest.raises(BadInput, match=said) as error:
        write_report(folders)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("report.html*"))


def test_the_command_writes_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = synthetic.make_comparison(tmp_path / "c", ("local", "fedavg"))
    out = tmp_path / "page.html"
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder), "--out", str(out)])
    assert ended.value.code == 0
    assert str(out) in capsys.readouterr().out
    assert out.exists() and not (folder / "report.html").exists()
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["report"], "no folders"),
        (["report", "nowhere"], "'nowhere' is no folder"),
        (["report", "run", "--out", "gone/page.html"], "cannot be written"),
        (["report", "run", "--out", "."], "is a folder"),
        (["report", "run", "--out", "page.pdf"], "'page.pdf' ends with .pdf: name a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_arguments_end_with_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    synthetic.make_run(tmp_path / "run", "fedavg")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in error and error.count("\n") == 1
    assert not Path("page.pdf").exists()


def test_a_run_writes_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["run", "fedavg", "--clients=3", "--rounds=1", "--model=mlp", "--out=here", "--json"])
    assert ended.value.code == 0
    numbers = json.loads(parse(Path("here/report.html").read_text()).scripts[1])
    result = json.loads(Path("here/result.json").read_text())
    assert numbers["methods"][0]["score"]["mean"]["mean"] == result["accuracy"]["mean"]
    assert numbers["methods"][0]["per_client"] == list(result["per_client"].values())


OFF = {"local": 2.0, "fedavg": 0.3}


@pytest.mark.parametrize(
    ("task", "sections", "others"),
    [
        ("classification", {"forest", "roc"}, {"residuals", "survival"}),
        ("regression", {"forest", "residuals"}, {"roc", "survival"}),
        ("survival", {"forest", "survival"}, {"roc", "residuals"}),
    ],
)
def test_a_page_has_the_parts_of_its_task(
    task: str, sections: set[str], others: set[str], tmp_path: Path
) -> None:
    folder = synthetic.make_tested(tmp_path / "c", task, OFF, clients=6)
    found = parse(write_report([folder]).read_text())
    assert sections <= set(found.ids)
    assert not others & set(found.ids)
    numbers = json.loads(found.scripts[1])
    assert numbers["task"] == task
    assert numbers["decision"]["method"] == "fedavg"
    assert [d["gain"] is not None for d in numbers["client_decisions"]] == [True] * 6


def test_the_answer_is_the_headline(tmp_path: Path) -> None:
    folder = synthetic.make_tested(tmp_path / "c", "regression", OFF, clients=6)
    page = write_report([folder]).read_text()
    numbers = json.loads(parse(page).scripts[1])
    decision = numbers["decision"]
    assert decision["answer"] == "helps"
    low, high = decision["interval"]
    assert '<p class="answer helps">Federation helps<' in page
    digits = numbers["metric"]["digits"]
    told = f"+{decision['gain']:.{digits}f} RMSE against training alone (+ is better), "
    assert f"{told}95 % interval {low:.{digits}f} to {high:.{digits}f};" in page


def test_a_gain_that_rounds_to_nothing_has_no_sign() -> None:
    decision = {"answer": "cannot tell", "method": "ditto", "gain": -0.0004, "level": 0.05}
    decision |= {"interval": [None, 0.02], "speaks_for": "these sites"}
    metric = {"percent": False, "digits": 3, "word": "ROC AUC", "higher": True}
    told = _headline({"decision": decision, "metric": metric})
    assert told is not None and told["by"].startswith("ditto: 0.000 ROC AUC against training alone")
    assert "95 % interval −∞ to 0.020;" in told["by"]


def test_less_is_better_ranks_the_least_first(tmp_path: Path) -> None:
    folder = synthetic.make_tested(tmp_path / "c", "regression", OFF, clients=6)
    page = write_report([folder]).read_text()
    rows = re.findall(r'<th scope="row" data-value="([^"]*)"', page)
    assert rows == ["fedavg", "local"]
    assert 'aria-sort="ascending"><button type="button" data-contest="1" data-low="1">Mean' in page
    assert "yardstick: training alone" in page
    assert "the verdict is about it" in page


def test_yardsticks_are_told_apart_from_methods(tmp_path: Path) -> None:
    """The linear model alone is a run of local too, but not what gains are measured against."""
    off = {"local": 2.0, "linear": 3.0, "centralised": 0.4, "fedavg": 0.3}
    folder = synthetic.make_tested(tmp_path / "c", "regression", off, clients=6)
    path = folder / "runs" / "linear-seed0" / "result.json"
    kept = json.loads(path.read_text()) | {"method": "local", "model": "linear"}
    path.write_text(json.dumps(kept))
    constant = {"rmse": {"mean": 12.3, "per_client": {}, "undefined": {}, "clients": 6}}
    (folder / "summary.json").write_text(json.dumps({"constant": constant}))
    page = write_report([folder]).read_text()
    numbers = json.loads(parse(page).scripts[1])
    assert [row["label"] for row in numbers["methods"]] == [
        "local", "linear", "centralised", "fedavg"
    ]  # fmt: skip
    assert numbers["yardstick"] == 0
    rows = re.findall(r'<th scope="row" data-value="([^"]*)"', page)
    assert rows[:2] == ["fedavg", "centralised"] and "constant" in rows
    for told in ("all rows in one place", "a linear model alone", "one fixed answer"):
        assert f"yardstick: {told}" in page


def test_data_given_in_python_have_a_readable_name(tmp_path: Path) -> None:
    folder = synthetic.make_run(tmp_path / "run", "fedavg", data="object:objects")
    assert "<h1>data from Python, 8 clients</h1>" in write_report([folder]).read_text()


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_numbers_are_rounded_as_in_the_sentences_on_the_same_page() -> None:
    code = (Path(report.__file__).parent / "assets" / "core.js").read_text()
    code = code[code.index("function fixed(") : code.index("const inWords")]
    values = [81.25, 81.75, 81.35, 6.25, -6.25, 0.5, 2.5, 81.125, 99.95, 1 / 3]
    shown = f"JSON.stringify([0, 1, 2].map(d => {values}.map(v => fixed(v, d))))"
    said = subprocess.check_output(["node", "-e", f"{code}; console.log({shown})"], text=True)
    assert json.loads(said) == [[f"{v:.{d}f}" for v in values] for d in (0, 1, 2)]
