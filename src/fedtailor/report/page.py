"""Puts the page together: numbers, template, style and script in one file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically
from fedtailor.core.inputs.plain_text import counted
from fedtailor.core.options import in_short
from fedtailor.core.steps.privacy import epsilon_in_words
from fedtailor.report.absent import (
    absent_in_words,
    diverged_in_words,
    held_out_in_words,
    never_trained_in_words,
    times_in_words,
)
from fedtailor.report.surfaces import landscapes, trajectories
from fedtailor.results import mixes, numbers
from fedtailor.results.collect import CollectedRuns, collect, network_in_words
from fedtailor.results.diagnostics import diagnostics_of
from fedtailor.results.folder import ALONE, CENTRALISED, LINEAR, REPORT, resume_command
from fedtailor.results.objects import MARK
from fedtailor.results.pack import pack_counts
from fedtailor.results.records import learnt

if TYPE_CHECKING:
    from jinja2 import Template

SCRIPTS = (
    "core.js",
    "theme.js",
    "lines.js",
    "forest.js",
    "overview.js",
    "spread.js",
    "tested.js",
    "explorer.js",
    "learnt.js",
    "surfaces.js",
    "main.js",
)
HEADLINES = {
    "helps": "Federation helps",
    "harms": "Federation harms",
    "no difference": "Federation makes no difference",
    "cannot tell": "Whether federation helps cannot be told",
}
STANDS_FOR = {
    ALONE: "yardstick: training alone",
    CENTRALISED: "yardstick: all rows in one place",
    LINEAR: "yardstick: a linear model alone",
}
CONSTANT = "constant"
TESTED = {
    "classification": ("roc", "ROC, calibration"),
    "regression": ("residuals", "Residuals"),
    "survival": ("survival", "Survival"),
}
NAMED = 4  # values of a setting that differs; of more, only how far they go


def _asset(package: str, name: str) -> str:
    """A template, style or script that lies in a package's `assets`."""
    return resources.files(package).joinpath("assets", name).read_text(encoding="utf-8")


@cache  # to make one takes longer than to fill it in, and a comparison has a page per run
def _template(package: str, name: str) -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_asset(package, name))


def filled(package: str, name: str, **values: Any) -> str:
    """A page by its template, in our style; all is escaped but what is given as `Markup`.

    Args:
      package: in whose `assets` the template lies.
      name: of the template.
      values: what it shows.
    """
    from markupsafe import Markup

    style = Markup(_asset(__package__, "page.css"))
    return _template(package, name).render(style=style, **values)


