"""A site's own file of settings: its data, its folder, and what it agrees to.

    client = 2                      # the site's number in the federation, from 0
    data = "ward.csv"               # anything that `fedtailor run --data` takes
    folder = "site"                 # where state and model are kept
    allow = ["fedala", "fedavg"]    # methods it takes part in; left out: all that come with us

Paths are relative to the file. For a trial on data that come with FedTailor, `clients` and
`partition` say how they are divided, and the site takes the share of its number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import check_name
from fedtailor.core.inputs.settings_file import check_table, naming, read_toml, remaining, setting
from fedtailor.core.options import Whole
from fedtailor.federation.protocol.packet import site_name
from fedtailor.federation.protocol.transport import MessageBounds, Seconds
from fedtailor.federation.site.limits import SiteLimits
from fedtailor.results.config import settings

# Of a run's settings, those that say where rows come from and how they are cut.
OF_DATA = (
    "data", "data_dir", "task", "label", "time_column", "event_column", "client_column",
    "text_column", "group_column", "time_column_split", "drop", "only", "types", "strict",
    "missing", "image_size", "partition", "clients", "partition_seed", "split_seed",
    "min_samples", "test", "val", "official_test",
)  # fmt: skip
PATHS = ("data", "data_dir")


@dataclass(frozen=True, kw_only=True)
class SiteSettings(SiteLimits, MessageBounds):
    """What a site's file says."""

    path: Path
    client: Whole = setting("the site's number, from 0")
    name: str = setting("what people call it", "")
    folder: Path = setting("where state, answers and models are kept", Path("site"))
    begin_again: bool = setting(
        "start anew where the site's state is lost, if the method can", False
    )
    idle: Seconds = setting("after which its warm process ends", 600.0)
    threads: Whole = setting("of torch; 0 leaves torch its choice", 0)
    data: dict[str, Any] = remaining(lambda: OF_DATA)  # settings of the data layer


def _of_data(found: dict[str, Any], base: Path) -> dict[str, Any]:
    from fedtailor.datasets import KNOWN

    known = settings()
    values = {name: known[name][0].parse(value) for name, value in found.items()}
    if not values.get("data"):
        raise BadInput('names no data: give data = "...", a path or a known data set')
    for name in PATHS:
        value = values.get(name)
        if value and not (name == "data" and value in KNOWN):
            values[name] = str((base / value).resolve())
    return values


def read_settings(path: Path) -> SiteSettings:
    """The settings in a site's file, checked."""
    path = path.expanduser().resolve()
    where, base = f"site file '{path}'", path.parent
    found = check_table(read_toml(path, "site file"), SiteSettings, where, base=base, path=path)
    with naming(where):
        check_name(found.name, "name")
        data = _of_data(found.data, base)
    name, folder = site_name(found.name, found.client), (base / found.folder).resolve()
    return replace(found, name=name, folder=folder, data=data)
