"""Using a personal model after its run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.core.tree import Params, Tree
from fedtailor.datasets import Encoder, read_examples
from fedtailor.results.config import Config, config_of
from fedtailor.results.folder import (
    FROZEN,
    PREPROCESSING,
    RESULT,
    RUNS,
    is_comparison,
    is_finished,
    model_file,
    read_note,
    run_folders,
)
from fedtailor.results.objects import Objects
from fedtailor.results.storage import load_tensors
from fedtailor.runs.build import make_method, make_task


class Prediction(NamedTuple):
    """What a client's model says of one example.

    Attributes:
      example: name of the file, and row where it has several.
      label: the most likely class; None unless classes are learnt.
      probability: of that class, as the model sees it.
      probabilities: of every class, by name.
      value: of a regression, in the label's own unit.
      risk: of survival, relative: who has 2 is twice as likely to have the event next as who has
        1. It orders the rows of one client's model; it is no probability.
      note: which of its values are unlike those of training; empty where none is.
    """

    example: str
    label: str | None = None
    probability: float | None = None
    probabilities: Mapping[str, float] = {}
    value: float | None = None
    risk: float | None = None
    note: str = ""


def _encoder(folder: Path) -> Encoder:
    path = folder / PREPROCESSING
    try:
        return Encoder.from_json(parse_json(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise BadInput(f"'{folder}' has no {PREPROCESSING}: is it a finished run?") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"'{path}' is broken: {error}") from None


def _result(folder: Path) -> dict[str, Any]:
    found = read_note(folder / RESULT)
    if not all(isinstance(found.get(key), dict) for key in ("per_client", "networks")):
        raise BadInput(f"'{folder}' has no usable {RESULT}: is it a finished run?")
    return found


def open_model(
    folder: Path, client: str, objects: Objects = Objects()
) -> tuple[Config, Encoder, str, Tree, Params | None]:
    """(configuration, preprocessing, network's name, model, frozen parameters) of a client's.

    The run is finished. Its weights file may be gone: what stayed as it was is in its folder.

    Raises:
      BadInput: the run or the client cannot be used.
    """
    if is_comparison(folder):
        run = next((f for f in run_folders(folder) if is_finished(f)), folder / RUNS)
        raise BadInput(f"'{folder}' is a comparison: name one of its runs, such as '{run}'")
    encoder = _encoder(folder)
    config = config_of(folder, objects, using=("method", "model"), device="cpu", weights="")
    result = _result(folder)
    if client not in result["per_client"]:
        raise unknown(f"client of '{folder}':", client, sorted(result["per_client"]))
    network = result["networks"].get(client, config.model)
    path, constants = model_file(folder, client), None
    if (folder / FROZEN).exists():
        constants = tree.unflatten(load_tensors(folder / FROZEN))[network]
    model = tree.unflatten(load_tensors(path))
    return config, encoder.of_client(client), network, model, constants


def predict(
    folder: str | Path,
    client: str,
    files: Sequence[str | Path],
    *,
    method: Any = None,
    model: Any = None,
) -> list[Prediction]:
    """What a client's personal model says of new examples: classes, values or risks.

    Rows are prepared as the client's training rows were: scaled by its own numbers, where the run
    did so.

    Args:
      folder: of a finished run.
      client: whose model to use.
      files: images, tables (csv, parquet, npz) or texts of the kind that the run learnt from.
      method: again, if the run was given it as a Python object.
      model: the same for its network.

    Raises:
      BadInput: the run, the client or a file cannot be used.

    Example:
      >>> import fedtailor
      >>> from tempfile import TemporaryDirectory
      >>> from PIL import Image
      >>> with TemporaryDirectory() as place:
      ...     done = fedtailor.run("local", model="mlp", clients=2, rounds=1, out=f"{place}/run")
      ...     Image.new("L", (8, 8)).save(f"{place}/black.png")
      ...     (found,) = predict(f"{place}/run", "client-0", [f"{place}/black.png"])
      >>> found.example, found.label == max(found.probabilities, key=found.probabilities.get)
      ('black.png', True)
    """
    if isinstance(files, str | Path) or not all(isinstance(f, str | Path) for f in files):
        raise BadInput(f"files is of type {type(files).__name__}: give a list of names of files")
    given = Objects(method=method, model=model)
    config, encoder, network, weights, frozen = open_model(Path(folder), client, given)
    predicts = make_method(config, make_task(config, encoder.form, network, frozen)).predict
    names, x, notes = read_examples([Path(f) for f in files], encoder)
    with torch.no_grad():
        said = predicts(weights, torch.from_numpy(x)).double()
    answers = _answers(said, encoder)
    unusable = (~answers.isfinite()).any(-1).nonzero()
    if len(unusable):
        raise BadInput(
            f"the model of client '{client}' gives no finite number for {names[int(unusable[0])]}: "
            "its training diverged, or the row is far from all others"
        )
    return [
        _prediction(name, row, encoder, note)
        for name, row, note in zip(names, answers.tolist(), notes, strict=True)
    ]


def _answers(said: Tensor, encoder: Encoder) -> Tensor:
    """What a network said, as people want it: probabilities, the label's unit, relative risks."""
    if encoder.form.task == "classification":
        return said.softmax(-1)
    if encoder.target is not None:
        return encoder.target.undo(said)
    return said.exp()


def _prediction(example: str, answer: list[float], encoder: Encoder, note: str) -> Prediction:
    if encoder.form.task == "regression":
        return Prediction(example, value=answer[0], note=note)
    if encoder.form.task == "survival":
        return Prediction(example, risk=answer[0], note=note)
    chances = dict(zip(encoder.classes, answer, strict=True))
    label = max(chances, key=chances.__getitem__)
    return Prediction(example, label, chances[label], chances, note=note)
