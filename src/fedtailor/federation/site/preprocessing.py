"""Preprocessing that sites agree on before any of them has shown a row.

For images it is their size and the names of the classes. For tables it is also each column's
name, its categories, or shift and scale; for text the words that are known. All of that comes from
an example that may be shown to every site (made-up rows, public data), or from a file that was
written by hand or by an earlier run; never from rows that are private.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.datasets import Encoder, encode
from fedtailor.datasets.encoding.columns import Categorical
from fedtailor.datasets.wording import listed, one_line
from fedtailor.results.config import make_config
from fedtailor.runs.data import DEFAULT_MODELS, find_source


def preprocessing_like(like: str, settings: Mapping[str, Any]) -> Encoder:
    """The preprocessing of an example: data of any form that `--data` takes, or a JSON file."""
    path = Path(like).expanduser()
    if path.suffix == ".json" and path.is_file():
        return read_preprocessing(path)
    given = {k: v for k, v in settings.items() if k in _OF_EXAMPLE}
    config = make_config("local", given | {"data": like}, {})
    source = find_source(config)
    source.require_difference()
    return encode(source, np.arange(len(source)), normalise=config.normalise)[0]


def read_preprocessing(path: Path) -> Encoder:
    """The preprocessing in a file; what is one client's own stays there."""
    try:
        found = Encoder.from_json(parse_json(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"preprocessing '{path}' cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"preprocessing '{path}' is not JSON: {error}") from None
    return found.without_clients()


def preprocessing_lines(encoder: Encoder) -> list[str]:
    """What was agreed on, a line for each column."""
    form = encoder.form
    learnt = f"classes {listed(encoder.classes)}" if encoder.classes else form.task
    lines = [f"{form.kind} of {' × '.join(map(str, form.shape))}, {learnt}, {encoder.normalise}"]
    for column in encoder.columns:
        if isinstance(column, Categorical):
            lines.append(f"  {one_line(column.name)}: categories {listed(column.values)}")
        else:
            numbers = f"mean {column.fill:.6g}, deviation {column.scale:.6g}"
            lines.append(f"  {one_line(column.name)}: {column.reads or 'number'}, {numbers}")
    return lines


def model_for(encoder: Encoder, named: str) -> str:
    """The network that fits, unless one was named."""
    return DEFAULT_MODELS[encoder.form.kind] if named in ("", "auto") else named


_OF_EXAMPLE = (
    "data_dir", "task", "label", "time_column", "event_column", "client_column", "text_column",
    "group_column", "time_column_split", "drop", "only", "types", "strict", "missing",
    "image_size", "normalise",
)  # fmt: skip
