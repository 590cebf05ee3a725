"""An experiment's page while its runs go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedtailor.reproduce.playing.request import part_of
from fedtailor.reproduce.shown.outcome import RESUMED_BY, outcome
from fedtailor.reproduce.shown.page import experiment_page
from fedtailor.results.status import RunStatus, run_status


class LiveExperiment:
    """What `fedtailor watch` shows of an experiment's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._part, self._command = part_of(folder)
        self._labels = {
            task.folder: task.label.partition(": ")[2]
            for _, tasks in self._part.cells
            for task in tasks
        }

    def places(self) -> list[Path]:
        """The folders of its runs, each once."""
        return list(self._labels)

    def standings(self) -> list[RunStatus]:
        """How far they are, by their rows and columns."""
        return [
            replace(run_status(place, RESUMED_BY), name=name)
            for place, name in self._labels.items()
        ]

    def page(self) -> str:
        """Ours so far beside the paper's; pictures are drawn at the end."""
        found = outcome(self._part, {}, self._command, going=True)
        return experiment_page(
            found | {"pictures": [], "undrawn": ""}, self._folder, {}, going=True
        )
