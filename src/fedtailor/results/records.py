"""What methods noted during a run: small arrays for figures, one file per evaluated round."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from fedtailor.core.errors import BadInput
from fedtailor.results.storage import load_tensors


def read_records(folder: str | Path) -> dict[str, dict[int, Tensor]]:
    """Arrays by name and round. `client/...` have one row per client in `ids`.

    Args:
      folder: of a run.
    """
    found: dict[str, dict[int, Tensor]] = {}
    files = sorted((Path(folder) / "records").glob("*.safetensors"))
    if not files:
        raise BadInput(f"'{folder}' has no records: not every method notes something")
    for file in files:
        for name, value in load_tensors(file).items():
            found.setdefault(name, {})[int(file.stem)] = value
    return found
