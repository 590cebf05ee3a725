"""What is asked of a tool, and what it is told of a round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedtailor.results.folder import Line

PARTS = {"pre": "", "post": "_after_training", "global": "_global"}  # how names of values end


@dataclass(frozen=True)
class TrackedRun:
    """The run that is tracked."""

    name: str  # method and seed
    folder: Path  # of the run
    home: Path  # of the run, or of the comparison that it belongs to: files of tools go there
    settings: dict[str, Any]  # all that it depends on


class Tracker(Protocol):
    """One run in one tool."""

    id: str  # by which the tool knows the run, so that a resumed one is continued

    def log(self, number: int, values: dict[str, float]) -> None:
        """Notes numbers of a round."""

    def end(self, number: int, values: dict[str, float], clients: Path) -> None:
        """Notes what the run came to in its last round, and closes it; `clients` is a csv file."""

    def leave(self) -> None:
        """Closes the tool without an end: the run may be resumed."""


def round_values(line: Line, metric: str = "accuracy") -> dict[str, float]:
    """The numbers in a line of the history.

    Args:
      line: of the history.
      metric: that the run goes by; the values are named after it.

    Example:
      >>> round_values({"round": 1, "bytes": {"up": 5, "down": 7}, "pre": {"mean": 0.5, "loss": 2}})
      {'bytes/up': 5.0, 'bytes/down': 7.0, 'accuracy/mean': 0.5, 'loss/test': 2.0}
    """
    found: dict[str, Any] = {f"bytes/{k}": v for k, v in line.get("bytes", {}).items()}
    found |= {f"time/{k}": line.get(k) for k in ("train_seconds", "seconds")}
    found["privacy/epsilon"] = line.get("epsilon", {}).get("max")
    for key, name in (("skipped", "left_out"), ("dropped",) * 2, ("stragglers",) * 2):
        found[f"clients/{name}"] = len(line[key]) if key in line else None
    found["time/simulated"] = line.get("simulated_time")
    for part, ending in PARTS.items():
        scores = line.get(part) or {}
        found |= {f"{metric}{ending}/{k}": v for k, v in scores.items() if k != "loss"}
        if part == "pre":
            found["loss/test"] = scores.get("loss")
    return {k: float(v) for k, v in found.items() if isinstance(v, (int, float))}


def final_values(result: dict[str, Any]) -> dict[str, float]:
    """The numbers of a result."""
    found = {f"final/{k}": v for k, v in result["score"].items()}
    found |= {f"final/bytes_{k}": v for k, v in result["bytes"].items()}
    found |= {f"final/{k}": result.get(k) for k in ("seconds", "train_seconds", "best_round")}
    found["final/epsilon"] = (result.get("epsilon") or {}).get("max")
    return {k: float(v) for k, v in found.items() if isinstance(v, (int, float))}
