"""MLflow: on the server that MLFLOW_TRACKING_URI names, else under `mlruns` in the folder."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

from fedtailor.tracking.protocol import TrackedRun

EXPERIMENT = "fedtailor"
LONGEST = 500  # letters of a parameter, whatever the server's version allows
AT_ONCE = 100  # parameters in one request


def check() -> None:
    """Loads what is slow to load before the run begins."""
    importlib.import_module("mlflow.tracking")


class OnMLflow:
    """One run of an experiment named after its folder."""

    def __init__(self, run: TrackedRun, known: str, logged: int) -> None:
        package: Any = importlib.import_module("mlflow.tracking")
        self._entities: Any = importlib.import_module("mlflow.entities")
        place = os.environ.get("MLFLOW_TRACKING_URI")
        if not place:
            place = (run.home / "mlruns").resolve().as_uri()
            # newer versions want a database unless told that files are meant
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = package.MlflowClient(place)
        if known:
            self.id = known
            self._client.update_run(known, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(EXPERIMENT)
        kept = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        tags = {"fedtailor.folder": str(run.folder.resolve()), "group": run.home.name}
        made = self._client.create_run(kept, run_name=run.name, tags=tags)
        self.id = str(made.info.run_id)
        given = [
            self._entities.Param(name, str(value)[:LONGEST]) for name, value in run.settings.items()
        ]
        for start in range(0, len(given), AT_ONCE):
            self._client.log_batch(self.id, params=given[start : start + AT_ONCE])

    def log(self, number: int, values: dict[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(k, v, now, number) for k, v in values.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def end(self, number: int, values: dict[str, float], clients: Path) -> None:
        self.log(number, values)
        self._client.log_artifact(self.id, str(clients))
        self._client.set_terminated(self.id, "FINISHED")

    def leave(self) -> None:
        self._client.set_terminated(self.id, "KILLED")
