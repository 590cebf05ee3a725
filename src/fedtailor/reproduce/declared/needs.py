"""The data that runs need, and whether they are there: looked up without reading them."""

from __future__ import annotations

from pathlib import Path

from fedtailor.datasets import KNOWN
from fedtailor.datasets.formats import cifar, idx
from fedtailor.datasets.formats.images import visible
from fedtailor.datasets.known import SETS, KnownDataset
from fedtailor.datasets.load import FOLDER_VARIABLE, data_folder
from fedtailor.datasets.natural import NATURAL
from fedtailor.results.config import Config


def _holds(known: KnownDataset, folder: Path) -> bool:
    """Whether something in a folder is called or looks like a data set."""
    if not folder.is_dir():
        return False
    names = {name for p in visible(folder) for name in (p.name, p.name.split(".")[0])}
    if any(known.is_called(name) for name in names):
        return True
    if known.channels == 1:
        found = set(idx.variants_in(folder))
        return bool(found - {""}) if known.name == "emnist" else "" in found
    return known.is_called(folder.name) or (
        known.name in cifar.LAYOUTS and cifar.holds_batches(folder, known.name)
    )


def lacking(config: Config) -> str | None:
    """What is to be done about data that are not there; None where they are."""
    name = config.data
    if name == "digits" or config.hub or (name not in KNOWN and Path(name).exists()):
        return None
    if name not in KNOWN:
        return f"data set '{name}' has no loader: put it into a folder or table and run it as such"
    folder = data_folder(Path(config.data_dir) if config.data_dir else None)
    if NATURAL[name].found_in(folder) if name in NATURAL else _holds(SETS[name], folder):
        return None
    return f"data set '{name}' is not in '{folder}': set --data-dir or ${FOLDER_VARIABLE}"
