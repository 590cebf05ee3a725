"""The page in a real browser: no complaints, and everything that can be operated does its work."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedtailor.report import write_report
from tests.report import synthetic
from tests.report.browser import CHROMIUM, PATIENCE, Browser

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.slow,  # a browser on a busy machine takes its time
]
EVIL = '</script><img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "compared"
    names = [f"client-{i}" for i in range(11)] + [EVIL]
    return write_report([synthetic.make_comparison(folder, clients=12, names=names, seeds=2)])


@pytest.fixture
def page(browser: Browser, compared: Path) -> Iterator[Browser]:
    """The page, freshly opened; at the end nothing may have been complained about."""
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(compared)
    yield browser
    assert browser.complaints == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "data"}


def click(page: Browser, choice: str) -> None:
    page.evaluate(f"document.querySelector({json.dumps(choice)}).click()")


def text(page: Browser, choice: str) -> str:
    return str(page.evaluate(f"document.querySelector({json.dumps(choice)}).textContent"))


def choose(page: Browser, choice: str, value: Any, event: str = "change") -> None:
    page.evaluate(
        f"(() => {{ const it = document.querySelector({json.dumps(choice)});"
        f"it.value = {json.dumps(str(value))};"
        f"it.dispatchEvent(new Event('{event}', {{bubbles: true}})); }})()"
    )


def order(page: Browser) -> list[str]:
    return list(
        page.evaluate(
            "[...document.querySelectorAll('#method-table tbody th')].map(h=>h.dataset.value)"
        )
    )


def wait_for(page: Browser, code: str) -> None:
    until = time.monotonic() + PATIENCE
    while not page.evaluate(f"!!({code})"):
        assert time.monotonic() < until, f"never there: {code}"
        time.sleep(0.02)


def numbers(page: Browser) -> dict[str, Any]:
    return dict(json.loads(text(page, "#numbers")))


def test_it_opens_with_every_chart(page: Browser) -> None:
    for box in ("score-chart", "loss-chart", "spread-chart", "bytes-chart", "gain-charts"):
        assert page.evaluate(f"!!document.querySelector('#{box} svg')"), box
    assert page.evaluate("document.querySelectorAll('.heat canvas[role=img]').length") == 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_table_is_sorted_by_click_and_by_key(page: Browser) -> None:
    rows = numbers(page)["methods"]
    by_mean = sorted(rows, key=lambda r: -r["score"]["mean"]["mean"])
    assert order(page) == [r["label"] for r in by_mean]
    click(page, "#method-table th:first-child button")
    assert order(page) == sorted(r["label"] for r in rows)
    page.evaluate("document.querySelectorAll('#method-table thead button')[1].focus()")
    page.press("Enter")
    assert order(page) == [r["label"] for r in by_mean]
    page.press("Enter")
    assert order(page) == [r["label"] for r in by_mean][::-1]
    assert page.evaluate(
        "[...document.querySelectorAll('[aria-sort]')].map(h=>h.getAttribute('aria-sort'))"
    ) == ["ascending"]
    assert text(page, "#sort-told") == "Sorted by Mean, ascending."


def test_methods_are_hidden_and_shown(page: Browser) -> None:
    lines = "document.querySelectorAll('#score-chart .line').length"
    before = page.evaluate(lines)
    click(page, ".legend button")
    assert page.evaluate(lines) == before - 1
    assert page.evaluate("document.querySelector('.legend button').ariaPressed") == "false"
    click(page, ".legend button")
    assert page.evaluate(lines) == before


def test_a_chart_is_read_with_pointer_and_keys(page: Browser) -> None:
    page.evaluate("document.querySelector('#score-chart').scrollIntoView({behavior: 'instant'})")
    box = page.evaluate(
        "(() => {const r = document.querySelector('#score-chart svg').getBoundingClientRect();"
        "return [r.left, r.top, r.width, r.height]})()"
    )
    page.point(box[0] + 60, box[1] + box[3] / 2)
    assert text(page, "#score-chart .readout strong") == "round 1"
    page.evaluate("document.querySelector('#score-chart svg').focus()")
    page.press("ArrowRight")
    assert text(page, "#score-chart .readout strong") == "round 2"
    data = numbers(page)
    place = [r["label"] for r in data["methods"]].index("fedala")
    value = 100 * data["curves"][place]["mean"]["mid"][1]
    assert f"fedala{value:.1f}" in text(page, "#score-chart .readout")


def test_the_measure_and_the_stretch_can_be_chosen(page: Browser) -> None:
    choose(page, "#measure", "bottom5")
    assert "worst-off" in text(page, "#score-caption")
    choose(page, "#window", "0.5")
    assert page.evaluate("document.querySelectorAll('#score-chart .line').length") == 6


def test_a_client_is_chosen_found_and_escaped(page: Browser) -> None:
    choose(page, "#client-list", 5)
    assert text(page, "#client-view h3") == "client-5"
    choose(page, "#client-search", "img", "input")
    assert text(page, "#client-view h3") == EVIL
    assert page.evaluate("document.querySelectorAll('#client-view img').length") == 0
    assert "FedTailor" in page.evaluate("document.title")
    data = numbers(page)
    accuracy = max(row["per_client"][11] for row in data["methods"])
    assert f"{100 * accuracy:.1f} %" in text(page, "#client-view .lead")
    click(page, "#client-view .bars button")  # somebody it learnt from
    donor = data["learnt"][1]["records"][0]["donors"][11][0]
    assert text(page, "#client-view h3") == data["clients"][donor]
    assert page.evaluate("document.querySelector('#client-list').value") == str(donor)


def test_a_clients_confusion_is_a_table(page: Browser) -> None:
    choose(page, "#client-list", 2)
    for method in ("0", "3"):
        choose(page, "#confusion-method", method)
        cells = page.evaluate(
            "[...document.querySelectorAll('.matrix td')].map(c => Number(c.textContent))"
        )
        assert sum(cells) == 2 * numbers(page)["rows"]["test"][2], "two seeds"


def test_a_bar_of_the_gain_opens_its_client(page: Browser) -> None:
    wait_for(page, "document.querySelector('.panel svg')")  # drawn once its box has a width
    page.evaluate("document.querySelector('.panel svg').focus()")
    page.press("ArrowRight")
    told = text(page, ".panel .told")
    page.press("Enter")
    assert text(page, "#client-view h3") == told.partition(":")[0]


def test_the_slider_changes_the_map(page: Browser) -> None:
    picture = "document.querySelector('.heat canvas[role=img]').toDataURL()"
    last = page.evaluate(picture)
    choose(page, ".round-slider", 0, "input")
    assert page.evaluate("document.querySelector('.heat canvas').dataset.shown") == "1"
    assert page.evaluate(picture) != last
    page.evaluate("document.querySelector('.heat canvas').focus()")
    page.press("ArrowRight")
    assert " from " in text(page, ".heat .seen")


def test_numbers_stand_beside_charts(page: Browser) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.evaluate("new Promise(done => setTimeout(done, 100))")
    assert page.evaluate(
        "[...document.querySelectorAll('details')].every(d => d.querySelector('td'))"
    )


def test_everything_that_is_operated_has_a_name(page: Browser) -> None:
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, select, input, [tabindex]')].filter(e => !("
        "e.ariaLabel || e.textContent.trim() && e.tagName === 'BUTTON' || e.labels?.length))"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert unnamed == []


def test_dark_follows_the_system_until_somebody_chooses(browser: Browser, compared: Path) -> None:
    shade = "document.documentElement.dataset.theme"
    browser.complaints.clear()
    browser.open(compared, dark=True)
    assert browser.evaluate(shade) == "dark"
    click(browser, "#theme")
    assert browser.evaluate(shade) == "light"
    click(browser, "#theme")
    click(browser, "#theme")
    assert text(browser, "#theme") == "Theme: automatic"
    assert browser.printed().startswith(b"%PDF")
    assert browser.evaluate(shade) == "dark", "printing changed the screen"
    assert browser.complaints == []


def test_it_fits_a_telephone(browser: Browser, compared: Path) -> None:
    browser.complaints.clear()
    browser.open(compared, width=360, height=700)
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    assert browser.complaints == []


def test_one_run_alone_has_a_page(browser: Browser, tmp_path: Path) -> None:
    folder = synthetic.make_run(tmp_path / "run", "fedavg", clients=1, rounds=1)
    (folder / "confusion.safetensors").unlink()
    browser.complaints.clear()
    browser.open(write_report([folder]))
    assert browser.evaluate("!document.querySelector('#gain, #learnt')")
    assert browser.complaints == []


def test_a_thousand_clients_open_quickly(browser: Browser, tmp_path: Path) -> None:
    folder = synthetic.make_comparison(tmp_path / "many", clients=1000, rounds=3)
    page = write_report([folder])
    assert page.stat().st_size < 10_000_000
    browser.complaints.clear()
    browser.open(page)
    took = browser.evaluate("performance.getEntriesByType('navigation')[0].domComplete")
    assert took < 2000 * 3, "milliseconds, on a machine that may be busy"
    assert browser.evaluate("document.querySelectorAll('*').length") < 6000
    assert browser.complaints == []


OFF = {"local": 2.0, "fedavg": 0.5, "ditto": 2.0}
DRAWN = {
    "classification": ("roc-chart", "calibration-chart"),
    "regression": ("residuals-chart", "errors-chart"),
    "survival": ("survival-chart",),
}


@pytest.mark.parametrize("task", DRAWN)
def test_every_task_has_its_page(task: str, browser: Browser, tmp_path: Path) -> None:
    folder = synthetic.make_tested(tmp_path / "c", task, OFF, clients=6)
    browser.complaints.clear()
    browser.open(write_report([folder]))
    for box in (*DRAWN[task], "forest-chart", "score-chart", "spread-chart", "bytes-chart"):
        assert browser.evaluate(f"!!document.querySelector('#{box} svg')"), box
    assert browser.evaluate("!!document.querySelector('.matrix')") is False
    assert browser.complaints == []
    data = numbers(browser)
    browser.evaluate("document.querySelector('#forest-chart svg').focus()")
    browser.press("ArrowDown")
    gains = [one["gain"] for one in data["client_decisions"]]
    best = data["clients"][gains.index(max(gains))]
    assert text(browser, "#forest-chart .hint").startswith(f"{best}: +")
    browser.press("Enter")
    assert text(browser, "#client-view h3") == best
    for choice in ("#residuals-method", "#survival-method"):
        if browser.evaluate(f"!!document.querySelector('{choice}')"):
            choose(browser, choice, 0)
    assert browser.complaints == []


def test_all_metrics_of_a_client_with_reasons(browser: Browser, tmp_path: Path) -> None:
    folder = synthetic.make_tested(tmp_path / "c", "classification", OFF, clients=6)
    path = folder / "runs" / "fedavg-seed0" / "result.json"
    result = json.loads(path.read_text())
    result["metrics"]["macro-f1"]["per_client"]["client-0000"] = None
    result["metrics"]["macro-f1"]["undefined"]["client-0000"] = "a <reason>"
    path.write_text(json.dumps(result))
    browser.complaints.clear()
    browser.open(write_report([folder]))
    heads = browser.evaluate(
        "[...document.querySelectorAll('.metrics thead th')].map(h => h.textContent)"
    )
    assert sorted(heads) == ["alone", "ditto", "fedavg", "metric"]
    rows = browser.evaluate("document.querySelectorAll('.metrics tbody tr').length")
    assert rows == len(result["metrics"])
    assert browser.evaluate(
        "[...document.querySelectorAll('.metrics td[title]')].map(c => [c.textContent, c.title])"
    ) == [["–", "a <reason>"]]
    assert browser.complaints == []


def test_ends_without_a_bound_point_their_way_and_nothing_has_no_sign(page: Browser) -> None:
    shown = page.evaluate("[signed(-1e-9), signed(-0.5), fromTo([null, 0.5]), fromTo([0, null])]")
    assert shown == ["0.0", "−50.0", "−∞ to +50.0", "0.0 to ∞"]
    assert page.evaluate("[inMetric(0.8125), signed(-0.0625)]") == ["81.2", "−6.2"]
