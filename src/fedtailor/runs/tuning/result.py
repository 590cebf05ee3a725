"""What `tune` returns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor.core.errors import BadInput, unknown

if TYPE_CHECKING:
    import pandas


class TuningResult(dict[str, Any]):
    """What a search came to: the entries of its `summary.json`.

    `methods` has, of each, `chosen` (settings by name), its `value` on validation rows, `trials`
    (all that was tried) and `importance`; `chosen(method)` is what `run` takes.
    """

    def __init__(self, found: dict[str, Any], folder: Path | None = None) -> None:
        super().__init__(found)
        self.folder = folder

    def chosen(self, method: str) -> dict[str, Any]:
        """The chosen settings, as keywords of `run`: settings of the run, and `options`."""
        if method not in self["methods"]:
            raise unknown("method of this search", method, self["methods"])
        found = self["methods"][method]["config"]
        return dict(found["settings"], options=found["options"])

    def table(self) -> pandas.DataFrame:
        """A row for each setting that was tried: method, values tried, and the last value found."""
        try:
            import pandas
        except ImportError:
            raise BadInput("a table needs pandas: pip install 'fedtailor[frames]'") from None
        rows = []
        for method, found in self["methods"].items():
            for trial in found["trials"]:
                rounds, value = [*trial["values"].items()][-1]
                rows.append(
                    {"method": method, **trial["setting"], "rounds": int(rounds), "value": value}
                )
        return pandas.DataFrame(rows)
