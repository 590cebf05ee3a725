"""From a configuration to its data: loaded, divided among clients, encoded."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import BadInput
from fedtailor.datasets import (
    KNOWN,
    ColumnChoices,
    Encoder,
    Source,
    encode,
    encode_clients,
    fit_encoder,
    load,
)
from fedtailor.datasets.features.suspicions import suspicions
from fedtailor.datasets.labels import refuse_as_many_classes_as_rows
from fedtailor.datasets.wording import quoted
from fedtailor.engine import ClientData
from fedtailor.partition import (
    Partition,
    RowUnits,
    divide,
    hold_out,
    left_out_note,
    load_partition,
    natural_names,
    numbered_clients,
    parse_partition,
    partition_of,
    permute_targets,
    split_again,
    split_rows,
)
from fedtailor.partition.latent import latent_clusters
from fedtailor.results.config import Config
from fedtailor.results.metrics.settled import class_counts, judging_notes, settle_judging
from fedtailor.runs.device import choose_device, workers_device

DEFAULT_CLIENTS, DEFAULT_PARTITION = 20, "dirichlet:0.1"
log = logging.getLogger("fedtailor")
DEFAULT_MODELS = {"image": "cnn", "table": "mlp", "text": "fasttext"}


class TargetScales(NamedTuple):
    """How each client's label was scaled, where it is a number; both are in the label's unit."""

    name: str  # of the label
    shift: Tensor  # [clients], float64
    scale: Tensor

    def of(self, ids: Tensor) -> TargetScales:
        """Those of some clients."""
        return self._replace(shift=self.shift[ids], scale=self.scale[ids])

    def unscaled(self, values: Tensor) -> Tensor:
        """[clients, ...] numbers as the networks say them, in the label's unit.

        Example:
          >>> prices = TargetScales("price", torch.tensor([100.0, 0.0]), torch.tensor([50.0, 1.0]))
          >>> prices.unscaled(torch.tensor([[-0.5, 2.0], [-0.5, 2.0]])).tolist()
          [[75.0, 200.0], [-0.5, 2.0]]
        """
        each = (-1, *(1,) * (values.ndim - 1))
        shift, scale = (part.to(values.device).view(each) for part in (self.shift, self.scale))
        return values * scale + shift


class RunData(NamedTuple):
    """The data of a run, laid out by client."""

    config: Config  # as given, with every `auto` that concerns data replaced
    source: Source
    encoder: Encoder  # fitted on training rows
    partition: Partition  # whose the rows are
    client_data: ClientData  # the same on the compute device
    held_out: Tensor  # ids of clients that never train

    @property
    def trained(self) -> Tensor:
        """Ids of the clients that may take part."""
        everyone = torch.arange(self.client_data.clients)
        return everyone[~torch.isin(everyone, self.held_out)] if len(self.held_out) else everyone

    @property
    def targets(self) -> TargetScales | None:
        """How the clients' labels were scaled; None unless they are numbers."""
        found = [self.encoder.of_client(name).target for name in self.partition.names]
        known = [target for target in found if target is not None]
        if not known:
            return None
        shift, scale = (
            torch.tensor([getattr(t, what) for t in known], dtype=torch.float64)
            for what in ("shift", "scale")
        )
        return TargetScales(known[0].name, shift, scale)

    def alone(self) -> RunData:
        """The same data as each client would encode them if there were no others.

        Numbers are scaled by the client's own training rows, labels of a regression too, and
        categories and words that only others have are unknown. The features keep their places.
        """
        rows = _rows_of(self.partition)
        encoder, x, y = encode_clients(self.source, self.encoder, *rows, alone=True)
        device = self.client_data.x.device
        same = self.source.kind == "image"  # images are as they are, and many
        laid = self.client_data._replace(
            x=self.client_data.x if same else torch.from_numpy(x).to(device),
            y=torch.from_numpy(y).to(device),
        )
        return self._replace(encoder=encoder, client_data=laid)

    def digest(self) -> str:
        """Tells whether two runs see the same data, laid out in the same way."""
        found = hashlib.blake2b(digest_size=16)
        found.update(np.ascontiguousarray(self.client_data.x.cpu().numpy()).reshape(-1).data)
        self._add_rows(found)
        return found.hexdigest()

    def rows_digest(self) -> str:
        """Tells whether two runs have the same rows at the same clients, however these are encoded.

        Runs with another normalisation or image size can still be compared client by client.
        """
        found = hashlib.blake2b(digest_size=16)
        self._add_rows(found)
        return found.hexdigest()

    def owners_digest(self) -> str:
        """Tells whether the same clients have the same rows, however these are cut into parts."""
        found = hashlib.blake2b(digest_size=16)
        found.update(np.ascontiguousarray(self.source.labels).tobytes())
        for client, name in enumerate(self.client_data.names):
            found.update(name.encode() + np.sort(self.partition.rows(client)).tobytes() + b"|")
        return found.hexdigest()

    def _add_rows(self, found: hashlib.blake2b) -> None:
        found.update(np.ascontiguousarray(self.source.labels).tobytes())
        found.update("\0".join(self.client_data.names).encode())
        for part in (self.partition.train, self.partition.val, self.partition.test):
            for rows in part:
                found.update(rows.tobytes() + b"|")


