"""From a configuration to data, clients, network and method: all that a run needs."""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.core.method import Method
from fedtailor.core.steps.privacy import require_accountant
from fedtailor.core.task import AUGMENTATIONS, Task, classification, cross_entropy
from fedtailor.datasets import Encoder, Source, encode, load
from fedtailor.datasets.wording import quoted
from fedtailor.engine import ClientData
from fedtailor.engine.loops.runner import use_precision
from fedtailor.models import network_of
from fedtailor.partition import (
    Partition,
    divide,
    hold_out,
    load_partition,
    numbered_clients,
    parse_partition,
    partition_of,
    permute_targets,
    split_rows,
)
from fedtailor.partition.latent import latent_clusters
from fedtailor.results.config import Config
from fedtailor.runs.schedule import networks

DEFAULT_CLIENTS, DEFAULT_PARTITION = 20, "dirichlet:0.1"
DEFAULT_MODELS = {"image": "cnn", "table": "mlp", "text": "fasttext"}


class RunData(NamedTuple):
    """The data of a run, laid out by client.

    Attributes:
      config: as given, with every `auto` that concerns data replaced.
      source: where the rows come from.
      encoder: preprocessing, fitted on training rows.
      partition: whose the rows are.
      client_data: the same on the compute device.
      held_out: ids of clients that never train.
    """

    config: Config
    source: Source
    encoder: Encoder
    partition: Partition
    client_data: ClientData
    held_out: Tensor

    @property
    def trained(self) -> Tensor:
        """Ids of the clients that may take part."""
        everyone = torch.arange(self.client_data.clients)
        return everyone[~torch.isin(everyone, self.held_out)]

    def digest(self) -> str:
        """Tells whether two runs see the same data, laid out in the same way."""
        found = hashlib.blake2b(digest_size=16)
        found.update(np.ascontiguousarray(self.client_data.x.cpu().numpy()).tobytes())
        self._add_rows(found)
        return found.hexdigest()

    def rows_digest(self) -> str:
        """Tells whether two runs have the same rows at the same clients, however these are encoded.

        Runs with another normalisation or image size can still be compared client by client.
        """
        found = hashlib.blake2b(digest_size=16)
        self._add_rows(found)
        return found.hexdigest()

    def _add_rows(self, found: hashlib.blake2b) -> None:
        found.update(self.client_data.y.cpu().numpy().tobytes())
        found.update("\0".join(self.client_data.names).encode())
        for part in (self.partition.train, self.partition.val, self.partition.test):
            for rows in part:
                found.update(rows.tobytes() + b"|")


def choose_device(name: str) -> torch.device:
    """The device that `name` means.

    Raises:
      BadInput: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("only cpu and cuda are known to work")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"device '{name}' cannot be used ({reason}): try --device cpu") from None
    return device


def hardware(device: torch.device) -> str:
    """What a device is, for whoever reads the results elsewhere."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def find_source(config: Config) -> Source:
    """The rows that a configuration names."""
    if config.objects.data is not None:
        return config.objects.data
    return load(
        config.data,
        data_dir=Path(config.data_dir) if config.data_dir else None,
        label=config.label or None,
        client=config.client_column or None,
        text=config.text_column or None,
        image_size=config.image_size or None,
        hub=config.hub,
    )


def _clusters(
    source: Source, scheme_name: str, groups: Sequence[float], seed: int
) -> np.ndarray | None:
    if scheme_name != "latent":
        return None
    if source.kind == "text":
        raise BadInput(
            f"partition 'latent' does not take text such as '{source.name}': use another"
        )
    # only to lay the rows out: nothing of this reaches a model
    raw = source.raw if source.kind == "image" else encode(source, np.arange(len(source)))[1]
    return latent_clusters(np.asarray(raw), source.labels, int(groups[0]), seed=seed)


def _check_file(config: Config, partition: Partition) -> None:
    """Refuses what contradicts a saved partition; a resumed run says again what the file has."""
    file = f"'{config.partition_file}'"
    if config.clients not in (0, len(partition)):
        raise BadInput(
            f"clients is {config.clients}, but the partition in {file} has {len(partition)}: "
            "leave it out, or drop --partition-file"
        )
    if config.partition in ("auto", partition.scheme):
        return
    if str(parse_partition(config.partition)) != partition.scheme:
        raise BadInput(
            f"partition is '{config.partition}', but the one in {file} is "
            f"{quoted(partition.scheme)}: leave it out, or drop --partition-file"
        )


def make_partition(config: Config, source: Source) -> Partition:
    """Who has which rows, and for what."""
    if config.partition_file:
        partition = load_partition(Path(config.partition_file), rows=len(source))
        _check_file(config, partition)
    elif config.objects.partition is not None:
        partition = partition_of(
            config.objects.partition,
            source,
            config.clients,
            seed=config.partition_seed,
            test=config.test,
            val=config.val,
            official_test=source.official_test if config.official_test else None,
        )
    else:
        scheme = parse_partition(config.partition)
        natural = scheme.name == "natural"
        rows = divide(
            scheme,
            source.labels,
            None if natural else config.clients,
            seed=config.partition_seed,
            owner=source.owner if source.owners else None,
            clusters=_clusters(source, scheme.name, scheme.parameters, config.partition_seed),
            min_samples=config.min_samples,
        )
        names = source.owners if natural else numbered_clients(len(rows))
        if config.official_test and not source.official_test.any():
            raise BadInput(
                f"data '{source.name}' has no test rows of its own: drop --official-test"
            )
        partition = split_rows(
            rows,
            source.labels,
            names,
            test=config.test,
            val=config.val,
            seed=config.partition_seed,
            scheme=str(scheme),
            official_test=source.official_test if config.official_test else None,
        )
    if config.permute_targets:
        partition = permute_targets(partition, seed=config.partition_seed)
    return partition


