"""A federation's page, from what its sites agreed to share: the page that a simulation has.

Sites tell scores, not what models say of their rows. Of each gain they may tell its standard error
over test rows, and that stands in for the rows: the statistics are a simulation's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are used

from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator.federation_file import FederationFile
from fedtailor.federation.coordinator.progress import (
    finished_of,
    is_over,
    networks_of,
    round_now,
    rounds_of,
    sites_of,
    told_score,
    without_model,
)
from fedtailor.federation.coordinator.store import HISTORY
from fedtailor.federation.protocol.lines import Line, read_lines
from fedtailor.federation.protocol.plan import Setup, set_up
from fedtailor.federation.run_files import (
    NOTHING_SENT,
    PAGE,
    RunNumbers,
    at_point,
    run_result,
    write_comparison,
)
from fedtailor.federation.site.scoring import gain_over
from fedtailor.partition.parts import PARTS
from fedtailor.results.folder import ALONE
from fedtailor.results.metrics.named import METRICS
from fedtailor.results.statistics import Gains, decide, decide_clients, scoring_of, sentences
from fedtailor.results.statistics.decision import usual_margin
from fedtailor.results.statistics.scoring import IN_UNITS
from fedtailor.results.verdict import ONLY_ALONE, Verdict, unjudged, wording_of


class _Told(NamedTuple):
    """What sites told when they had their models, by name."""

    score: dict[str, float | None]
    alone: dict[str, float | None]
    error: dict[str, float]  # of the gain
    rows: dict[str, dict[str, int]]


def _told(finished: Mapping[str, Mapping[str, Any]]) -> _Told:
    return _Told(
        {name: told_score(said, "pre") for name, said in finished.items()},
        {name: told_score(said, "local") for name, said in finished.items()},
        {name: said["gain_error"] for name, said in finished.items() if "gain_error" in said},
        {name: {k: said[k] for k in PARTS if k in said} for name, said in finished.items()},
    )


def gains_of(told: _Told, metric: str) -> Gains:
    """Sites' gains as the statistics take them; who tells too little is left out, with the reason.

    A site's rows get its mean gain and deviations of a normal distribution, scaled to its standard
    error: sums over rows, which is what tests and intervals go by, then vary as at the site.
    """
    left_out: dict[str, str] = {}
    found: dict[str, tuple[float, np.ndarray]] = {}
    for name, score in told.score.items():
        gain, rows = gain_over(score, told.alone[name], metric), told.rows[name].get("test", 0)
        if score is None:
            left_out[name] = "tells no scores"
        elif gain is None:
            left_out[name] = "tells no score of training alone"
        elif name not in told.error or rows < 2:
            left_out[name] = "does not tell how sure its gain is"
        else:
            away = scipy.stats.norm.ppf((np.arange(rows) + 0.5) / rows)
            away *= told.error[name] / np.sqrt((away**2).sum())
            found[name] = (gain, gain / rows + away)
    return Gains(
        clients=tuple(found),
        left_out=left_out,
        by_repeat=np.array([[gain for gain, _ in found.values()]]),
        row_variances=np.array([[told.error[name] ** 2 for name in found]]),
        parts=tuple(parts for _, parts in found.values()),
        weights=tuple(np.full(len(parts), 1 / len(parts)) for _, parts in found.values()),
        share=scoring_of(METRICS[metric]).share,
    )


def _verdict(setup: Setup, told: _Told) -> Verdict:
    metric, target = METRICS[setup.config.metric], setup.encoder.target
    if setup.plan.method == ALONE:
        return unjudged(ONLY_ALONE)
    if all(value is None for value in told.alone.values()):
        return unjudged(
            "Whether federation helps these sites is not known: none tells its score alone."
        )
    margin = usual_margin()
    if metric.name in IN_UNITS:  # the deviation of labels, as all have agreed on it
        margin *= target.scale if target else 0.0
    gains = gains_of(told, metric.name)
    # parts of a gain are known, rows are not
    scoring = scoring_of(metric)._replace(per_row=lambda outputs, labels: outputs)
    asked: dict[str, Any] = {
        "method": setup.plan.method,
        "metric": metric.name,
        "margin": margin,
        "gains": gains,
    }
    nobody: dict[str, tuple[()]] = dict.fromkeys(told.score, ())
    decision = decide(nobody, scoring, **asked)
    each = decide_clients(nobody, scoring, **asked)
    wording = wording_of(metric, target.name if target else "", margin)
    return Verdict(
        decision.as_dict(),
        {},
        {name: found.as_dict() for name, found in each.items()},
        sentences(decision, wording, clients=each, repeats=0),
    )


def _history(folder: Path, setup: Setup, told: _Told) -> list[Line]:
    """The rounds as a run's history has them: what sites told after training, and when asked."""
    metric, names = setup.config.metric, list(told.score)

    def said_at(point: Any, sites: Mapping[str, Mapping[str, Any]]) -> Line:
        each = [told_score(sites.get(name, {}), point) for name in names]
        losses = [sites.get(name, {}).get(f"{point}_loss") for name in names]
        return at_point(point, each, metric, losses)

    lines: dict[int, Line] = {}
    seconds = 0.0
    for line in rounds_of(folder):
        seconds += line["seconds"]
        about: Line = {"round": line["round"], "bytes": line["bytes"], "seconds": round(seconds, 3)}
        lines[line["round"]] = about | said_at("post", line["sites"])
    for line in read_lines(folder / HISTORY):
        for kind in ("scores", "finished"):
            if kind in line and line["round"] in lines:
                lines[line["round"]] |= said_at("pre", line[kind])
    last = max(lines)
    lines[last] |= said_at("pre", finished_of(folder))  # who came later finished later
    return [lines[number] for number in sorted(lines)]


