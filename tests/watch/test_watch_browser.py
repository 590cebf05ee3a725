"""The watched page in a real browser: it changes by itself and leaves the reader where they are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedtailor.reproduce.playing.cells import Scale
from fedtailor.reproduce.playing.play import DataCache, play
from fedtailor.reproduce.playing.request import ReproductionRequest
from fedtailor.watch import Watching
from tests.report import synthetic
from tests.report.browser import CHROMIUM, PATIENCE, Browser

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.slow,  # a browser on a busy machine takes its time
]
PAGE = "document.querySelector('iframe:not(.coming)').contentDocument"

# the reader goes elsewhere: another client, round, order; something opened; further down
ELSEWHERE = f"""(() => {{
  const d = {PAGE};
  const put = (node, value, event) => {{
    node.value = value;
    node.dispatchEvent(new Event(event, {{ bubbles: true }}));
  }};
  put(d.getElementById("client-list"), "3", "change");
  put(d.querySelector(".round-slider"), 1, "input");
  put(d.getElementById("client-search"), "000", "input");
  d.querySelector("#method-table th:first-child button").click();
  d.querySelector("#curves details").open = true;
  d.querySelector("#cost").scrollIntoView({{ behavior: "instant" }});
}})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def wait_for(browser: Browser, code: str, wanted: Any) -> None:
    until = time.monotonic() + PATIENCE
    while (found := browser.evaluate(code)) != wanted:
        assert time.monotonic() < until, f"{code} is {found}, not {wanted}: {browser.complaints}"
        time.sleep(0.05)


def words(browser: Browser) -> str:
    return str(browser.evaluate("document.getElementById('words').textContent"))


def test_it_goes_on_and_keeps_the_place(browser: Browser, tmp_path: Path) -> None:
    whole = synthetic.make_run(tmp_path / "whole", "fedfomo", rounds=9)
    half = synthetic.unfinish(synthetic.make_run(tmp_path / "run", "fedfomo", rounds=9), 4)
    with Watching(half, 0) as watching:
        browser.call("Page.navigate", url=watching.url)
        wait_for(browser, "document.documentElement?.dataset.page || ''", "1")
        assert words(browser) == "round 4 of 9, running"
        browser.evaluate(ELSEWHERE)
        top = f"Math.round({PAGE}.querySelector('#cost').getBoundingClientRect().top / 4)"
        before = browser.evaluate(top)
        for name in ("history.jsonl", "result.json"):
            (half / name).write_bytes((whole / name).read_bytes())
        for file in (whole / "records").iterdir():
            (half / "records" / file.name).write_bytes(file.read_bytes())
        wait_for(browser, "document.documentElement.dataset.page", "2")
        assert words(browser) == "finished"
        assert (
            browser.evaluate(f"{PAGE}.querySelector('#client-view h3').textContent")
            == "client-0003"
        )
        assert browser.evaluate(f"{PAGE}.querySelector('.heat canvas').dataset.shown") == "2"
        assert browser.evaluate(f"{PAGE}.getElementById('client-search').value") == "000"
        assert (
            browser.evaluate(f"{PAGE}.querySelector('[aria-sort]').textContent.trim()") == "Method"
        )
        assert browser.evaluate(f"{PAGE}.querySelector('#curves details').open")
        assert browser.evaluate(top) == before
        assert browser.evaluate("document.querySelectorAll('iframe').length") == 1
        asked = [url for url in browser.requests if url.endswith("state.json")]
        time.sleep(3)
        browser.evaluate("1")
        assert [u for u in browser.requests if u.endswith("state.json")] == asked, "it is finished"
    assert browser.complaints == []


def test_an_experiment_goes_on(browser: Browser, tmp_path: Path) -> None:
    """Before any run, and with one of two seeds finished."""
    papers = Path(__file__).parents[1] / "reproduce" / "papers"
    asked = ReproductionRequest(Scale(), given={"device": "cpu"}, papers=papers, command="again")
    plan = asked.plan(["tiny/fig1"], tmp_path)
    asked.keep(plan)
    cell = f"{PAGE}.querySelector('tbody td').textContent"
    with Watching(plan.folder(plan.parts[0]), 0) as watching:
        browser.call("Page.navigate", url=watching.url)
        wait_for(browser, "document.documentElement?.dataset.page || ''", "1")
        assert words(browser) == "0 of 2 runs finished"
        assert browser.evaluate(cell) == "waiting"
        first = plan.tasks[0]
        play(first, DataCache())
        wait_for(browser, "document.documentElement.dataset.page > 1", True)
        wait_for(browser, f"{cell}.endsWith('(1 of 2 seeds)')", True)
        assert words(browser) == "1 of 2 runs finished"
    assert browser.complaints == []


def test_without_an_answer_it_says_so(browser: Browser, tmp_path: Path) -> None:
    half = synthetic.unfinish(synthetic.make_run(tmp_path / "run", "fedavg", rounds=9), 4)
    with Watching(half, 0) as watching:
        browser.call("Page.navigate", url=watching.url)
        wait_for(browser, "document.documentElement?.dataset.page || ''", "1")
    wait_for(browser, "document.documentElement.dataset.state", "lost")
    assert words(browser) == "round 4 of 9, running (no answer: was it stopped?)"
    assert browser.evaluate(f"!!{PAGE}.querySelector('#score-chart svg')"), "the page stays"