def _model(config: Config, source: Source) -> str:
    return DEFAULT_MODELS[source.kind] if config.model == "auto" else config.model


def _resolve(config: Config, source: Source) -> Config:
    """The configuration with everything that the data decide."""
    partition, clients = config.partition, config.clients
    if config.partition_file or config.objects.partition is not None:
        return replace(config, model=_model(config, source))
    if partition == "auto":
        partition = "natural" if source.owners else DEFAULT_PARTITION
    if partition == "natural":
        if clients not in (0, len(source.owners)):
            raise BadInput(
                f"clients is {clients}, but '{source.name}' names {len(source.owners)}: "
                "leave it out"
            )
        clients = len(source.owners)
    model = _model(config, source)
    clients = clients or DEFAULT_CLIENTS
    return replace(config, partition=partition, clients=clients, model=model)


def lay_out(config: Config) -> tuple[Config, Source, Partition]:
    """Loads the data and divides them; the configuration comes back without `auto`."""
    source = find_source(config)
    config = _resolve(config, source)
    partition = make_partition(config, source)
    scheme = partition.scheme if config.partition_file else config.partition
    return replace(config, clients=len(partition), partition=scheme), source, partition


def _workers_device(config: Config) -> str | None:
    """What the workers compute on, where there are any: here there may be no such device."""
    if config.engine != "ray":
        return None
    if config.device == "auto":
        return str(choose_device("auto"))
    if config.device not in ("cpu", "cuda"):
        raise BadInput(f"device '{config.device}' with --engine ray: give cpu or cuda")
    return config.device


def load_run_data(config: Config) -> RunData:
    """Loads the data and lays them out by client.

    Raises:
      BadInput: the data cannot be had, or cannot be divided so.
    """
    device = choose_device(config.home)
    config, source, partition = lay_out(config)
    config = replace(config, device=_workers_device(config) or str(device))
    encoder, x = encode(source, np.concatenate(partition.train), normalise=config.normalise)
    held = torch.from_numpy(hold_out(len(partition), config.held_out, seed=config.partition_seed))
    largest = max(len(rows) for rows in partition.train)
    if config.batch > largest:
        raise BadInput(
            f"batch is {config.batch}, but the largest client has {largest} training rows: "
            "lower --batch, or 0 for all of a client's rows"
        )
    if config.augment != "none" and source.kind != "image":
        raise BadInput(
            f"augment is '{config.augment}', but '{source.name}' is {source.kind}: use none"
        )
    client_data = ClientData.of(
        torch.from_numpy(x).to(device),
        torch.from_numpy(source.labels).to(device),
        partition.train,
        partition.val,
        partition.test,
        partition.names,
    )
    return RunData(config, source, encoder, partition, client_data, held)


def make_network(config: Config, form: Form, model: str | None = None) -> nn.Module:
    """The network of a run, or another one by its name, with new weights."""
    given = config.objects.model
    return network_of((model or config.model) if given is None else given, form)


def make_task(config: Config, form: Form, model: str | None = None) -> Task:
    """The network of a run and its loss."""
    return classification(
        lambda: make_network(config, form, model),
        loss=config.objects.loss or cross_entropy,
        grouping=config.blocks,
        augment=AUGMENTATIONS[config.augment],
        device=config.home,
        compute=torch.bfloat16 if config.precision == "bf16" else None,
    )


def make_method(config: Config, task: Task, whole: Task | None = None) -> Method:
    """The method of a run.

    Args:
      config: of the run.
      task: the clients' network.
      whole: the server's, where clients have several.
    """
    factory = config.factory()
    if config.dp_clip:
        require_accountant()
        if task.batch_norm:
            raise BadInput(
                f"DP-SGD with '{config.model}': BatchNorm mixes examples, so none is private: "
                "choose a model with GroupNorm or without normalisation"
            )
    several: dict[str, Any] = {}
    known = inspect.signature(factory).parameters
    if config.depths:
        if "whole" not in known:
            raise BadInput(f"depths is '{config.depths}', but {config.method} needs equal networks")
        several = {"whole": whole or task}
    if "participation" in known and "participation" not in config.options:
        several["participation"] = config.participation
    method = factory(task, recipe=config.recipe(), **config.options, **several)
    if method.validates and config.val == 0 and not config.partition_file:
        raise BadInput(f"val is 0, but {config.method} looks at validation rows: raise --val")
    if config.dp_clip and method.not_private:
        raise BadInput(f"DP-SGD with '{config.method}': {method.not_private}")
    return method


def make_players(config: Config, form: Form, clients: int) -> list[tuple[Method, Task, Tensor]]:
    """(method, network, ids of the clients that have it); the server's, the deepest, is first."""
    use_precision(config.precision)
    having = networks(config.depths, config.model, clients)
    tasks = [make_task(config, form, model) for model, _ in having]
    deepest = max(range(len(tasks)), key=lambda i: len(tasks[i].blocks))
    order = [deepest, *(i for i in range(len(tasks)) if i != deepest)]
    whole = tasks[deepest]
    return [(make_method(config, tasks[i], whole), tasks[i], having[i][1]) for i in order]


def players_on(
    config: Config, form: Form, clients: int, device: str
) -> list[tuple[Method, Task, Tensor]]:
    """The same as a worker makes them for itself, on its own device."""
    return make_players(replace(config, engine="vectorised", device=device), form, clients)
