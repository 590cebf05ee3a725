"""Using a personal model after its run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedtailor.core import tree
from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.tree import Tree
from fedtailor.datasets import Encoder, read_examples
from fedtailor.results.config import Config, config_of
from fedtailor.results.folder import PREPROCESSING, RESULT, model_file, read_note
from fedtailor.results.objects import Objects
from fedtailor.results.storage import load_tensors
from fedtailor.runs.build import make_method, make_task


class Prediction(NamedTuple):
    """What a client's model takes one example for.

    Attributes:
      example: name of the file, and row where it has several.
      label: the most likely class.
      probability: of that class, as the model sees it.
    """

    example: str
    label: str
    probability: float


def _encoder(folder: Path) -> Encoder:
    path = folder / PREPROCESSING
    try:
        return Encoder.from_json(json.loads(path.read_text(encoding="utf-8")))
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
) -> tuple[Config, Encoder, str, Tree]:
    """(configuration, preprocessing, network's name, model) of a client of a finished run.

    Raises:
      BadInput: the run or the client cannot be used.
    """
    encoder = _encoder(folder)
    config = config_of(folder, objects, using=("method", "model"), device="cpu")
    result = _result(folder)
    if client not in result["per_client"]:
        raise unknown(f"client of '{folder}':", client, sorted(result["per_client"]))
    network = result["networks"].get(client, config.model)
    path = model_file(folder, client)
    return config, encoder.of_client(client), network, tree.unflatten(load_tensors(path))


def predict(
    folder: str | Path,
    client: str,
    files: Sequence[str | Path],
    *,
    method: Any = None,
    model: Any = None,
) -> list[Prediction]:
    """Classifies new examples with a client's personal model.

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
      >>> found.example
      'black.png'
    """
    given = Objects(method=method, model=model)
    config, encoder, network, weights = open_model(Path(folder), client, given)
    predicts = make_method(config, make_task(config, encoder.form, network)).predict
    names, x, _ = read_examples([Path(f) for f in files], encoder)
    with torch.no_grad():
        logits = predicts(weights, torch.from_numpy(x))
    chances, classes = logits.softmax(-1).max(-1)
    return [
        Prediction(name, encoder.classes[int(c)], float(p))
        for name, c, p in zip(names, classes, chances, strict=True)
    ]
