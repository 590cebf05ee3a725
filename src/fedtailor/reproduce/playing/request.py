"""What somebody asked for, kept beside an experiment's results while its runs go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_json
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.reproduce.declared.declare import find_experiments, read_papers
from fedtailor.reproduce.playing.cells import Scale
from fedtailor.reproduce.playing.plan import ExperimentRuns, ReproductionPlan, plan_runs
from fedtailor.results.folder import written_to

REQUEST = "asked.json"


@dataclass
class ReproductionRequest:
    """As on the command line."""

    scale: Scale  # what is not as in the paper
    only: Sequence[str] = ()  # names or globs of rows and columns
    given: dict[str, Any] = field(default_factory=dict)  # settings of whoever runs it
    papers: Path | None = None  # folder of other declarations than FedTailor's
    command: str = ""  # as it would be typed again

    def plan(self, names: Sequence[str], out: Path, **how: Any) -> ReproductionPlan:
        """What is to be run for some experiments; `how` is for `plan_runs`."""
        experiments = find_experiments(names, read_papers(self.papers))
        return plan_runs(experiments, self.scale, out, only=self.only, given=self.given, **how)

    def keep(self, plan: ReproductionPlan) -> None:
        """Writes it down where `fedtailor watch` finds it."""
        kept = asdict(self) | {"papers": str(self.papers.resolve()) if self.papers else None}
        for part in plan.parts:
            with written_to(folder := plan.folder(part)):
                write_json(folder / REQUEST, kept)


def read_request(folder: Path) -> ReproductionRequest:
    """What was asked for last in an experiment's folder; a broken file is bad input."""
    try:
        kept = parse_json((folder / REQUEST).read_text(encoding="utf-8"))
        # one of before there was a patience has none
        scale = {f.name: dict(kept["scale"]).get(f.name, f.default) for f in fields(Scale)}
        only, papers = [str(name) for name in kept["only"]], kept["papers"]
        folder_of = None if papers is None else Path(str(papers))
        given, command = dict(kept["given"]), str(kept["command"])
        return ReproductionRequest(Scale(**scale), only, given, folder_of, command)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"'{folder / REQUEST}' is broken ({error}): reproduce it anew") from None


def part_of(folder: Path) -> tuple[ExperimentRuns, str]:
    """The experiment that a folder is for, as it was last asked for, and the command."""
    request = read_request(folder)
    whole = folder.resolve()
    name = f"{whole.parent.name}/{whole.name}"
    # what was asked for may name rows of other experiments: that was checked then
    how = {"look_for_data": False, "only_here": False}
    (part,) = request.plan([name], whole.parent.parent, **how).parts
    return part, request.command
