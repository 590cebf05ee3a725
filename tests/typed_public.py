"""What editors and type checkers see of the package: `make test` checks this file with mypy.

A comment that silences an error which is none is an error itself: `fedtailor.nonsense` must be one.
"""

from __future__ import annotations

from typing import Any, assert_type

from torch import nn

import fedtailor


def use() -> None:
    """Never called: only its types count."""
    found = fedtailor.run("fedavg", data={}, model=nn.Linear(2, 2), rounds=1)
    assert_type(found, fedtailor.RunResult)
    assert_type(found.history, list[dict[str, Any]])
    assert_type(found.model("client-0"), nn.Module)
    assert_type(fedtailor.compare("fedavg", fedtailor.METHODS["ditto"]), fedtailor.ComparisonResult)
    fedtailor.resume("a folder")
    for report in fedtailor.simulate("fedavg"):
        assert_type(report, fedtailor.SimulatedRound)
    fedtailor.run("fedavg", out=3)  # type: ignore[arg-type]
    fedtailor.nonsense  # type: ignore[attr-defined]  # noqa: B018
