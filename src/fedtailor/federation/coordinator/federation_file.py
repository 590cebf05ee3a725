"""The coordinator's file: a run's configuration and a table that says who takes part, and how.

method = "fedala"
model = "mlp"
rounds = 10

[federation]
id = "wards"
sites = 3
preprocessing = "preprocessing.json"
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import BadInput, unknown
from fedtailor.datasets import Encoder, encode
from fedtailor.federation.protocol.packet import Limits, checked_id
from fedtailor.federation.protocol.plan import Plan, make_plan
from fedtailor.federation.protocol.transport import Rules
from fedtailor.federation.site.settings import read_toml, seconds, whole_number
from fedtailor.results.config import Config, make_config, settings
from fedtailor.runs.build import lay_out

_TIMES = {"deadline": 600.0, "join": 60.0, "wait": 600.0, "pause": 5.0, "again": 30.0}
_LARGEST = 1e12
_NUMBERS = {"min_sites": (2, 1), "attempts": (20, 1), "score_every": (0, 0)}
_KNOWN = (
    "id",
    "sites",
    "folder",
    "preprocessing",
    "max_bytes",
    "max_arrays",
    "largest",
    *_TIMES,
    *_NUMBERS,
)


class FederationFile(NamedTuple):
    """Attributes:
    id: of the federation.
    folder: where the coordinator keeps everything.
    plan: what all agree on.
    rules: how long to wait for whom.
    """

    id: str
    folder: Path
    plan: Plan
    rules: Rules


def _preprocessing(config: Config, table: dict[str, Any], base: Path, where: str) -> tuple[
    Config, Encoder
]:  # fmt: skip
    """Preprocessing that was agreed on, or that of trial data which everybody has."""
    name = table.get("preprocessing", "")
    if not name:
        config, source, partition = lay_out(config)
        return config, encode(source, np.concatenate(partition.train), normalise=config.normalise)[
            0
        ]
    if not isinstance(name, str):
        raise BadInput(f"{where}: preprocessing is {name!r}: give a path")
    path = base / name
    try:
        encoder = Encoder.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{where}: preprocessing '{path}' cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"{where}: preprocessing '{path}' is not JSON: {error}") from None
    if config.model == "auto":
        raise BadInput(f'{where}: model is missing: name the network, e.g. model = "cnn"')
    return config, encoder


def read_federation(path: Path) -> FederationFile:
    """The federation that a coordinator's file describes.

    Raises:
      BadInput: something in it is unknown, missing or out of range.
    """
    path = path.expanduser().resolve()
    found, where = read_toml(path, "federation file"), f"federation file '{path}'"
    found.pop("coordinator", None)  # where it runs is no part of what is agreed on: see `project`
    table, options = found.pop("federation", None), found.pop("options", {})
    method = found.pop("method", None)
    if not isinstance(table, dict) or not isinstance(options, dict):
        raise BadInput(f"{where}: it needs a table [federation] with id and sites")
    if not isinstance(method, str):
        raise BadInput(f"{where}: method is {method!r}: give its name in quotes")
    for name in table:
        if name not in _KNOWN:
            raise BadInput(f"{where}: {unknown('setting of [federation]', name, _KNOWN)}")
    for name, value in found.items():
        if name not in settings() or isinstance(value, dict):
            raise BadInput(f"{where}: {unknown('setting', name, settings())}")
    sites = whole_number(table, "sites", 0, 1, where)
    times = {name: seconds(table, name, usual, where) for name, usual in _TIMES.items()}
    numbers = {
        name: whole_number(table, name, usual, least, where)
        for name, (usual, least) in _NUMBERS.items()
    }
    most = Limits(
        whole_number(table, "max_bytes", Limits().bytes, 1, where),
        whole_number(table, "max_arrays", Limits().arrays, 1, where),
    )
    largest = table.get("largest", _LARGEST)
    if isinstance(largest, bool) or not isinstance(largest, (int, float)) or not largest > 0:
        raise BadInput(f"{where}: largest is {largest!r}: give a number above 0")
    id, folder = table.get("id"), table.get("folder", "coordinator")
    if not isinstance(id, str) or not isinstance(folder, str):
        raise BadInput(f"{where}: id is {id!r}, folder {folder!r}: give texts")
    config = make_config(method, {"clients": sites, **found, "device": "cpu"}, options)
    config, encoder = _preprocessing(config, table, path.parent, where)
    if config.clients != sites:
        raise BadInput(
            f"{where}: sites is {sites}, but the data are divided among {config.clients}"
        )
    plan = make_plan(replace(config, clients=sites), encoder, sites)
    rules = Rules(**times, **numbers, largest=float(largest), limits=most)  # type: ignore[arg-type]
    return FederationFile(checked_id(id), (path.parent / folder).resolve(), plan, rules)