def as_script(value: Any) -> str:
    """JSON that may stand inside a script element, whatever names from outside hold."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _from_to(numbers: Sequence[int]) -> str:
    """E.g. "1 to 3", or "3" if all are the same."""
    least, most = min(numbers), max(numbers)
    return str(most) if least == most else f"{least} to {most}"


def _each(values: Iterable[float], form: str) -> str:
    """Every value once, e.g. "2, 3"; of many the least and the largest."""
    found = [format(value, form) for value in sorted(set(values))]
    return ", ".join(found) if len(found) <= NAMED else f"{found[0]} to {found[-1]}"


def _data_named(data: str) -> str:
    """A dataset's name, a file's without its folder, or that the rows came from Python."""
    return "data from Python" if data.startswith(MARK) else Path(data).name


def _facts(collection: CollectedRuns) -> list[tuple[str, str]]:
    """What was run, in a few words each."""
    results = [contender.first.result for contender in collection.contenders]
    first = results[0]
    mixed = [result for result in results if result.get("networks")]
    shares = _each((100 * r.get("participation", 1) for r in results), "g")
    return [
        ("Data", _data_named(str(first.get("data", "?")))),
        ("Clients", f"{len(collection.clients):,}"),
        ("Partition", str(first.get("partition", "?"))),
        ("Network", "; ".join(dict.fromkeys(network_in_words(r) for r in [first, *mixed]))),
        ("Rounds", _each((r["rounds"] for r in results), ",")),
        ("Per round", f"{shares} % of clients"),
        ("Seeds", _from_to([len(c.runs) for c in collection.contenders])),
    ]


def _bound(epsilon: float | None) -> str:
    return epsilon_in_words(epsilon) + (", which is no guarantee" if epsilon is None else "")


def _notes(collection: CollectedRuns, table: list[dict[str, Any]]) -> list[str]:
    """What a reader must know before trusting the numbers."""
    notes = []
    if collection.running:
        going = "; ".join(collection.running)
        notes.append(f"Not finished, so its numbers will change: {going}.")
    if collection.unfinished:
        notes.append(f"Left out, since not finished: {', '.join(collection.unfinished)}.")
    if collection.not_begun:
        notes.append(f"Not run yet: {', '.join(collection.not_begun)}.")
    if collection.resumable:
        commands = "; ".join(map(resume_command, collection.resumable))
        notes.append(f"Something is left to run. To go on: {commands}")
    summary = numbers.its_summary(collection)
    if tuned := summary.get("tuned"):
        notes.append(_tuned_in_words(tuned))
    notes += summary.get("notes", [])
    if held_out := _held_out(collection):
        told = held_out_in_words(held_out)
        notes.append(f"{told[0].upper()}{told[1:]}.")
    leaking = [row["label"] for row in table if row["leaks_test"]]
    if leaking:
        notes.append(f"These looked at test rows while training: {', '.join(leaking)}.")
    notes += [
        f"{row['label']}: stopped after {_from_to(row['stopped_early'])} of {row['rounds']} "
        "rounds, since validation rows showed no gain (--patience)."
        for row in table
        if row["stopped_early"]
    ]
    notes += [
        f"{row['label']}: diverged clients were left out {times_in_words(row['skipped'])}."
        for row in table
        if row["skipped"]
    ]
    notes += [
        f"{row['label']}: {diverged_in_words(row['diverged'])}." for row in table if row["diverged"]
    ]
    notes += [
        f"{row['label']}: {never_trained_in_words(row['never_trained'])}."
        for row in table
        if row["never_trained"]
    ]
    notes += [
        f"{row['label']}: {told}."
        for row in table
        if (told := absent_in_words(row["dropped"], row["stragglers"], row["never_in_time"]))
    ]
    notes += [
        f"{row['label']}: uploads stood out, by their length or their distance to the others': "
        + ", ".join(
            f"{name} ({counted(n, 'round')})" for name, n in [*row["odd_uploads"].items()][:5]
        )
        + "."
        for row in table
        if row["odd_uploads"]
    ]
    private = [f"{r['label']} {_bound(r['epsilon']['max'])}" for r in table if r["epsilon"]]
    if private:
        notes.append(
            "Differential privacy, ε of the client with the largest, in any seed: "
            f"{', '.join(private)}. The noise of a simulation is keyed by its seed: whoever knows "
            "that can take it away."
        )
    return notes


def _held_out(collection: CollectedRuns) -> list[str]:
    clients = collection.contenders[0].first.clients
    return [name for name, row in clients.items() if row["held_out"] == "1"]


def _tuned_in_words(tuned: Mapping[str, Any]) -> str:
    """How the settings of a comparison's methods were chosen, and which were."""
    chosen = []
    for method, splits in tuned["methods"].items():
        each = [
            ", ".join(f"{k}={in_short(v)}" for k, v in one.items())
            for one in dict.fromkeys(json.dumps(s["chosen"]) for s in splits.values())
            for one in [json.loads(one)]
        ]
        chosen.append(f"{method} ({' or '.join(each)})")
    trials = counted(tuned["trials"], "trial")
    return (
        f"Every method had {trials} ({tuned['search']} search), and its settings "
        f"were chosen on validation rows: {'; '.join(chosen)}."
    )


def _of_clients(decisions: Mapping[str, Any], clients: list[str]) -> list[Any] | None:
    """What the page shows of each client's decision, in the clients' order."""
    shown = ("answer", "gain", "interval", "p", "reason")
    if not decisions:
        return None
    return [{k: decisions[c][k] for k in shown} if c in decisions else None for c in clients]


def page_data(collection: CollectedRuns) -> dict[str, Any]:
    """Everything that the page shows, ready for JSON."""
    clients, contenders = collection.clients, collection.contenders
    first = contenders[0].first
    table = numbers.rows(collection)
    verdict = numbers.page_verdict(collection, table)
    counts = mixes.client_class_counts(collection)
    order = mixes.likeness_order(counts, len(clients))
    room, held_out = mixes.CONFUSIONS // len(contenders), set(_held_out(collection))
    return {
        "version": __version__,
        "facts": _facts(collection),
        "notes": _notes(collection, table),
        "task": numbers.task_of(collection),
        "metric": numbers.metric_in_words(collection, table),
        "verdict": verdict.sentences,
        "decision": verdict.decision,
        "others": verdict.others,
        "client_decisions": _of_clients(verdict.clients, clients),
        "constant": numbers.constant_answer(collection),
        "all_metrics": numbers.all_metrics(collection),
        "tested": diagnostics_of(collection),
        "methods": table,
        "yardstick": numbers.yardstick(collection),
        "clients": clients,
        "rows": {
            # a real site may keep its numbers to itself
            part: [int(n) if (n := first.clients[name][part]) else None for name in clients]
            for part in ("train", "val", "test")
        },
        "networks": [first.result.get("networks", {}).get(name) for name in clients],
        "held_out": [i for i, name in enumerate(clients) if name in held_out],
        "classes": mixes.class_names(first.folder),
        "class_counts": None if counts is None else pack_counts(counts),
        "order": np.asarray(order).tolist(),
        "curves": [numbers.mean_curves(c) for c in contenders],
        "client_curves": [
            numbers.client_curves(c, len(clients), len(contenders)) for c in contenders
        ],
        "confusion": [mixes.confusion(c, len(clients), room) for c in contenders],
        "learnt": [
            {"method": i, "records": found}
            for i, c in enumerate(contenders)
            if (found := learnt(c, len(clients), order))
        ],
        "landscape": landscapes(collection),
        "trajectory": trajectories(collection),
    }


