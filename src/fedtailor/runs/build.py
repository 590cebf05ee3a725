"""From a configuration to network and method."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.core import rng
from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.core.losses import RowLosses, class_weighted, parse_loss
from fedtailor.core.method import Method
from fedtailor.core.network.augmentation import AUGMENTATIONS
from fedtailor.core.steps.privacy import require_accountant
from fedtailor.core.task import TASKS, Task
from fedtailor.core.tree import Params
from fedtailor.core.uploads.moves import averaged
from fedtailor.engine import ClientData
from fedtailor.engine.loops.runner import use_precision
from fedtailor.methods.combine import built_in, small_upload, with_own_networks
from fedtailor.methods.describe import among
from fedtailor.methods.leakage import Leaks, leaks_of, refuse_leaks
from fedtailor.methods.parts.robust import with_max_norm
from fedtailor.models import freeze, globs_of, load_weights, network_of
from fedtailor.results.config import Config, check_class_weights
from fedtailor.runs.schedule import networks


def make_network(config: Config, form: Form, model: str | None = None) -> nn.Module:
    """The network of a run, or another one by its name, with new weights."""
    given = config.objects.model
    network = network_of((model or config.model) if given is None else given, form)
    if config.weights:
        weights = config.objects.weights or config.weights
        load_weights(network, weights, globs_of(config.weights_except))
    return freeze(network, globs_of(config.freeze))


def make_task(
    config: Config, form: Form, model: str | None = None, constants: Params | None = None
) -> Task:
    """The network of a run and its loss; `constants` are its frozen parameters, if known."""
    return TASKS[form.task](
        lambda: make_network(config, form, model),
        loss=_loss(config, form),
        grouping=config.blocks,
        augment=AUGMENTATIONS[config.augment],
        device=config.home,
        compute=torch.bfloat16 if config.precision == "bf16" else None,
        form=form,
        key=rng.key(config.seed, rng.INITIAL),
        constants=constants,
    )


def _loss(config: Config, form: Form) -> RowLosses | None:
    """What clients make small; None is Cox's, which is no loss of single rows."""
    loss = config.objects.loss or parse_loss(config.loss, form.task)
    weights = check_class_weights(config.class_weights, form.classes)
    if loss is None or not weights:
        return loss
    return class_weighted(loss, weights)


def make_method(config: Config, task: Task, networks: Sequence[Task] = ()) -> Method:
    """The method of a run.

    Args:
      config: of the run.
      task: a client's network.
      networks: those of all clients, the server's first, where they differ; without, what the
        client shares may have other names than at the server, but it predicts as it will.
    """
    factory = config.factory()
    if config.dp_clip:
        require_accountant()
        if task.batch_norm:
            raise BadInput(
                f"DP-SGD with '{config.model}': BatchNorm mixes examples, so none is private: "
                "choose a model with GroupNorm or without normalisation"
            )
    known: dict[str, Any] = dict(among(factory, networks)) if networks else {}
    asked = inspect.signature(factory).parameters
    if "participation" in asked and "participation" not in config.options:
        known["participation"] = config.participation
    if "recipe" not in asked and all(p.kind is not p.VAR_KEYWORD for p in asked.values()):
        raise BadInput(
            f"method '{config.method}' takes no recipe, which says how clients train: give its "
            "factory an argument recipe=Recipe()"
        )
    try:
        method = factory(task, recipe=config.recipe(), **config.options, **known)
    except BadInput as error:  # of several methods one should know which
        if config.method in str(error).lower():
            raise
        raise BadInput(f"method '{config.method}': {error}") from None
    if not isinstance(method, Method):
        raise BadInput(
            f"method '{config.method}' is a factory that returns {type(method).__name__}: let it "
            "return a Method"
        )
    if config.models and not method.own_networks:
        raise BadInput(
            f"models is '{config.models}', but {config.method} needs equal networks: leave it out, "
            f"or choose {', '.join(with_own_networks())}"
        )
    if method.validates and config.val == 0 and not config.partition_file:
        raise BadInput(f"val is 0, but {config.method} looks at validation rows: raise --val")
    if config.dp_clip and method.not_private:
        raise BadInput(f"DP-SGD with '{config.method}': {method.not_private}")
    if config.dp_noise:
        refuse_leaks(config.method, method, Leaks(), config.dp_public)
    if config.dp_clip and task.kind == "survival":
        raise BadInput(
            "DP-SGD clips the gradient of every row, and Cox's loss has none of single rows: leave "
            "--dp-clip out"
        )
    if task.kind in method.refuses:
        raise BadInput(
            f"{config.method} does not learn a {task.kind}: {method.refuses[task.kind]}; choose "
            "another method"
        )
    return _limited(config, method, task) if config.max_norm else method


