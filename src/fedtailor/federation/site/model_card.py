"""What a site ends with: its personal model, a card that says how good it is, and its own page.

Model and card have the form that `fedtailor predict` reads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedtailor.core import __version__, rng, tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically, write_json
from fedtailor.core.method import Model
from fedtailor.core.steps.privacy import epsilon_in_words
from fedtailor.core.training import fit
from fedtailor.core.tree import Tree
from fedtailor.engine import ClientData
from fedtailor.federation.protocol.lines import Line
from fedtailor.federation.protocol.plan import Setup
from fedtailor.federation.run_files import (
    NOTHING_SENT,
    PAGE,
    RunNumbers,
    at_point,
    run_result,
    write_comparison,
)
from fedtailor.federation.site.local_data import LocalData
from fedtailor.federation.site.scoring import SiteScore, error_of_gain, gain_over, score_model
from fedtailor.federation.site.settings import SiteSettings
from fedtailor.federation.site.state import FEDERATIONS
from fedtailor.report import write_report
from fedtailor.results.config import write_config
from fedtailor.results.folder import (
    ALONE,
    CONFIG,
    FROZEN,
    MODELS,
    PREPROCESSING,
    RESULT,
    SUMMARY,
    model_file,
)
from fedtailor.results.outputs import PartRows, RunOutputs, SaidInRound
from fedtailor.results.storage import save_tensors
from fedtailor.results.verdict import JudgedRun, judge

log = logging.getLogger("fedtailor.site")

CARD = "card.json"
GLOBAL = "global"  # what the global model is called on a site's page


def local_model(
    setup: Setup,
    data: Data,
    client: int,
    played: Sequence[int],
    after: Callable[[int, Model, float], None] = lambda round, model, seconds: None,
) -> Model:
    """What the site would have without the federation.

    Trained alone in the same rounds, with the same batches, from the same initial model, on rows
    that are encoded as if there were no other sites. `after` hears of each round: its number, the
    model, and the seconds that it took.
    """
    own, recipe = setup.initial, setup.config.recipe()
    for round in played:
        begun = time.monotonic()
        turn = setup.turn(rng.TURN, round).of(torch.tensor(client)).at_client()
        own = fit(setup.task, own, data, turn, recipe)
        after(round, own, time.monotonic() - begun)
    last = setup.turn(rng.SCORE, setup.plan.rounds).of(torch.tensor(client)).at_client()
    more = setup.config.finetuning()  # by itself: the method's own way needs what the server sends
    return own if more is None else fit(setup.task, own, data, last.split()[1], more)


def _spent(setup: Setup, spent: tuple[float, float]) -> dict[str, Any] | None:
    """The site's ε, for what left it and for what it keeps."""
    if not setup.config.dp_clip:
        return None
    epsilon, delta = spent
    bound = epsilon if isfinite(epsilon) else None
    return {"delta": delta or setup.config.dp_delta, "epsilon": bound, "noise": "secret"}


class OwnPart(NamedTuple):
    """What a site knows at the end of its own part in a federation."""

    model: Tree  # its personal one
    score: SiteScore  # what that comes to
    general: SiteScore | None  # the same of the global model, where the method has one
    played: Sequence[int]  # rounds that its state is the result of
    noted: Sequence[Line]  # what its models came to, round by round
    spent: tuple[float, float]  # ε and δ of all that it answered


def write_model(
    folder: Path, site: SiteSettings, setup: Setup, local: LocalData, own: OwnPart
) -> dict[str, Any]:
    """Writes model, preprocessing, card and the site's own page; returns the card."""
    agreed, without, metric = local.rows, local.alone, setup.config.metric

    def judged(model: Model, *, every_metric: bool = False) -> SiteScore:
        predict, test = setup.task.predict, without.test
        return score_model(setup, predict, model, test, without.encoder, every_metric=every_metric)

    lines: dict[int, Line] = {}

    def note(round: int, model: Model, seconds: float) -> None:
        found = judged(model)
        said = at_point("pre", [found.value], metric, [found.loss])
        lines[round + 1] = {"train_seconds": seconds} | said

    trained = local_model(setup, without.data, site.client, own.played, note)
    alone = judged(trained, every_metric=True)
    if not own.played:  # nothing was trained to compare with
        alone = alone._replace(value=None, loss=None, metrics={})
    card: dict[str, Any] = {
        "site": site.name,
        "federation": folder.name,
        "method": setup.plan.method,
        "options": setup.config.options,
        "model": setup.config.model,
        "rounds": setup.plan.rounds,
        "played": len(own.played),
        "task": setup.encoder.form.task,
        "metric": metric,
        "score": own.score.value,
        "local_score": alone.value,
        "global_score": own.general.value if own.general else None,
        "gain": gain_over(own.score.value, alone.value, metric),
        "gain_error": error_of_gain(own.score, alone, metric),
        "metrics": own.score.metrics,
        "local_metrics": alone.metrics,
        "rows": {
            "train": int(local.data.n),
            "val": int(local.data.val_n),
            "test": int(local.test.n),
        },
        "class_mix": local.mix,
        "epsilon": _spent(setup, own.spent),
        "version": __version__,
    }
    (folder / MODELS).mkdir(exist_ok=True)
    save_tensors(model_file(folder, site.name), tree.flatten(own.model))
    if setup.task.constants:
        save_tensors(folder / FROZEN, tree.flatten({setup.config.model: setup.task.constants}))
    config = replace(setup.config, **site.data)
    write_atomically(folder / CONFIG, write_config(config, __version__))
    write_json(folder / PREPROCESSING, agreed.encoder.to_json())
    result = card | {"per_client": {site.name: own.score.value}, "networks": {}}
    write_json(folder / RESULT, result)
    write_json(folder / CARD, card)
    try:
        _write_page(folder / PAGE, site, setup, local.as_client(), card, own, alone, lines)
    except (BadInput, OSError) as error:  # the model is there, and that is what it was for
        log.warning("no page was written: %s", error)
    return card


