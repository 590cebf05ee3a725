"""A site's own loader gives the numbers that the simulation gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtailor.core.errors import BadInput
from fedtailor.datasets import Encoder
from fedtailor.federation.site.local_data import load_local_data
from fedtailor.federation.site.preprocessing import preprocessing_like
from fedtailor.federation.site.settings import read_settings
from fedtailor.results.config import make_config
from fedtailor.runs.data import load_run_data

COLUMNS = {
    "classification": {"label": "ill"},
    "regression": {"label": "weight"},
    "survival": {"time_column": "days", "event_column": "died"},
}


def write_sites(root: Path) -> Path:
    """Three sites with other units, other categories and empty cells; one has no `dose` at all."""
    draw = np.random.default_rng(0)
    for i, size in enumerate((30, 44, 36)):
        rows = ["dose,ward,ill,weight,days,died"]
        for row in range(size):
            dose = "" if i == 2 or row % 7 == 0 else f"{10.0**i * draw.normal():.4f}"
            ward, ill, died = "abc"[draw.integers(0, 2) + (i > 0)], draw.integers(2), row % 3 == 0
            weight, days = 70 + 10 * i + draw.normal(), draw.integers(1, 999)
            rows.append(f"{dose},{ward},{ill},{weight:.3f},{days},{died:d}")
        (root / f"site-{i}").mkdir(parents=True)
        (root / f"site-{i}" / "rows.csv").write_text("\n".join(rows) + "\n")
    return root


@pytest.mark.parametrize("normalise", ["own", "pooled"])
@pytest.mark.parametrize("task", COLUMNS)
def test_every_row_is_the_simulations(task: str, normalise: str, tmp_path: Path) -> None:
    data = write_sites(tmp_path / "data")
    given = {"data": str(data), "normalise": normalise, **COLUMNS[task]}
    world = load_run_data(make_config("local", given, {}))
    assert world.source.task == task
    # as a plan carries it: what all share, and no client's own numbers
    text = json.dumps(world.encoder.without_clients().to_json())
    agreed = Encoder.from_json(json.loads(text))
    for i in range(3):
        lines = {"client": i, "data": f"data/site-{i}/rows.csv", **COLUMNS[task]}
        path = tmp_path / f"site-{i}.toml"
        path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in lines.items()))
        mine = load_local_data(read_settings(path), agreed)
        for part, found in (("train", mine.data), ("val", mine.data.val), ("test", mine.test)):
            theirs = world.client_data.part(torch.tensor([i]), part)
            count = int(theirs.n[0])
            assert int(found.n) == count
            for name in ("x", "y"):
                here = getattr(found, name)[found.rows[:count]]
                there = getattr(theirs, name)[theirs.rows[0, :count]]
                assert torch.equal(here, there), (part, name)
        assert mine.rows.encoder.without_clients() == world.encoder.of_client(f"site-{i}")
        assert sum(mine.mix.values()) == (0 if task == "regression" else int(mine.data.n))


def test_a_site_says_how_its_dates_are_written(tmp_path: Path) -> None:
    """The column that a split goes by is no feature, so nothing is agreed of it."""
    times = [(month, day) for month in range(1, 11) for day in range(1, 11)]
    rows = [f"{m}/{d}/2023,{i},{'ab'[i % 2]}" for i, (m, d) in enumerate(times)]
    (tmp_path / "rows.csv").write_text("\n".join(["seen,x,label", *rows]) + "\n")
    columns = {"label": "label", "drop": "seen", "normalise": "none"}
    agreed = preprocessing_like(str(tmp_path / "rows.csv"), columns)
    path = tmp_path / "site.toml"
    lines = 'client = 0\ndata = "rows.csv"\nlabel = "label"\ntime_column_split = "seen"\n'
    tested = {}
    for types in ("", 'types = "seen=date-mdy"\n'):
        path.write_text(lines + types)
        found = load_local_data(read_settings(path), agreed).test
        tested[types] = sorted(found.x[found.rows[: int(found.n)], 0].tolist())
    month_first = tested['types = "seen=date-mdy"\n']
    assert month_first == list(range(100 - len(month_first), 100)) != tested[""]


def test_a_site_that_learns_something_else_is_refused(tmp_path: Path) -> None:
    data = write_sites(tmp_path / "data")
    encoder = load_run_data(
        make_config("local", {"data": str(data), "label": "weight"}, {})
    ).encoder
    path = tmp_path / "site.toml"
    path.write_text('client = 0\ndata = "data/site-0/rows.csv"\nlabel = "ward"\n')
    with pytest.raises(BadInput, match=r"task is regression, but .* line 2 .* label '[abc]'"):
        load_local_data(read_settings(path), encoder)
    path.write_text(path.read_text() + 'task = "classification"\n')
    with pytest.raises(BadInput, match="learns regression"):
        load_local_data(read_settings(path), encoder)


def test_columns_are_what_was_agreed_whatever_a_sites_rows_look_like(tmp_path: Path) -> None:
    """Elsewhere codes have letters and numbers have words; here they look like something else."""
    everyone = ["code,crp,seen,ill"]
    for i in range(40):
        crp = "<5" if i == 3 else f"{i / 3:.2f}"
        everyone.append(f"{'3A'[i % 2]},{crp},{1 + i % 28:02d}/03/2024,{i % 2}")
    (tmp_path / "all.csv").write_text("\n".join(everyone) + "\n")
    given = {"data": str(tmp_path / "all.csv"), "label": "ill", "partition": "iid", "clients": 2}
    encoder = load_run_data(make_config("local", given, {})).encoder.without_clients()
    rows = [f"{i},3,n/k,01/02/2024,{i % 2}" for i in range(8)]
    rows += [f"{i},3,{i},03/02/2024,{i % 2}" for i in range(8, 12)]
    (tmp_path / "site.csv").write_text("\n".join(["pid,code,crp,seen,ill", *rows]) + "\n")
    path = tmp_path / "site.toml"
    path.write_text('client = 0\ndata = "site.csv"\nlabel = "ill"\n')
    mine = load_local_data(read_settings(path), Encoder.from_json(encoder.to_json()))
    assert mine.rows.encoder.columns[0].values == ("3", "A")
    assert mine.data.x.shape[1:] == (4,) and (mine.data.x[:, :2] == torch.tensor([1.0, 0.0])).all()
    days = sorted({round(float(v) * mine.rows.encoder.columns[2].scale) for v in mine.data.x[:, 3]})
    assert len(days) == 2 and days[1] - days[0] == 2, "day first, as agreed"


def test_images_of_more_bits_than_was_agreed_are_refused(tmp_path: Path) -> None:
    """They would be scaled by this site's own range, and mean something else than the others'."""
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    for depth, most in (("shallow", 255), ("deep", 4095)):
        kind = np.uint8 if most == 255 else np.uint16
        for i in range(24):
            folder = tmp_path / depth / "ab"[i % 2]
            folder.mkdir(parents=True, exist_ok=True)
            values = draw.integers(0, most, (8, 8)).astype(kind)
            image.fromarray(values).save(folder / f"{i}.png")
    known = {}
    for depth in ("shallow", "deep"):
        given = {"data": str(tmp_path / depth), "clients": "1", "partition": "iid"}
        known[depth] = load_run_data(make_config("local", given, {})).encoder
    (tmp_path / "site.toml").write_text('client = 0\ndata = "deep"\n')
    site = read_settings(tmp_path / "site.toml")
    with pytest.raises(BadInput, match="images of more than 8 bits, but the federation agreed on"):
        load_local_data(site, known["shallow"])
    assert known["deep"].levels is not None and load_local_data(site, known["deep"])


def test_categories_that_nobody_agreed_on_are_logged_at_the_site(tmp_path, caplog) -> None:
    like, own = tmp_path / "like.csv", tmp_path / "own.csv"
    for path, wards in ((like, ["a", "b"] * 10), (own, ["a", "b", "x", "y", "x"] * 8)):
        rows = [f"{30 + i},{ward},{'yn'[i % 2]}\n" for i, ward in enumerate(wards)]
        path.write_text("age,ward,ill\n" + "".join(rows))
    encoder = preprocessing_like(str(like), {"label": "ill"})
    path = tmp_path / "site.toml"
    path.write_text('client = 0\ndata = "own.csv"\nlabel = "ill"\n')
    found = load_local_data(read_settings(path), encoder)
    assert caplog.messages == [
        "column 'ward' has 2 categories that the federation did not agree on, in 24 of 40 rows "
        "(x, y): encoded as 0 in all of its 2 inputs"
    ]
    assert int(found.data.n) > 0
    caplog.clear()
    own.write_text(like.read_text())
    load_local_data(read_settings(path), encoder)
    assert caplog.messages == []


def test_what_all_are_to_agree_on_has_something_to_tell_apart(tmp_path: Path) -> None:
    (tmp_path / "like.csv").write_text("x,ill\n" + "1,no\n" * 40)
    with pytest.raises(BadInput, match="only the class 'no', so there is nothing to tell apart"):
        preprocessing_like(str(tmp_path / "like.csv"), {"label": "ill"})


def test_a_column_without_any_value_is_logged_at_the_site(tmp_path, caplog) -> None:
    """What stands in its cells is another's number: its owner may not know that they are empty."""
    rows = [f"{i},{i % 7},{i % 2}" for i in range(40)]
    (tmp_path / "all.csv").write_text("\n".join(["age,crp,ill", *rows]) + "\n")
    encoder = preprocessing_like(str(tmp_path / "all.csv"), {"label": "ill"})
    rows = [f"{i},,{i % 2}" for i in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["age,crp,ill", *rows]) + "\n")
    (tmp_path / "site.toml").write_text('client = 0\ndata = "rows.csv"\nlabel = "ill"\n')
    load_local_data(read_settings(tmp_path / "site.toml"), encoder)
    assert [record.getMessage() for record in caplog.records] == [
        "column 'crp' has no value in 24 training rows: the federation's stands in for each, 2.875"
    ]
