"""Loss surfaces of an experiment's runs."""

from __future__ import annotations

from pathlib import Path

from .outcome import Part
from .pictures import KINDS, finished

PICTURE = "landscape"


def landscape(part: Part, folder: Path) -> list[str]:
    """Measures the first seed of every cell and draws a column of the experiment at a time.

    Raises:
      BadInput: a run has not kept its models.
    """
    from ..figures import draw_figure
    from ..landscape import write_landscapes
    from ..measured import read_landscape

    out = []
    for number, column in enumerate(dict.fromkeys(cell.column for cell, _ in finished(part))):
        places = [tasks[0].folder for cell, tasks in finished(part) if cell.column == column]
        left = [place for place in places if read_landscape(place) is None]
        if left:
            write_landscapes(left)
        for kind in KINDS:
            draw_figure(PICTURE, places, out=folder / f"{PICTURE}-{number}.{kind}", kind=kind)
        out.append(f"{PICTURE}-{number}.png")
    return out
