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

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.settings_file import check_table, naming, read_toml, remaining, setting
from fedtailor.core.options import Count
from fedtailor.datasets import Encoder, fit_encoder
from fedtailor.federation.protocol.packet import checked_id
from fedtailor.federation.protocol.plan import TrainingPlan, make_training_plan, read_plan
from fedtailor.federation.protocol.transport import Rules
from fedtailor.federation.site.guard import PROPOSED
from fedtailor.federation.site.inspection import read_proposed
from fedtailor.federation.site.preprocessing import model_for, read_preprocessing
from fedtailor.federation.site.state import PLAN
from fedtailor.results.config import Config, make_config, settings
from fedtailor.results.metrics.settled import class_counts, settle_judging
from fedtailor.runs.data import lay_out

log = logging.getLogger("fedtailor")


@dataclass(frozen=True, kw_only=True)
class _Table(Rules):
    """The table `[federation]`."""

    id: str = setting("a name for the federation")
    sites: Count = setting("how many sites there are")
    folder: Path = setting("where the coordinator keeps everything", Path("coordinator"))
    preprocessing: str = setting("path of what all sites apply; empty: that of trial data", "")
    survey: bool = setting(
        "whether it is made of what the sites tell (fedtailor federation survey)", False
    )


@dataclass(frozen=True, kw_only=True)
class _File:
    """The whole file: the settings of a run, and two tables."""

    method: str = setting("its name in quotes")
    federation: _Table = setting("a table [federation] with id and sites")
    options: dict[str, Any] = setting("the method's own", {})
    # where the coordinator runs is no part of what is agreed on: see `deploy.project`
    coordinator: dict[str, Any] = setting("where it runs", {})
    run: dict[str, Any] = remaining(lambda: settings())


class FederationFile(NamedTuple):
    """What a coordinator's file says."""

    id: str  # of the federation
    folder: Path  # where the coordinator keeps everything
    plan: TrainingPlan  # what all agree on
    rules: Rules  # how long to wait for whom
    keyed: bool = False  # whether nodes have keys

    @property
    def state_folder(self) -> Path:
        """Where the coordinator keeps this federation."""
        return self.folder / self.id


class SurveyFile(NamedTuple):
    """What a coordinator's file says of a federation whose sites are asked for their columns."""

    id: str  # of the federation
    folder: Path  # where the coordinator keeps everything
    sites: int  # how many there are
    normalise: str  # as a run has it
    out: Path  # the file that is made of what they tell
    rules: Rules  # how long to wait for whom
    keyed: bool = False  # whether nodes have keys

    @property
    def state_folder(self) -> Path:
        """Where the coordinator keeps this federation."""
        return self.folder / self.id


def read_survey_file(path: Path) -> SurveyFile:
    """A coordinator's file before the sites have told their columns, checked.

    Raises:
      BadInput: its sites are not asked for any.
    """
    path, where, found, config = _read(path)
    table = found.federation
    with naming(where):
        if not (table.survey and table.preprocessing):
            raise BadInput(
                "its preprocessing is agreed on: make a project with fedtailor federation init "
                "--from-sites to ask the sites instead"
            )
        if config.dp_noise:
            raise BadInput(
                f"dp_noise is {config.dp_noise:g}, but what sites tell of their columns has no "
                "noise: agree on an example (init --like)"
            )
    folder, out = (path.parent / table.folder).resolve(), path.parent / table.preprocessing
    keyed = bool(found.coordinator.get("authority"))
    return SurveyFile(
        checked_id(table.id), folder, table.sites, config.normalise, out, table, keyed
    )


def _read(path: Path) -> tuple[Path, str, _File, Config]:
    """A file, what messages call it, what it says, and that as a run's configuration."""
    path = path.expanduser().resolve()
    where = f"federation file '{path}'"
    found = check_table(read_toml(path, "federation file"), _File, where, base=path.parent)
    given = {"clients": found.federation.sites, **found.run, "device": "cpu"}
    return path, where, found, make_config(found.method, given, found.options)


def _preprocessing(config: Config, table: _Table, base: Path) -> tuple[Config, Encoder]:
    """Preprocessing that was agreed on, or that of trial data which everybody has."""
    name = table.preprocessing
    if not name:
        config, source, partition = lay_out(config)
        encoder = fit_encoder(source, partition.train, normalise=config.normalise)
        counts = class_counts(source, partition)
        return settle_judging(config, source.task, len(source.classes), counts)[0], encoder
    path = base / name
    if table.survey and not path.exists():
        raise BadInput(
            f"the sites have not told their columns yet: say fedtailor federation survey {base}"
        )
    encoder = read_preprocessing(path)
    if config.model == "auto" and (table.survey or config.models):
        config = replace(config, model=model_for(encoder, config.model))
    if config.model == "auto":
        raise BadInput('model is missing: name the network, e.g. model = "cnn"')
    form = encoder.form
    return settle_judging(config, form.task, form.classes, [])[0], encoder


def find_plan(path: Path) -> TrainingPlan:
    """A plan, from a federation's file, a project, a plan that a site keeps, or its folder."""
    path = path.expanduser()
    if path.is_dir():
        inside = [path / name for name in ("federation.toml", PLAN, PROPOSED)]
        path = next((file for file in inside if file.exists()), path)
    if path.suffix == ".toml":
        return read_federation(path).plan
    if path.name == PROPOSED:
        return read_proposed(path)[1]
    try:
        return read_plan(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"plan '{path}' cannot be read ({error}): give federation.toml, or {PLAN} or "
            f"{PROPOSED} of a site's state"
        ) from None


def read_federation(path: Path) -> FederationFile:
    """The federation that a coordinator's file describes, checked."""
    path, where, found, config = _read(path)
    table, sites = found.federation, found.federation.sites
    with naming(where):
        config, encoder = _preprocessing(config, table, path.parent)
        if config.clients != sites:
            raise BadInput(f"sites is {sites}, but the data are divided among {config.clients}")
    plan = make_training_plan(replace(config, clients=sites), encoder, sites)
    asked, model = found.run.get("model"), plan.settings["model"]
    if config.models and asked not in (None, model):
        log.warning(
            "%s: model is '%s', but %s does not use it: its server has the deepest of models, %s",
            *(where, asked, config.method, model),
        )
    folder = (path.parent / table.folder).resolve()
    keyed = bool(found.coordinator.get("authority"))
    return FederationFile(checked_id(table.id), folder, plan, table, keyed)
