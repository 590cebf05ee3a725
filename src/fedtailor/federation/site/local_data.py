"""A site's rows: loaded, encoded as agreed, cut into train, val and test. They stay here."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.data import Counts, Data
from fedtailor.core.errors import BadInput
from fedtailor.datasets import ColumnChoices, Encoder, Source, fit_own
from fedtailor.datasets.encoding.columns import Categorical, Numeric
from fedtailor.datasets.features.suspicions import present
from fedtailor.datasets.features.typed import types_of_columns
from fedtailor.datasets.source import EVENTS, Table, take
from fedtailor.datasets.wording import listed, quoted
from fedtailor.engine import ClientData
from fedtailor.federation.protocol.survey import SiteSurvey, survey_of
from fedtailor.federation.site.settings import SiteSettings
from fedtailor.partition import split_rows
from fedtailor.results.config import Config, make_config
from fedtailor.runs.data import find_source, lay_out, row_units

log = logging.getLogger("fedtailor.site")


class EncodedRows(NamedTuple):
    """A site's rows as a network takes them."""

    data: Data  # for training and validation
    test: Data
    encoder: Encoder  # what encoded them


class LocalData(NamedTuple):
    """A site's rows, encoded as the federation agreed."""

    rows: EncodedRows
    mix: dict[str, int]  # how many training rows there are of each class, or of each event
    alone: EncodedRows  # as the site would encode them if there were no federation

    @property
    def data(self) -> Data:
        """Training and validation rows, as methods see them."""
        return self.rows.data

    @property
    def test(self) -> Data:
        """Rows that only evaluation sees."""
        return self.rows.test

    def as_client(self) -> ClientData:
        """The site's rows as those of a simulation's only client."""
        data, test = self.data, self.test
        train, val = data.rows[: int(data.n)].numpy(), data.val_rows[: int(data.val_n)].numpy()
        return ClientData.of(data.x, data.y, [train], [val], [test.rows[: int(test.n)].numpy()])

    def digest(self) -> str:
        """Tells whether a site still has the same rows, cut and encoded in the same way."""
        sizes = [int(n) for n in (self.data.n, self.data.val_n, self.test.n)]
        found = hashlib.blake2b(repr(sizes).encode(), digest_size=16)
        for held in (self.data.x, self.data.y):
            found.update(np.ascontiguousarray(held.numpy()).reshape(-1).data)
        return found.hexdigest()


class LacksColumns(BadInput):
    """A table without columns that were agreed on; names no others, and no values."""


# (source, its rows for training, for validation, for testing)
_Cut = tuple[Source, np.ndarray, np.ndarray, np.ndarray]


def _of_trial(site: SiteSettings) -> _Cut:
    """A share of data that everybody has, as the simulation would divide them."""
    _, source, partition = lay_out(make_config("local", site.data, {}))
    if site.client >= len(partition):
        raise BadInput(
            f"site file '{site.path}': client is {site.client}, but the partition has "
            f"{len(partition)}: give a number from 0 to {len(partition) - 1}"
        )
    i = site.client
    return source, partition.train[i], partition.val[i], partition.test[i]


def _columns(config: Config, encoder: Encoder) -> ColumnChoices | None:
    """The columns as the federation agreed: a site's own rows might look like something else."""
    if encoder.form.kind == "image":
        return ColumnChoices(agreed=True, levels=encoder.levels)
    if encoder.form.kind != "table":
        return None
    kinds = [(c.name, isinstance(c, Numeric), getattr(c, "reads", "")) for c in encoder.columns]
    split = config.time_column_split  # no feature, so nothing is agreed of it
    own = {n: kind for n, kind in config.column_choices().types.items() if n == split}
    types = types_of_columns(kinds) | own
    return ColumnChoices(types=types, strict=config.strict, agreed=True)


def survey_site(site: SiteSettings) -> SiteSurvey:
    """What a site tells of its training rows, so that preprocessing can be made for all."""
    if _is_trial(site):
        source, train, _, _ = _of_trial(site)
    else:
        config = make_config("local", site.data, {})
        source, train, _, _ = _cut(site, config, find_source(replace(config, data_dir="")))
    few = {"min_rows": site.min_rows, "min_category": site.min_category}
    return survey_of(source, train, **few)


def _is_trial(site: SiteSettings) -> bool:
    return bool(site.data.get("clients")) or bool(site.data.get("partition"))


def _of_own(site: SiteSettings, encoder: Encoder) -> _Cut:
    """All rows of the site's own data, read as the federation agreed."""
    config, task = make_config("local", site.data, {}), encoder.form.task
    if config.task not in ("auto", task):
        raise BadInput(
            f"site file '{site.path}': task is {config.task}, but the federation learns "
            f"{task}: leave it out"
        )
    # a few rows of one site might be taken for something else
    source = find_source(replace(config, data_dir="", task=task), _columns(config, encoder))
    if source.levels is not None and encoder.levels is None:
        raise BadInput(
            f"data '{source.name}' has images of more than 8 bits, but the federation agreed on "
            "images of 8: save them so, or agree on others with rows like these "
            "(fedtailor federation init --like)"
        )
    return _cut(site, config, source)


def _cut(site: SiteSettings, config: Config, source: Source) -> _Cut:
    """The rows of a site, cut as the simulation cuts those of this client."""
    if config.official_test and not source.official_test.any():
        raise BadInput(f"data '{source.name}' has no test rows of its own: drop official_test")
    # a cut depends on the client's number and its rows alone: the others' places stay as they are
    places = site.client + 1
    partition = split_rows(
        [np.arange(len(source))] * places,
        source.strata,
        [f"{i}" for i in range(places)],
        test=config.test,
        val=config.val,
        seed=config.partition_seed,
        scheme="own",
        official_test=source.official_test if config.official_test else None,
        split_seed=config.split_seed,
        units=row_units(config, source),
    )
    return source, partition.train[-1], partition.val[-1], partition.test[-1]


