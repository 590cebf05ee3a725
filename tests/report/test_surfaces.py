"""Loss landscapes and trajectories on the page, by their numbers and in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.report import write_report
from fedtailor.report.surfaces import landscapes, trajectories
from fedtailor.results.collect import collect
from tests.analysis.surfacelab import fake_landscape, fake_trajectory
from tests.report import synthetic
from tests.report.browser import CHROMIUM, Browser

A_MOMENT = "new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))"
EVIL = '</script><img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = [f"client-{i}" for i in range(4)] + [EVIL]
    folder = tmp_path_factory.mktemp("surfaces") / "compared"
    synthetic.make_comparison(
        folder, ("local", "fedavg", "fedala"), clients=5, names=names, seeds=1
    )
    runs = sorted((folder / "runs").iterdir())
    ala, avg = (next(r for r in runs if name in r.name) for name in ("fedala", "fedavg"))
    fake_landscape(ala, [EVIL, "client-1"])
    fake_landscape(avg, ["client-1"], general=False)
    fake_trajectory([avg, ala], ["fedavg", EVIL], EVIL)
    return folder


def test_both_are_on_the_page_where_they_were_measured(compared: Path) -> None:
    collection = collect([compared])
    found = landscapes(collection)
    assert [collection.contenders[one["method"]].label for one in found] == ["fedavg", "fedala"]
    assert [c["client"] for c in found[1]["clients"]] == [EVIL, "client-1"]
    assert found[1]["clients"][0]["global"]["own"]["loss"][4][4] == 0.2
    assert found[1]["clients"][0]["personal"]["own"]["loss"][0][0] is None
    assert "global" not in found[0]["clients"][0]
    ways = trajectories(collection)
    assert len(ways) == 1, "runs that share a plane share one"
    assert [run["method"] for run in ways[0]["runs"]] == [found[0]["method"], found[1]["method"]]
    page = write_report([compared]).read_text()
    assert "Loss landscape" in page and "Trajectory of a client" in page
    assert EVIL not in page


def test_without_them_there_are_no_such_sections(tmp_path: Path) -> None:
    page = write_report([synthetic.make_comparison(tmp_path / "c", clients=3)]).read_text()
    assert 'id="landscape"' not in page
    assert 'id="trajectory"' not in page


def test_fine_surfaces_are_thinned_around_the_same_middle(compared: Path, tmp_path: Path) -> None:
    run = next((compared / "runs").glob("*fedala*"))
    kept = (run / "landscape.json").read_text()
    axis = [k / 50 - 1 for k in range(101)]
    surface = {
        "loss": [[1.0 + (i == j == 50) for j in range(101)] for i in range(101)],
        "accuracy": [[0.5] * 101] * 101,
        "sharpness": {"centre": 2.0, "highest": 0.0, "mean": -1.0},
    }
    one = {"personal": {"own": surface, "all": surface}}
    told = {"axis": axis, "radius": 0.5, "clients": {"client-1": one}}
    (run / "landscape.json").write_text(json.dumps(told))
    try:
        found = landscapes(collect([compared]))[1]
    finally:
        (run / "landscape.json").write_text(kept)
    assert len(found["axis"]) == 41
    assert found["axis"][20] == pytest.approx(0)
    assert found["clients"][0]["personal"]["own"]["loss"][20][20] == 2


def test_a_broken_file_is_told(compared: Path) -> None:
    run = next((compared / "runs").glob("*fedala*"))
    kept = (run / "trajectory.json").read_text()
    (run / "trajectory.json").write_text("{")
    try:
        with pytest.raises(BadInput, match="broken"):
            write_report([compared])
    finally:
        (run / "trajectory.json").write_text(kept)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(compared: Path, tmp_path: Path, dark: bool) -> None:
    page = write_report([compared])
    with Browser(tmp_path) as browser:
        browser.open(page, dark=dark)
        count = lambda choice: browser.evaluate(f"document.querySelectorAll('{choice}').length")
        assert count("#landscape-view .contours svg") == 1  # fedavg: no global model
        browser.evaluate(
            "(() => { const s = document.getElementById('landscape-method'); s.value = 1;"
            "s.dispatchEvent(new Event('change')); })()"
        )
        browser.evaluate(A_MOMENT)
        assert count("#landscape-view .contours svg") == 2
        assert count("#landscape-view .contours .contour") > 6
        assert count("#landscape-view .chart svg") == 2
        browser.evaluate("document.querySelector('#landscape-view .contours svg').focus()")
        browser.press("ArrowRight")
        said = browser.evaluate("document.querySelector('#landscape-view .seen').textContent")
        assert said.startswith("0.25 along the first, 0 along the second direction: loss 0.263")
        browser.evaluate("document.querySelector('#landscape-view details summary').click()")
        browser.evaluate(A_MOMENT)
        assert count("#landscape-view details[open] tbody tr") >= 5
        assert count("#trajectory-view .contours rect.stop") == 6
        assert count("#trajectory-view .contours circle.stop") == 6
        browser.evaluate("document.querySelector('#trajectory-view .contours svg').focus()")
        browser.press("ArrowLeft")
        said = browser.evaluate("document.querySelector('#trajectory-view .seen').textContent")
        assert said.startswith("Loss ") and "Nearest: " in said
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert len(browser.printed()) > 10_000
        assert browser.complaints == []
