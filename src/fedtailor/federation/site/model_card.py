"""What a site ends with: its personal model and a card that says how good it is.

Both have the form that `fedtailor predict` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from fedtailor.core import __version__, rng, tree
from fedtailor.core.data import Data
from fedtailor.core.inputs.files import write_atomically, write_json
from fedtailor.core.method import Model
from fedtailor.core.steps.privacy import Spent, epsilon
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Tree
from fedtailor.core.turn import finetuned
from fedtailor.federation.protocol.plan import Setup
from fedtailor.federation.site.local_data import LocalData
from fedtailor.federation.site.scoring import SiteScore, gain_over, score_model
from fedtailor.federation.site.settings import SiteSettings
from fedtailor.results.config import write_config
from fedtailor.results.folder import CONFIG, FROZEN, MODELS, PREPROCESSING, RESULT, model_file
from fedtailor.results.storage import save_tensors

CARD = "card.json"


def finetuned_model(setup: Setup, model: Model, data: Data, turn: rng.Turn) -> Model:
    """The model after the fine-tuning that was agreed on, if any was."""
    epochs = setup.config.finetune
    if not epochs:
        return model
    recipe: Recipe = replace(setup.config.recipe(), epochs=epochs, steps=0)
    return finetuned(setup.method, setup.task, model, data, turn, recipe)


def local_model(setup: Setup, data: Data, client: int, played: Sequence[int]) -> Model:
    """What the site would have without the federation.

    Trained alone in the same rounds, with the same batches, from the same initial model, on rows
    that are encoded as if there were no other sites.
    """
    own, recipe = setup.initial, setup.config.recipe()
    for round in played:
        turn = setup.turn(rng.TURN, round).of(torch.tensor(client)).at_client()
        own = fit(setup.task, own, data, turn, recipe)
    last = setup.turn(rng.SCORE, setup.plan.rounds).of(torch.tensor(client)).at_client()
    return finetuned_model(setup, own, data, last.split()[1])


def _spent(setup: Setup, noisy: Spent) -> dict[str, Any] | None:
    """The site's ε, for what left it and for what it keeps."""
    config = setup.config
    if not config.dp_clip:
        return None
    found = epsilon(noisy, config.dp_noise, config.dp_delta)
    bound = found if isfinite(found) else None
    return {"delta": config.dp_delta, "epsilon": bound, "noise": "secret"}


def write_model(
    folder: Path,
    site: SiteSettings,
    setup: Setup,
    local: LocalData,
    model: Tree,
    own: SiteScore,
    played: Sequence[int],
    noisy: Spent,
) -> dict[str, Any]:
    """Writes model, preprocessing and card; returns the card. `own` is the model's score."""
    agreed, without, metric = local.rows, local.alone, setup.config.metric
    trained = local_model(setup, without.data, site.client, played)
    alone = score_model(
        setup, setup.task.predict, trained, without.test, without.encoder, every_metric=True
    )
    card: dict[str, Any] = {
        "site": site.name,
        "federation": folder.name,
        "method": setup.plan.method,
        "options": setup.config.options,
        "model": setup.config.model,
        "rounds": setup.plan.rounds,
        "played": len(played),
        "task": setup.encoder.form.task,
        "metric": metric,
        "score": own.value,
        "local_score": alone.value,
        "gain": gain_over(own.value, alone.value, metric),
        "metrics": own.metrics,
        "local_metrics": alone.metrics,
        "rows": {
            "train": int(local.data.n),
            "val": int(local.data.val_n),
            "test": int(local.test.n),
        },
        "class_mix": local.mix,
        "epsilon": _spent(setup, noisy),
        "version": __version__,
    }
    (folder / MODELS).mkdir(exist_ok=True)
    save_tensors(model_file(folder, site.name), tree.flatten(model))
    if setup.task.constants:
        save_tensors(folder / FROZEN, tree.flatten({setup.config.model: setup.task.constants}))
    config = replace(setup.config, **site.data)
    write_atomically(folder / CONFIG, write_config(config, __version__))
    write_json(folder / PREPROCESSING, agreed.encoder.to_json())
    result = card | {"per_client": {site.name: own.value}, "networks": {}}
    write_json(folder / RESULT, result)
    write_json(folder / CARD, card)
    return card