def _labels(source: Source, encoder: Encoder) -> np.ndarray:
    """Labels as the federation numbers its classes; numbers stay as they are."""
    if source.task != encoder.form.task:
        raise BadInput(
            f"data '{source.name}' have labels for {source.task}, but the federation learns "
            f"{encoder.form.task}: name other data"
        )
    if source.task != "classification":
        return source.labels
    number = {name: i for i, name in enumerate(encoder.classes)}
    present = sorted({source.classes[i] for i in np.unique(source.labels)})
    for name in present:
        if name not in number:
            raise BadInput(
                f"data '{source.name}' has the class '{name}', which the federation does not "
                f"know: it has {', '.join(encoder.classes[:12])}"
            )
    of = np.array([number.get(name, -1) for name in source.classes], dtype=np.int64)
    return of[source.labels]


def _require_columns(source: Source, encoder: Encoder) -> None:
    if not isinstance(source.raw, Table):
        return
    absent = [c.name for c in encoder.columns if c.name not in source.raw.columns]
    if absent:
        raise LacksColumns(
            f"its table lacks {listed(map(quoted, absent))}, which the federation agreed on: add "
            f"{'it' if len(absent) == 1 else 'them'}, with empty cells where nothing is known"
        )


def _range(begin: int, count: int) -> Tensor:
    """Row numbers; who has none is padded with the first of the store, as everywhere."""
    return torch.arange(begin, begin + count) if count else torch.zeros(1, dtype=torch.int64)


def load_local_data(site: SiteSettings, encoder: Encoder) -> LocalData:
    """A site's rows, which must fit, encoded with what the federation agreed on."""
    source, *cut = _of_trial(site) if _is_trial(site) else _of_own(site, encoder)
    if source.kind != encoder.form.kind:
        raise BadInput(
            f"data '{source.name}' are {source.kind}, but the federation learns from "
            f"{encoder.form.kind}: name other data"
        )
    _require_columns(source, encoder)
    labels = _labels(source, encoder)
    fits = [
        fit_own(encoder, take(source.raw, cut[0]), labels[cut[0]], alone=alone)
        for alone in (False, True)
    ]
    agreed = encoder.with_fit(fits[0]) if encoder.normalise == "own" else encoder
    rows = _encoded(source, labels, cut, agreed)
    own = encoder.with_fit(fits[1])
    # images are as they are, and many
    alone = rows if own == agreed else _encoded(source, labels, cut, own)
    for line in [*unknown_categories(source, encoder), *empty_columns(source, encoder, cut[0])]:
        log.warning("%s", line)
    return LocalData(rows, _mix(labels[cut[0]], encoder), alone)


def unknown_categories(source: Source, encoder: Encoder) -> list[str]:
    """A line for each column with categories that nobody knew when preprocessing was agreed on."""
    if not isinstance(source.raw, Table):
        return []
    lines = []
    for column in encoder.columns:
        if not isinstance(column, Categorical):
            continue
        values = source.raw.columns[column.name]
        new = (values != "") & ~np.isin(values, column.values)
        names = np.unique(values[new]).tolist()
        if names:
            what = "a category" if len(names) == 1 else f"{len(names)} categories"
            lines.append(
                f"column {quoted(column.name)} has {what} that the federation did not agree on, in "
                f"{int(new.sum())} of {len(values)} rows ({listed(names, 5)}): encoded as 0 in all "
                f"of its {column.width} inputs"
            )
    return lines


def empty_columns(source: Source, encoder: Encoder, train: np.ndarray) -> list[str]:
    """A line for each column of numbers that has no value in the training rows."""
    if not isinstance(source.raw, Table):
        return []
    lines = []
    for column in encoder.columns:
        if isinstance(column, Categorical):
            continue
        values = source.raw.columns[column.name][train]
        if not present(values).any():
            lines.append(
                f"column {quoted(column.name)} has no value in {len(values)} training rows: the "
                f"federation's stands in for each, {column.fill:.6g}"
            )
    return lines


def _encoded(
    source: Source, labels: np.ndarray, cut: Sequence[np.ndarray], encoder: Encoder
) -> EncodedRows:
    rows = np.concatenate(cut)
    x = torch.from_numpy(np.ascontiguousarray(encoder.apply(take(source.raw, rows))))
    y = torch.from_numpy(encoder.labels(labels[rows]))
    sizes = [len(part) for part in cut]
    train, val, test = (_range(sum(sizes[:i]), size) for i, size in enumerate(sizes))
    n, val_n, test_n = torch.tensor(sizes)
    data = Data(x, y, train, n, val, val_n, Counts(n[None], val_n[None]))
    none = torch.tensor(0)
    tested = Data(x, y, test, test_n, test[:1], none, Counts(test_n[None], none[None]))
    return EncodedRows(data, tested, encoder)


def _mix(labels: np.ndarray, encoder: Encoder) -> dict[str, int]:
    """How many rows there are of each kind; numbers are of no kind."""
    if encoder.form.task == "regression":
        return {}
    survival = encoder.form.task == "survival"
    numbers = labels[:, 1].astype(np.int64) if survival else labels
    names = EVENTS if survival else encoder.classes
    counts = np.bincount(numbers, minlength=len(names)).tolist()
    return {name: c for name, c in zip(names, counts, strict=True) if c}