def without_validation(config: Config, method: Method, client_data: ClientData) -> list[str]:
    """The clients that lack validation rows which a run looks at.

    With `val` every client has some; of a partition that was given, nobody knows before.

    Raises:
      BadInput: all of them do.
    """
    if not (config.patience or method.validates) or method.leaks:
        return []
    counts = client_data.val.n.tolist()
    lacking = [name for name, n in zip(client_data.names, counts, strict=True) if not n]
    if len(lacking) == client_data.clients:
        patient = f"patience is {config.patience}"
        told = f"{config.method} looks at them" if method.validates else patient
        raise BadInput(f"no client has validation rows, but {told}: give a partition that has some")
    return lacking if method.validates else []


def _limited(config: Config, method: Method, task: Task) -> Method:
    """The method with `--max-norm`, if there is something to limit."""
    ours = config.objects.factory() is None and built_in(config.method)
    if ours and not averaged(small_upload(config.factory())):
        raise BadInput(
            f"max-norm is {config.max_norm:g}, but {config.method} takes no mean of uploads: leave "
            "it out, or choose another method"
        )
    return with_max_norm(method, task, config.max_norm)


def prove_private(config: Config, method: Method, task: Task, data: ClientData) -> None:
    """Sees that what a stranger's method sends is protected; ours are known to be as they say.

    Raises:
      BadInput: something depends on rows without noise.
    """
    strange = config.objects.factory() is not None or not built_in(config.method)
    if config.dp_noise and strange:
        refuse_leaks(config.method, method, leaks_of(method, task, data), config.dp_public)


def make_players(config: Config, form: Form, clients: int) -> list[tuple[Method, Task, Tensor]]:
    """(method, network, ids of the clients that have it); the server's is first."""
    use_precision(config.precision)
    having = networks(config.models, config.model, clients)
    names = [name for name, _ in having]
    tasks = {name: make_task(config, form, name) for name in dict.fromkeys(names)}
    if not config.models:
        (task,) = tasks.values()
        return [(make_method(config, task), task, having[0][1])]
    server = max(tasks, key=lambda name: len(tasks[name].blocks))
    if make_method(replace(config, model=server), tasks[server]).own_networks == "named":
        server = config.model
    if server in names:
        having.insert(0, having.pop(names.index(server)))
    else:  # no client has it
        tasks[server] = make_task(config, form, server)
        having.insert(0, (server, torch.arange(0)))
    everyone = (tasks[server], *(task for name, task in tasks.items() if name != server))
    found = []
    for name, ids in having:
        try:
            method = make_method(replace(config, model=name), tasks[name], everyone)
            found.append((method, tasks[name], ids))
        except BadInput as error:
            if name == server:
                raise
            raise BadInput(f"clients with '{name}': {error}") from None
    return found


def server_model(config: Config, players: Sequence[tuple[Method, Task, Tensor]]) -> str:
    """The name of the server's network, of what `make_players` made of a configuration."""
    clients = sum(len(ids) for _, _, ids in players)
    having = networks(config.models, config.model, clients)
    return next((name for name, ids in having if torch.equal(ids, players[0][2])), config.model)


def players_on(
    config: Config, form: Form, clients: int, device: str
) -> list[tuple[Method, Task, Tensor]]:
    """The same as a worker makes them for itself, on its own device."""
    return make_players(replace(config, engine="vectorised", device=device), form, clients)
