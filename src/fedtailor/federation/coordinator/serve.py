"""The coordinator's side of a Flower run: from its file to its last round."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from flwr.serverapp import Grid

from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator.carrier import FlowerPost
from fedtailor.federation.coordinator.coordinator import Coordinator, Stopped
from fedtailor.federation.coordinator.federation_file import FederationFile, read_federation
from fedtailor.federation.coordinator.store import FAILED, FINISHED, STOPPED, Book, Line
from fedtailor.federation.protocol.plan import bring_to_life

log = logging.getLogger("fedtailor.coordinator")

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


def coordinator_of(grid: Grid, federation: FederationFile, book: Book) -> Coordinator:
    """A coordinator that stands where its checkpoint left it."""
    post = FlowerPost(grid, federation.rules.limits)
    play = bring_to_life(federation.plan)
    return Coordinator(play, federation.id, book, post, federation.rules, _say)


def serve(grid: Grid, path: Path, run: str, min_sites: int = 0, deadline: float = 0.0) -> None:
    """Plays the federation of a coordinator's file; a new Flower run goes on where the last one
    ended.

    Args:
      grid: Flower's, to all sites.
      path: of the file.
      run: Flower's id of this run.
      min_sites: for this run; 0: as the file says.
      deadline: seconds for a round in this run; 0: as the file says.
    """
    found = read_federation(path)
    least, longest = min_sites or found.rules.min_sites, deadline or found.rules.deadline
    found = found._replace(rules=replace(found.rules, min_sites=least, deadline=longest))
    book = Book(found.folder, found.id, found.plan.fingerprint())
    done = 0
    try:
        with book.played(PATIENCE):
            coordinator = coordinator_of(grid, found, book)
            try:
                coordinator.run()
            finally:
                done = coordinator.now.round
            book.ended(run, done, FINISHED)
    except Stopped as reason:
        # not a fault: everything is in the folder, and the next run goes on
        log.warning("%s", reason)
        book.ended(run, done, STOPPED, str(reason))
    except Exception as error:
        # Flower's own log may not show it
        book.ended(run, done, FAILED, str(error) if isinstance(error, BadInput) else f"{error!r}")
        raise