def _headline(data: dict[str, Any]) -> dict[str, str] | None:
    """The answer in a few words, with its gain and interval; None where nothing was judged."""
    decision, metric = data["decision"], data["metric"]
    if decision is None:
        return None
    answer = HEADLINES[decision["answer"]]
    if decision["gain"] is None:
        return {"kind": decision["answer"], "answer": answer, "by": decision["reason"]}
    times, digits = (100 if metric["percent"] else 1), metric["digits"]

    def number(value: float | None, unbounded: str = "", form: str = "") -> str:
        # without the sign of what is 0 when rounded
        rounded = None if value is None else round(times * value, digits) + 0.0
        if rounded is None:
            return unbounded
        return f"{rounded:{form if rounded else ''}.{digits}f}".replace("-", "−")

    interval = " to ".join(map(number, decision["interval"], ("−∞", "∞")))
    unit = f"points of {metric['word']}" if metric["percent"] else metric["word"]
    better = "" if metric["higher"] else " (+ is better)"
    by = (
        f"{decision['method']}: {number(decision['gain'], form='+')} {unit} against training alone"
        f"{better}, {100 - 100 * decision['level']:g} % interval {interval}; "
        f"speaks for {decision['speaks_for']}"
    )
    return {"kind": decision["answer"].replace(" ", "-"), "answer": answer, "by": by}


def _ranked(data: dict[str, Any]) -> list[tuple[int | None, dict[str, Any]]]:
    """Rows of the table, the best first, and which of them are yardsticks."""
    rows: list[tuple[int | None, dict[str, Any]]] = [
        (index, row | {"stands_for": STANDS_FOR.get(row["method"], "")})
        for index, row in enumerate(data["methods"])
    ]
    if "mean" in data["constant"]:
        score = {k: {"mean": v} for k, v in data["constant"].items() if isinstance(v, float)}
        told = "yardstick: one fixed answer"
        rows.append((None, {"label": CONSTANT, "score": score, "seeds": [0], "stands_for": told}))
    up = -1 if data["metric"]["higher"] else 1
    return sorted(
        rows,
        key=lambda pair: up * m["mean"] if (m := pair[1]["score"].get("mean")) else float("inf"),
    )


def render_report(data: dict[str, Any]) -> str:
    """The page, as HTML that needs nothing else.

    Args:
      data: from `page_data`.
    """
    from markupsafe import Markup

    script = "\n".join(_asset(__package__, name) for name in SCRIPTS)
    most_seeds = max(len(row["seeds"]) for row in data["methods"])
    decision = data["decision"]
    # not escaped are our own style and script, and the numbers, which `as_script` does
    return filled(
        __package__,
        "page.html.j2",
        data=data,
        title=f"{data['facts'][0][1]}, {counted(len(data['clients']), 'client')}",
        headline=_headline(data),
        forest=decision is not None and decision["gain"] is not None,
        tested=[TESTED[data["task"]]] if data["tested"] else [],
        ranked=_ranked(data),
        low=Markup("" if data["metric"]["higher"] else ' data-low="1"'),
        most_seeds=most_seeds,
        repeats_told=f", over {most_seeds} runs of each method" if most_seeds > 1 else "",
        first_repeat_told=" of the first run of each method" if most_seeds > 1 else "",
        seeds=_from_to([len(row["seeds"]) for row in data["methods"]]),
        script=Markup(script),
        numbers=Markup(as_script(data)),
    )


def write_report(folders: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Writes the page about some finished runs and returns where it lies.

    Args:
      folders: of runs or comparisons; several are compared, if their clients are the same.
      out: the file; by default `report.html` in the first folder.

    Raises:
      BadInput: a folder holds no finished run, or the file cannot be written.
    """
    places = [Path(folder) for folder in folders]
    if not places:
        raise BadInput("no folders: name at least one finished run or comparison")
    path = places[0] / REPORT if out is None else Path(out)
    if path.is_dir():
        raise BadInput(f"'{path}' is a folder: name a file with --out")
    page = render_report(page_data(collect(places)))
    try:
        write_atomically(path, page)
    except OSError as error:
        raise BadInput(
            f"'{path}' cannot be written ({error.strerror}): choose another --out"
        ) from None
    return path