# --- the site's own page ---


def own_pages(site: SiteSettings) -> list[Path]:
    """Writes the site's page of each federation that it has finished anew; returns them."""
    folders = sorted((site.folder / FEDERATIONS).glob(f"*/{PAGE}/{SUMMARY}"))
    if not folders:
        raise BadInput(
            f"site '{site.name}' has finished no federation, so it has no page yet: let the "
            "coordinator play all rounds (fedtailor federation run)"
        )
    return [write_report([path.parent]) for path in folders]


def _write_page(
    folder: Path,
    site: SiteSettings,
    setup: Setup,
    clients: ClientData,
    card: dict[str, Any],
    own: OwnPart,
    alone: SiteScore,
    alone_lines: dict[int, Line],
) -> None:
    """The site's own page, with all that it knows of itself; nothing of it leaves."""
    method = setup.plan.method
    runs = [_numbers(site, setup, clients, method, own.score, _own_lines(own, setup))]
    if method != ALONE and own.played:
        runs.append(_numbers(site, setup, clients, ALONE, alone, alone_lines))
    if own.general is not None:
        runs.append(_numbers(site, setup, clients, GLOBAL, own.general, {}))
    target = setup.encoder.target
    verdict = judge(
        {run.result["method"]: [JudgedRun(run.outputs, None)] for run in runs},
        [site.name],
        setup.config.metric,
        label=target.name if target else "",
        real=True,
    )
    notes = [
        f"The page of {site.name} about itself: others see no more of it than {site.path.name} "
        "lets it share (share, counts). By round, scores are those right after its own training, "
        "unless the coordinator asked for others."
    ]
    if not own.played:
        notes.append("The site took part in no round, so there is no training alone to compare.")
    if card["epsilon"]:
        bound = epsilon_in_words(card["epsilon"]["epsilon"])
        notes.append(f"DP-SGD with secret noise: ε {bound} (δ = {card['epsilon']['delta']:g}).")
    write_comparison(folder, setup, runs, {site.name: card["rows"]}, verdict, notes)


def _own_lines(own: OwnPart, setup: Setup) -> dict[int, Line]:
    """The site's rounds that count, by number."""
    metric = setup.config.metric
    lines: dict[int, Line] = {}
    for noted in own.noted:
        if noted["point"] == "post" and noted["round"] - 1 not in own.played:
            continue  # its answer came too late
        said = at_point(noted["point"], [noted["score"]], metric, [noted["loss"]])
        lines[noted["round"]] = lines.get(noted["round"], {}) | noted.get("cost", {}) | said
    return lines


def _numbers(
    site: SiteSettings,
    setup: Setup,
    clients: ClientData,
    method: str,
    final: SiteScore,
    lines: dict[int, Line],
) -> RunNumbers:
    """A model's numbers as a run's, with its score at the end."""
    metric, rounds = setup.config.metric, setup.plan.rounds
    ends = at_point("pre", [final.value], metric, [final.loss])
    whole = lines | {rounds: lines.get(rounds, {}) | ends}
    history: list[Line] = []
    seconds = 0.0
    for number, line in sorted(whole.items()):
        seconds += line.get("train_seconds", 0.0)
        spent = {"seconds": round(seconds, 3)} if seconds else {}
        history.append({"round": number, "bytes": NOTHING_SENT} | line | spent)
    result = run_result(setup, method, {site.name: final.value}, history, str(site.data["data"]))
    result["metrics"] = {
        name: {"per_client": {site.name: of.get("value")}}
        | ({"undefined": {site.name: of["undefined"]}} if "undefined" in of else {})
        for name, of in final.metrics.items()
    }
    if seconds:
        result |= {"seconds": round(seconds, 3), "train_seconds": round(seconds, 3)}
    n, none = torch.tensor([len(final.said)]), torch.zeros(1, dtype=torch.int64)
    test = PartRows(final.labels, torch.arange(len(final.said)), n)
    val = PartRows(final.labels[:0], test.row[:0], none)
    said = SaidInRound(rounds, final.said, final.said[:0])
    return RunNumbers(result, history, RunOutputs(test, val, said, None), clients)