def _notes(
    told: _Told, missing: Sequence[str], why: Mapping[str, str], rounds: Sequence[Line]
) -> list[str]:
    silent = [name for name, score in told.score.items() if score is None]
    notes = [
        "Numbers are as sites tell them: rounded by their own settings (score_digits, counts), "
        "and none is of rows that were brought together. By round they are those right after "
        "training at the site, unless the coordinator asked for others (score_every)."
    ]
    if silent:
        notes.append(
            f"Tell no scores: {', '.join(silent)}. Their own settings say so (share, min_scored, "
            "max_answers), or the metric is undefined there; they have pages of their own."
        )
    played = Counter(name for line in rounds for name in line["sites"])
    away = [
        f"{name} ({played[name]} of {len(rounds)}{'; latest failure: ' * bool(why[name])}"
        f"{why[name]})"
        for name in told.score
        if played[name] < len(rounds)
    ]
    if away:
        notes.append(
            f"Took part in fewer rounds: {', '.join(away)}. Training alone was as many rounds "
            "there, so their gain may flatter the federation."
        )
    if missing:
        notes.append(
            f"Have no model, and cannot be told of: {', '.join(missing)}. When that is mended, run "
            "it again."
        )
    return notes


def federation_report(found: FederationFile) -> Path:
    """Writes the page of a finished federation and returns where it lies.

    Raises:
      BadInput: it is not finished, or no site tells its scores.
    """
    folder, rounds = found.state_folder, found.plan.rounds
    if not is_over(folder, rounds):
        raise BadInput(
            f"federation '{found.id}' is not finished (round {round_now(folder)} of {rounds}): go "
            "on with fedtailor federation run"
        )
    told = _told(finished_of(folder))
    if all(score is None for score in told.score.values()):
        raise BadInput(
            f"no site of federation '{found.id}' shares its scores (share in site.toml): there is "
            "nothing to show; each site has a page of its own (fedtailor federation report "
            "site.toml)"
        )
    setup = set_up(found.plan)
    history = _history(folder, setup, told)
    data = f"federation {found.id}"
    having = networks_of(folder)
    result = run_result(setup, setup.plan.method, told.score, history, data, having)
    result["seconds"] = history[-1]["seconds"]
    runs = [RunNumbers(result, history)]
    # whose method is training alone has nothing else to set beside it
    if setup.plan.method != ALONE and any(value is not None for value in told.alone.values()):
        ends = at_point("pre", list(told.alone.values()), setup.config.metric)
        alone = [{"round": history[-1]["round"], "bytes": NOTHING_SENT} | ends]
        runs.append(RunNumbers(run_result(setup, ALONE, told.alone, alone, data, having), alone))
    counted = [] if setup.plan.method == ALONE else rounds_of(folder)
    missing = without_model(folder, found.plan.clients)
    why = {site.name: site.why for site in sites_of(folder, {})}
    notes = _notes(told, missing, why, counted)
    return write_comparison(folder / PAGE, setup, runs, told.rows, _verdict(setup, told), notes)
