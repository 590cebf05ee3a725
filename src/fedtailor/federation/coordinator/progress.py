"""What becomes of a federation, read from its coordinator's folder while it is played."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import counted
from fedtailor.federation.coordinator.store import (
    ENDS,
    EVENTS,
    FAILED_IN,
    FINISHED,
    HISTORY,
    NO_ANSWER,
    NOT_ADMITTED,
    STOP,
    is_played,
    read_latest,
)
from fedtailor.federation.protocol.lines import Line, read_lines
from fedtailor.federation.protocol.packet import FINISH, SCORE, TRAIN

LOOK = 0.3  # seconds between two looks
START_SECONDS = 120.0
SILENT = "ended without a word"  # of a run that was killed
ASK_FLOWER = 10.0  # seconds between two questions to Flower, each of which costs a process


class Ending(NamedTuple):
    """How a run of a federation ended."""

    kind: str  # `finished`, `stopped` or `failed`
    detail: str  # why, unless it finished


def rounds_of(folder: Path) -> list[Line]:
    """The lines of rounds that count.

    Lines are written after the checkpoint, so the last round may be missing for a moment.
    """
    return [line for line in read_lines(folder / HISTORY) if "taken" in line]


def finished_of(folder: Path) -> dict[str, Any]:
    """What each site said when it had its model of the latest round."""
    lines = read_lines(folder / HISTORY)
    latest = max((line["round"] for line in lines if "round" in line), default=0)
    found: dict[str, Any] = {}
    for line in lines:
        if line.get("round") == latest:
            found |= line.get("finished", {})
    return found


def networks_of(folder: Path) -> dict[str, str]:
    """Which network each site has, where they differ."""
    lines = read_lines(folder / HISTORY)
    return next((line["networks"] for line in reversed(lines) if "networks" in line), {})


def follow(
    folder: Path,
    ask_flower: Callable[[str], str],
    run: str,
    since: int,
    tell: Callable[[Line], None],
) -> Ending:
    """Waits for the end of a run and tells each line of the history and each event until then.

    `since` counts the events of earlier runs, which are not told.
    """
    told_rounds, told_events = len(rounds_of(folder)), since
    begun = asked = time.monotonic()
    seen = False
    while True:
        alive = is_played(folder)  # asked before reading: what is written last is read too
        for event in read_lines(folder / EVENTS)[told_events:]:
            told_events += 1
            if event.get("site") == "all" and event.get("event") in ENDS:
                if event.get("run") == run:
                    return Ending(str(event["event"]), str(event.get("detail", "")))
                continue  # of a run that was started while this one played, and gave up
            tell(event)
        for line in rounds_of(folder)[told_rounds:]:
            told_rounds += 1
            tell(line)
        now = time.monotonic()
        seen = seen or alive
        if not alive and now - asked > ASK_FLOWER:
            asked = now
            try:
                status = ask_flower(run)
            except BadInput:  # Flower's own words do not help: its SuperLink may have been ended
                status = "its SuperLink does not answer: is the coordinator still there?"
            if status.startswith("finished") or now - begun > START_SECONDS or seen:
                return Ending("failed", f"the coordinator's app {SILENT} ({status})")
        time.sleep(LOOK)


def wait_for_end(folder: Path, seconds: float) -> bool:
    """Whether a federation is no longer played after at most so many seconds."""
    until = time.monotonic() + seconds
    while is_played(folder):
        if time.monotonic() > until:
            return False
        time.sleep(LOOK)
    return True


def ask_to_stop(folder: Path) -> None:
    """Asks the coordinator to stop after the round that it plays."""
    try:
        (folder / STOP).touch()
    except OSError as error:
        raise BadInput(f"'{folder / STOP}' cannot be written: {error.strerror}") from None


def forget_stop(folder: Path) -> None:
    """Removes a request to stop: it has had its effect, or nobody was there to hear it."""
    (folder / STOP).unlink(missing_ok=True)


def told_score(said: Mapping[str, Any], point: Literal["pre", "post", "local"]) -> float | None:
    """What a site told of its model; versions before 0.3 knew accuracy alone."""
    found: float | None = said.get(f"{point}_score", said.get(f"{point}_accuracy"))
    return found


class SiteStatus(NamedTuple):
    """What the coordinator knows of a site."""

    name: str  # of the site
    connected: bool | None  # whether its node is; None if that is not known
    last: int  # the latest round in which its upload was taken; 0 for none
    score: float | None  # what it last told of its test rows
    failures: int  # how often it failed or could not join
    why: str  # the latest failure, with its round
    norm: float | None = None  # how far its latest upload moved
    odd: int = 0  # in how many rounds its upload stood out


def sites_of(folder: Path, names: dict[str, bool | None]) -> list[SiteStatus]:
    """What the coordinator knows of each site; `names` say who is connected, as far as known."""
    last: dict[str, int] = {}
    score: dict[str, float] = {}
    norm: dict[str, float] = {}
    odd: dict[str, int] = {}
    events, played = read_lines(folder / EVENTS), rounds_of(folder)
    joined = [e["site"] for e in events if e.get("event") == "joined"]
    failures = _failures(events, played)
    for line in played:
        for name, said in line["sites"].items():
            last[name] = line["round"]
            if (found := told_score(said, "post")) is not None:
                score[name] = found
        for name, look in line.get("uploads", {}).items():
            norm[name] = look["norm"]
            odd[name] = odd.get(name, 0) + bool(look["odd"])
    for name, said in finished_of(folder).items():
        if (found := told_score(said, "pre")) is not None:
            score[name] = found
    everyone = dict.fromkeys([*names, *sorted({*joined, *last, *failures})])
    return [
        SiteStatus(
            name,
            names.get(name),
            last.get(name, 0),
            score.get(name),
            len(failures.get(name, [])),
            failures[name][-1] if name in failures else "",
            norm.get(name),
            odd.get(name, 0),
        )
        for name in everyone
    ]


def _failures(events: Sequence[Line], played: Sequence[Line]) -> dict[str, list[str]]:
    """How sites failed, by name, the latest round last; many attempts at one thing are one."""
    found: dict[str, dict[tuple[int, str], str]] = {}
    whole = {line["round"] for line in played}
    for event in events:
        what, round, why = event.get("event", ""), event["round"], event.get("detail", "")
        if what in (NOT_ADMITTED, NO_ANSWER):
            said = f"round {round}: {what}: {why}"
        elif what == f"{FAILED_IN} {TRAIN}" and round not in whole:  # others have a line
            said = f"round {round}: {why}"
        elif what in (f"{FAILED_IN} {SCORE}", f"{FAILED_IN} {FINISH}"):
            said = f"after round {round - 1}: {why}"
        else:
            continue
        found.setdefault(event["site"], {})[round, what] = said
    for line in played:
        for name, why in line["failed"].items():
            found.setdefault(name, {})[line["round"], TRAIN] = f"round {line['round']}: {why}"
    return {
        name: [each[key] for key in sorted(each, key=lambda key: key[0])]
        for name, each in found.items()
    }


def without_model(folder: Path, sites: int) -> list[str]:
    """Who has no model of the latest round, and why as far as it is known; `sites`: in all."""
    has, lines = finished_of(folder), read_lines(folder / HISTORY)
    missing = lines[-1].get("missing", {}) if lines else {}
    found = [f"{name} ({why})" for name, why in missing.items() if name not in has]
    unknown = sites - len(has) - len(found)
    return found + [counted(unknown, "site")] * (unknown > 0)


def traffic_of(folder: Path) -> dict[str, int]:
    """Bytes of all rounds: the messages' own, and what Flower put around them."""
    total = {"up": 0, "down": 0, "envelope_up": 0, "envelope_down": 0}
    for line in rounds_of(folder):
        for way in ("up", "down"):
            total[way] += line["bytes"][way]
            total[f"envelope_{way}"] += line["envelope"][way]
    return total


def round_now(folder: Path) -> int:
    """How many rounds are done, as the checkpoint says; a broken one is bad input."""
    found = read_latest(folder)
    return int(found["round"]) if found else 0


def last_end(folder: Path) -> Line:
    """The event that the latest run ended with; empty if none has ended.

    Of a run that was killed the last event is none of `ENDS`: it said nothing more.
    """
    events = read_lines(folder / EVENTS)
    if not events or events[-1].get("event") in ENDS:
        return events[-1] if events else {}
    return {} if is_played(folder) else {"event": SILENT}


def is_over(folder: Path, rounds: int) -> bool:
    """Whether all rounds were played and the sites have been told."""
    return round_now(folder) >= rounds and last_end(folder).get("event") == FINISHED
