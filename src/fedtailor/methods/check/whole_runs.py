"""What a run does besides rounds: going on after a stop, fine-tuning, files, privacy, networks."""

from __future__ import annotations

from dataclasses import replace

import torch
from safetensors.torch import load, save
from torch import nn

from fedtailor.core import tree
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Tree
from fedtailor.engine import Simulation
from fedtailor.methods.check.world import (
    CLASSES,
    CLIENTS,
    FEATURES,
    Trial,
    apart,
    came_to,
    demand,
    same,
)
from fedtailor.methods.describe import among
from fedtailor.methods.leakage import leaks_of


def _from_file(values: Tree) -> Tree:
    """A tree as it may come back from a file: names have another order."""
    flat = load(save({k: v.contiguous() for k, v in tree.flatten(values).items()}))
    return tree.unflatten({k: flat[k] for k in sorted(flat, reverse=True)})


def _restored(values: Tree) -> Tree:
    """The same in the old order, as a run is resumed."""
    return tree.map(lambda _, leaf: leaf, values, _from_file(values))


def check_resume(trial: Trial) -> None:
    """a run that was stopped goes on as if it had not been"""
    again = trial.at(trial.begun, _restored)
    trial.go_on(again)
    far = apart(came_to(trial.played), came_to(again))
    demand(not far, f"after a stop it differs: {far}; all that counts must be in a state")


def check_files(trial: Trial) -> None:
    """models survive their files, and predict as before"""
    x = trial.client_data.x[:5]
    cid, model = next(iter(trial.played.models()))
    back = _from_file(model)
    demand(same(model, back), f"client {cid}: the model of a file has another structure")
    one, two = (trial.method.predict(each, x) for each in (model, back))
    # to rounding: products of numbers that lie apart in memory are added in another order
    near = bool(torch.allclose(one, two, rtol=1e-12, atol=1e-12))
    demand(near, f"client {cid}: the model of a file predicts otherwise")


def check_finetune(trial: Trial) -> None:
    """models may be fine-tuned before they are tested (--finetune)"""
    tuned = trial.played.outputs(finetune=Recipe(epochs=1, batch=8, lr=0.1)).test
    plain = trial.played.outputs().test
    demand(bool(tuned.isfinite().all()), "fine-tuned models say something that is not finite")
    demand(not torch.equal(tuned, plain), "fine-tuning changed nothing")


def check_private(trial: Trial) -> None:
    """with DP-SGD, all that is told of rows goes through noisy gradients, or it says otherwise"""
    trial_recipe = replace(trial.recipe, epochs=1, batch=4, dp_clip=1.0, dp_noise=1.0)
    method = trial.factory(trial.task, recipe=trial_recipe, **trial.options)
    if method.not_private:
        return
    leaks = leaks_of(method, trial.task, trial.client_data)
    told = "depends on {} rows without noise: say why in `Method.not_private`"
    demand(not leaks.train, f"'{leaks.train[0]}' {told.format('training')}" if leaks.train else "")
    if leaks.val and not method.validates:
        demand(False, f"'{leaks.val[0]}' {told.format('validation')}, or set `validates`")


def _shallow() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 12), nn.ReLU(), nn.Linear(12, CLASSES))


def check_networks(trial: Trial) -> None:
    """clients may have different networks (--models), if it says so (`Method.own_networks`)"""
    if not trial.method.own_networks:
        return
    small: Task = classification(_shallow, form=trial.task.form)
    ids, known = torch.arange(CLIENTS), among(trial.factory, (trial.task, small))
    deep, shallow = (
        trial.factory(task, recipe=trial.recipe, **known, **trial.options)
        for task in (trial.task, small)
    )
    others = [(shallow, small, ids[::2])]
    sim = Simulation(deep, trial.client_data, trial.task, engine=trial.engine, others=others)
    for _ in range(2):
        sim.step(ids)
    finite = bool(sim.outputs().test.isfinite().all())
    demand(finite, "with two networks, models say something that is not finite")
