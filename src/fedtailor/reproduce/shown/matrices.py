"""What a run noted, as heat maps: client × client by round, or client × round; each by block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.figures.style import empty_figure, save_figure
from fedtailor.reproduce.declared.measures import result_and_history
from fedtailor.reproduce.playing.cells import Cell
from fedtailor.reproduce.playing.plan import ExperimentRuns
from fedtailor.reproduce.playing.play import PlannedRun
from fedtailor.reproduce.shown.pictures import finished, headline, titled
from fedtailor.results.folder import file_name
from fedtailor.results.records import Records

BLOCKS = 8  # rows of a picture at most


def _rounds(part: ExperimentRuns, records: Records) -> list[int]:
    """The declared rounds, as near as the run has them; else first, middle and last."""
    have = records.rounds
    if part.experiment.at:
        near = [min(have, key=lambda r, at=at: abs(r - at)) for at in part.experiment.at]  # type: ignore[misc]
        return list(dict.fromkeys(near))
    return list(dict.fromkeys([have[0], have[len(have) // 2], have[-1]]))


def _draw(part: ExperimentRuns, cell: Cell, task: PlannedRun, records: Records, name: str) -> Any:
    rounds = _rounds(part, records)
    found = [records.read(name, number) for number in rounds]
    maps = [m if m is None or m.ndim == 3 else m[None] for m in found]
    blocks = min(BLOCKS, max(len(m) for m in maps if m is not None))
    names = [str(b) for b in result_and_history(task.folder)[0].get("blocks", [])]
    known = np.concatenate([m[:blocks].ravel() for m in maps if m is not None])
    low, high = np.nanmin(known), np.nanmax(known)
    picture = empty_figure(2.3 * len(rounds) + 1.2, 2.2 * blocks + 0.6)
    grid = picture.subplots(blocks, len(rounds), squeeze=False)
    image = None
    for across, (number, one) in enumerate(zip(rounds, maps, strict=True)):
        for down in range(blocks):
            panel = grid[down][across]
            panel.set_xticks([])
            panel.set_yticks([])
            if one is not None:
                image = panel.imshow(one[down], vmin=low, vmax=high, cmap="viridis")
            if down == 0:
                panel.set_title(f"round {number}", fontsize=9)
            if across == 0:
                block = names[down] if blocks > 1 and down < len(names) else "client"
                panel.set_ylabel(block, fontsize=8, parse_math=False)
    if image is not None:
        picture.colorbar(image, ax=grid.ravel().tolist(), shrink=0.7)
    headline(picture, _title(part, cell, name), 9)
    return picture


def _over_rounds(
    part: ExperimentRuns, cell: Cell, task: PlannedRun, records: Records, name: str
) -> Any:
    """Everybody's numbers by round; blank where a client did not take part."""
    result = result_and_history(task.folder)[0]
    width = records.shapes()[name][1:]
    count = min(BLOCKS, int(np.prod(width)))
    maps = np.full((count, result["clients"], len(records.rounds)), np.nan)
    for at, number in enumerate(records.rounds):
        ids, found = records.read("ids", number), records.read(name, number)
        if ids is not None and found is not None:
            maps[:, ids.astype(int), at] = found.reshape(len(found), -1).T[:count]
    names = [str(b) for b in result.get("blocks", [])]
    picture = empty_figure(5.5, 1.9 * count + 0.6)
    grid = picture.subplots(count, 1, squeeze=False)[:, 0]
    extent = (records.rounds[0] - 0.5, records.rounds[-1] + 0.5, result["clients"] - 0.5, -0.5)
    image = None
    for panel, one, number in zip(grid, maps, range(count), strict=True):
        image = panel.imshow(
            one,
            vmin=np.nanmin(maps),
            vmax=np.nanmax(maps),
            aspect="auto",
            extent=extent,
            interpolation="none",
        )
        block = names[number] if count > 1 and number < len(names) else ""
        panel.set_ylabel(f"client\n{block}" if block else "client", fontsize=8, parse_math=False)
    grid[-1].set_xlabel("round", fontsize=8)
    picture.colorbar(image, ax=list(grid), shrink=0.7)
    headline(picture, _title(part, cell, name), 9)
    return picture


def _title(part: ExperimentRuns, cell: Cell, name: str) -> str:
    return titled(part, f": {cell.row}, {cell.column}, {name.partition('/')[2]}")


def draw_matrices(part: ExperimentRuns, folder: Path) -> list[str]:
    """A picture for each record of each cell that the declaration names, of its first seed.

    Without a name it is every client × client record; one number per client (and block) is drawn
    by round.
    """
    out = []
    for cell, tasks in finished(part):
        records, wanted = Records(tasks[0].folder), part.experiment.record
        clients = result_and_history(tasks[0].folder)[0]["clients"]
        for name, shape in sorted(records.shapes().items()):
            square = len(shape) in (2, 3) and shape[-2:] == (clients, clients)
            named = wanted in (name, name.partition("/")[2])
            if name == "ids" or not (named or (square and not wanted)):
                continue
            draw = _draw if square else _over_rounds if name.startswith("client/") else None
            if draw is not None:
                short = name.partition("/")[2].replace("/", "-")
                title = file_name(f"matrix-{cell.row}-{cell.column}-{short}")
                out.append(save_figure(draw(part, cell, tasks[0], records, name), folder, title))
    return out