def find_source(config: Config, columns: ColumnChoices | None = None) -> Source:
    """The rows that a configuration names; `columns` where others have agreed what those are."""
    source = config.objects.data or _load(config, columns)
    if config.task not in ("auto", source.task):
        raise BadInput(
            f"task is {config.task}, but the labels of '{source.name}' are for {source.task}: "
            "leave it out, or give other data"
        )
    return source


def say_what_is_learnt(source: Source) -> None:
    """A line for the user on each thing that nobody had said: what labels and columns are."""
    for line in filter(None, (source.decided, *source.notes, *suspicions(source))):
        log.info(line)


def _load(config: Config, columns: ColumnChoices | None = None) -> Source:
    return load(
        config.data,
        data_dir=Path(config.data_dir) if config.data_dir else None,
        label=config.label or None,
        client=config.client_column or None,
        text=config.text_column or None,
        image_size=config.image_size or None,
        hub=config.hub,
        task=config.task,
        time=config.time_column or None,
        event=config.event_column or None,
        group=config.group_column or None,
        moment=config.time_column_split or None,
        columns=columns or config.column_choices(),
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
    return latent_clusters(np.asarray(raw), source.strata, int(groups[0]), seed=seed)


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


def row_units(config: Config, source: Source) -> RowUnits | None:
    """Which rows stay together in a split, and what comes first; None where each is by itself."""
    if source.groups is None and source.moments is None:
        return None
    flag = "--group-column" if source.moments is None else "--time-column-split"
    cure = "choose one"
    if source.name in KNOWN:  # which has no such columns to name
        flag, cure = f"data '{source.name}'", "leave that out"
    fixed = config.partition_file or isinstance(config.objects.partition, Partition)
    for clash, given in (("--official-test", config.official_test), ("a saved partition", fixed)):
        if given:
            raise BadInput(f"{flag} says how rows are cut, and so does {clash}: {cure}")
    if source.moments is not None and config.split_seed:
        raise BadInput(
            f"{flag} leaves nothing to draw, so another split is the same one: leave out --repeats "
            "and --split-seed"
        )
    return RowUnits(source.groups, source.moments)


def make_partition(config: Config, source: Source) -> Partition:
    """Who has which rows, and for what."""
    units = row_units(config, source)
    if config.partition_file:
        partition = load_partition(Path(config.partition_file), rows=len(source))
        _check_file(config, partition)
        partition = split_again(partition, split_seed=config.split_seed)
    elif config.objects.partition is not None:
        partition = partition_of(
            config.objects.partition,
            source,
            config.clients,
            seed=config.partition_seed,
            test=config.test,
            val=config.val,
            official_test=source.official_test if config.official_test else None,
            split_seed=config.split_seed,
            units=units,
        )
    else:
        scheme = parse_partition(config.partition)
        by_owner = scheme.name == "natural"
        rows = divide(
            scheme,
            source.strata,
            None if by_owner else config.clients,
            seed=config.partition_seed,
            owner=source.owner if source.owners else None,
            clusters=_clusters(source, scheme.name, scheme.parameters, config.partition_seed),
            min_samples=config.min_samples,
        )
        names = numbered_clients(len(rows))
        if by_owner:
            names = natural_names(scheme, source.owner, source.owners)
        if config.official_test and not source.official_test.any():
            raise BadInput(
                f"data '{source.name}' has no test rows of its own: drop --official-test"
            )
        partition = split_rows(
            rows,
            source.strata,
            names,
            test=config.test,
            val=config.val,
            seed=config.partition_seed,
            scheme=str(scheme),
            official_test=source.official_test if config.official_test else None,
            split_seed=config.split_seed,
            units=units,
        )
    if config.permute_targets:
        partition = permute_targets(partition, seed=config.partition_seed)
    return partition


def _model(config: Config, source: Source) -> str:
    # what characters come to depends on their order, which a mean of them does not know
    auto = "lstm" if source.window else DEFAULT_MODELS[source.kind]
    return auto if config.model == "auto" else config.model


def _resolve(config: Config, source: Source) -> Config:
    """The configuration with everything that the data decide."""
    partition, clients = config.partition, config.clients
    if config.partition_file or config.objects.partition is not None:
        return replace(config, model=_model(config, source))
    if partition == "auto":
        partition = "natural" if source.owners else DEFAULT_PARTITION
    scheme = parse_partition(partition)
    if scheme.name == "natural" and source.owners:
        named = len(natural_names(scheme, source.owner, source.owners))
        if clients not in (0, named):
            raise BadInput(f"clients is {clients}, but '{source.name}' names {named}: leave it out")
        clients = named
    model = _model(config, source)
    clients = clients or DEFAULT_CLIENTS
    return replace(config, partition=partition, clients=clients, model=model)


def _nobody_named(config: Config, source: Source) -> bool:
    """Whether clients are made up for data of one's own, and nobody had asked for that."""
    given = config.clients or config.partition_file or config.objects.partition is not None
    made_up = config.partition == "auto" and not source.owners and source.name not in KNOWN
    return made_up and not given


def _no_clients(source: Source) -> str:
    how = "name their column with --client-column" if source.label else "give a folder for each"
    return f"data {quoted(source.name)} name no clients ({how})"


def lay_out(config: Config) -> tuple[Config, Source, Partition]:
    """Loads the data and divides them; the configuration comes back without `auto`."""
    source = find_source(config)
    source.require_difference()
    refuse_as_many_classes_as_rows(source)
    given = config
    config = _resolve(config, source)
    try:
        partition = make_partition(config, source)
    except BadInput as error:
        if _nobody_named(given, source):
            raise BadInput(f"{_no_clients(source)}, so its rows are dealt out: {error}") from None
        raise
    if _nobody_named(given, source):
        dealt = f"its rows are dealt to {config.clients} by {config.partition}"
        source = replace(source, notes=(*source.notes, f"{_no_clients(source)}: {dealt}"))
    if not config.partition_file and config.objects.partition is None:
        note = left_out_note(parse_partition(config.partition), source.owner, source.owners)
        source = replace(source, notes=tuple(filter(None, (*source.notes, note))))
    scheme = partition.scheme if config.partition_file else config.partition
    return replace(config, clients=len(partition), partition=scheme), source, partition


def load_run_data(config: Config) -> RunData:
    """Loads the data and lays them out by client.

    Raises:
      BadInput: the data cannot be had, or cannot be divided so.
    """
    device = choose_device(config.home)
    config, source, partition = lay_out(config)
    config = replace(config, device=workers_device(config) or str(device))
    encoder = fit_encoder(source, partition.train, normalise=config.normalise)
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
    counts = class_counts(source, partition)
    config, why = settle_judging(config, source.task, len(source.classes), counts)
    encoder, x, y = encode_clients(source, encoder, *_rows_of(partition))
    client_data = ClientData.of(
        torch.from_numpy(x).to(device),
        torch.from_numpy(y).to(device),
        partition.train,
        partition.val,
        partition.test,
        partition.names,
    )
    if config.split_seed == 0:  # of repeats, the first says it; last: who is refused reads one line
        say_what_is_learnt(source)
        notes = (*judging_notes(config, why, source.classes), config.epochs_note())
        for line in filter(None, notes):
            log.info(line)
    return RunData(config, source, encoder, partition, client_data, held)


def _rows_of(partition: Partition) -> tuple[Sequence[str], Sequence[Any], Sequence[Any]]:
    """Names of the clients, training rows, and all rows, each once: in a search val is test too."""
    held = [np.unique(partition.rows(client)) for client in range(len(partition))]
    return partition.names, partition.train, held
