"""What `inspect` and `describe` say of data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedtailor
from fedtailor.cli import main


def typed(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.fixture
def wards(tmp_path: Path) -> Path:
    """Two sites: one has no dose and a ward of its own; a column tells the label."""
    draw = np.random.default_rng(0)
    rows = ["pid,age,dose,ward,told,one,site,ill"]
    for i in range(60):
        south, ill = i % 2, int(draw.integers(2))
        age, dose = draw.normal(40 + 30 * south, 5), "" if south else f"{draw.normal():.2f}"
        told = "yes" if ill else "no"
        rows.append(f"P{i},{age:.1f},{dose},{'AB'[south]},{told},1,{'ns'[south]},{ill}")
    path = tmp_path / "wards.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_columns_clients_and_what_looks_wrong(wards: Path) -> None:
    found = fedtailor.describe(wards, label="ill")
    columns = {c.name: c for c in found.columns}
    assert [c.inputs for c in found.columns] == [0, 1, 1, 2, 2, 1] and found.inputs == 7
    assert columns["pid"].kind == "identifier" and "left out" in columns["pid"].encoding
    assert columns["dose"].overall.missing == 30 and columns["dose"].clients["s"].missing == 30
    assert columns["age"].differs == ("n", "s") and columns["told"].differs == ()
    assert found.clients == {"n": 30, "s": 30} and sum(found.labels.values()) == 60
    assert found.warnings == (
        "constant, so nothing is learnt from: one",
        "nearly the label ('ill') in other words: told",
        "without any value at a client: dose (s)",
        "categories that one client alone has: ward (2 of 2, such as 'A' at n)",
    )
    assert "pid" in str(found) and found.table()["inputs"].sum() == 7


def test_classes_that_a_site_writes_in_its_own_way_are_told(wards: Path) -> None:
    """One site has 0 and 1, the other no and yes: four classes, of which nobody has all."""
    text = wards.read_text()
    wards.write_text(text.replace(",s,0", ",s,no").replace(",s,1", ",s,yes"))
    found = fedtailor.describe(wards, label="ill", only="age")
    assert list(found.labels) == ["0", "1", "no", "yes"]
    assert found.warnings == (
        "classes that one client alone has (written as elsewhere?): 4 of 4, such as '0' at n",
    )


def test_classes_of_one_sites_images_are_told(tmp_path: Path) -> None:
    pictures = [f"{site}/{name}/{i}.png" for site, name in ("sa", "sb", "ta", "tB") for i in (0, 1)]
    for path in pictures:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / path)
    found = fedtailor.describe(str(tmp_path)).warnings
    assert found == (
        "classes that one client alone has (written as elsewhere?): 2 of 3, such as 'B' at t",
        "the same but for capitals or spaces, and taken for several: classes ('B' and 'b')",
    )


def test_names_in_two_spellings_are_told(wards: Path) -> None:
    """Both sites have all classes, but two of the four are the others in capitals."""
    lines = wards.read_text().splitlines()
    shown = {"0": "no", "1": "yes"}
    for i, line in enumerate(lines[1:], 1):
        cells = line.split(",")
        cells[-1] = shown[cells[-1]].upper() if i % 7 == 0 else shown[cells[-1]]
        cells[-2] = "N " if i == 3 else cells[-2]
        lines[i] = ",".join(cells)
    wards.write_text("\n".join(lines) + "\n")
    *_, line = fedtailor.describe(wards, label="ill", only="age").warnings
    told = "classes ('NO' and 'no', 'YES' and 'yes'), clients ('N' and 'n')"
    assert line == f"the same but for capitals or spaces, and taken for several: {told}"


def test_a_column_named_classes_does_not_hide_the_classes(tmp_path: Path) -> None:
    rows = [f"{i},{'a' if i % 2 else 'b'},{('no', 'yes', 'No')[i % 3]}" for i in range(30)]
    (tmp_path / "rows.csv").write_text("n,classes,ill\n" + "\n".join(rows) + "\n")
    found = fedtailor.describe(tmp_path / "rows.csv", label="ill").warnings
    assert any("classes ('No' and 'no')" in line for line in found)


def test_groups_that_clients_share_are_told(wards: Path) -> None:
    """Each site may number its own patients from 1, and they are then taken for the same."""
    lines = wards.read_text().splitlines()
    numbered = [f"{line},{i // 4 if i else 'patient'}" for i, line in enumerate(lines)]
    wards.write_text("\n".join(numbered) + "\n")
    found = fedtailor.describe(wards, label="ill", group_column="patient", only="age")
    assert found.warnings == (
        "groups that several clients have, each on one side of the split at all of them, which "
        "changes how many rows train (if clients number their own, make the names differ): "
        "15 of 16, such as '0'",
    )
    apart = [f"{line},{line[-3]}{i}" if i else f"{line},patient" for i, line in enumerate(lines)]
    wards.write_text("\n".join(apart) + "\n")
    found = fedtailor.describe(wards, label="ill", group_column="patient", only="age")
    assert found.warnings == ()


def test_the_command_prints_a_table_json_and_a_page(wards: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    page = wards.with_suffix(".html")
    assert typed("inspect", str(wards), "--label", "ill", "--out", str(page)) == 0
    shown = capsys.readouterr().out
    assert "look: constant, so nothing is learnt from: one" in shown and "7 inputs" in shown
    html = page.read_text(encoding="utf-8")
    assert "dose (s)" in html and "<script src" not in html
    assert typed("inspect", str(wards), "--label", "ill", "--json", "--drop", "told") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["inputs"] == 5 and told["columns"][1]["overall"]["rows"] == 60
    assert typed("inspect", str(wards), "--label", "sick") == 2
    assert typed("inspect", str(wards), "--label", "ill", "--out", str(page.parent)) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_a_column_that_one_site_lacks_is_told_not_refused(tmp_path: Path) -> None:
    for site, head in (("a", "x,y"), ("b", "x,z,y")):
        (tmp_path / site).mkdir()
        cells = "".join(f"{i}{',3' * ('z' in head)},{i % 2}\n" for i in range(30))
        (tmp_path / site / "t.csv").write_text(f"{head}\n{cells}")
    found = fedtailor.describe(str(tmp_path))
    line = "not in a client's table, so missing there (--strict refuses): z (a)"
    assert line in found.warnings
    assert line in fedtailor.describe(str(tmp_path), strict=True).warnings
    with pytest.raises(fedtailor.BadInput, match="other columns"):
        fedtailor.run("local", data=str(tmp_path), rounds=1, strict=True)


@pytest.mark.parametrize("task", ["regression", "survival"])
def test_copies_of_other_labels(task: str) -> None:
    pd = pytest.importorskip("pandas")
    draw = np.random.default_rng(1)
    time = draw.exponential(size=50) * 100
    frame = pd.DataFrame({"x": draw.normal(size=50), "hours": 24 * time, "days": time})
    given = {"label": "days", "task": task}
    if task == "survival":
        frame["died"] = np.arange(50) % 2
        given = {"time_column": "days", "event_column": "died"}
    found = fedtailor.describe(frame, **given)
    assert found.warnings == ("nearly the label ('days') in other words: hours",)


def test_images_are_described_too() -> None:
    found = fedtailor.describe("digits")
    assert found.inputs == 64 and found.columns == () and found.warnings == ()
