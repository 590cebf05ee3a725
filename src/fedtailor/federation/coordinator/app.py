"""Flower's app at the coordinator, one for every method: from its file to its last round."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically
from fedtailor.core.inputs.plain_text import start_log
from fedtailor.federation.coordinator.carrier import FlowerTransport
from fedtailor.federation.coordinator.coordinator import Coordinator, Stopped
from fedtailor.federation.coordinator.federation_file import read_federation, read_survey_file
from fedtailor.federation.coordinator.owners import HOME, REGISTERED, NumberOwners
from fedtailor.federation.coordinator.store import (
    FAILED,
    FINISHED,
    STOPPED,
    CoordinatorStore,
    read_latest,
)
from fedtailor.federation.coordinator.survey import agree, ask_sites
from fedtailor.federation.protocol.lines import Line
from fedtailor.federation.protocol.packet import named_file
from fedtailor.federation.protocol.plan import set_up

log = logging.getLogger("fedtailor.coordinator")

FEDERATION = "federation"  # in a run's config
PATIENCE = 90.0  # seconds until the app of a killed coordinator must have noticed


def _say(line: Line) -> None:
    if "finished" in line:
        log.info("finished: %s", line["finished"])
        return
    if "scores" in line:
        log.info("scores after round %d: %s", line["round"], line["scores"])
        return
    log.info(
        "round %d: %d of %d sites, %.1f s%s",
        line["round"],
        len(line["taken"]),
        len(line["cohort"]),
        line["seconds"],
        f", without {line['failed']}" if line["failed"] else "",
    )


def run_coordinator(
    grid: Grid, path: Path, run: str, min_sites: int = 0, deadline: float = 0.0
) -> None:
    """Plays the federation of a coordinator's file, in Flower's run of the id `run`.

    A new run goes on where the last one ended. 0 for sites or seconds: as the file says.
    """
    found = read_federation(path)
    least, longest = min_sites or found.rules.min_sites, deadline or found.rules.deadline
    rules = replace(found.rules, min_sites=least, deadline=longest)
    plan = found.plan
    store = CoordinatorStore(found.folder, found.id, plan.fingerprint(), plan.rounds)
    done = 0
    try:
        with store.played(PATIENCE):
            setup, transport = set_up(found.plan), FlowerTransport(grid, rules.limits)
            coordinator = Coordinator(
                setup,
                found.id,
                store,
                transport,
                rules,
                _say,
                keyed=found.keyed,
                registered=path.resolve().parent / HOME / REGISTERED if found.keyed else None,
            )
            try:
                coordinator.run()
            finally:
                done = coordinator.now.round
            store.ended(run, done, FINISHED)
    except Stopped as reason:
        # not a fault: everything is in the folder, and the next run goes on
        log.warning("%s", reason)
        store.ended(run, done, STOPPED, str(reason))
    except Exception as error:
        # Flower's own log may not show it
        store.ended(run, done, FAILED, str(error) if isinstance(error, BadInput) else f"{error!r}")
        raise


def run_survey(grid: Grid, path: Path, run: str, min_sites: int = 0) -> None:
    """Asks the sites for their columns and writes the preprocessing that is made of them."""
    found = read_survey_file(path)
    rules = replace(found.rules, min_sites=min_sites or found.rules.min_sites)
    store = CoordinatorStore(found.folder, found.id, "")
    try:
        with store.played(PATIENCE):
            if read_latest(store.folder):
                raise BadInput(f"'{found.id}' has begun: another preprocessing needs a new id")
            owners = NumberOwners(store.folder, keyed=found.keyed)
            tell = lambda who, what, more: store.event(0, who, what, more)
            told = ask_sites(
                FlowerTransport(grid, rules.limits), found.id, found.sites, rules, owners, tell
            )
            agreed = agree(list(told.values()), found.normalise)
            for who, line in agreed.lines:
                log.warning("%s: %s", who, line)
                store.event(0, who, "columns differ", line)
            text = json.dumps(agreed.encoder.to_json(), indent=1)
            write_atomically(found.out, text, durable=True)
        store.ended(run, 0, FINISHED)
    except BadInput as error:
        log.warning("%s", error)
        store.ended(run, 0, STOPPED, str(error))


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Plays the federation whose file the run's config names."""
    start_log()
    config, run = context.run_config, str(context.run_id)
    path = named_file(config.get(FEDERATION), f"run config '{FEDERATION}'")
    least = int(config.get("min-sites", 0))
    if config.get("survey", False):
        run_survey(grid, path, run, least)
    else:
        run_coordinator(grid, path, run, least, float(config.get("deadline", 0.0)))
