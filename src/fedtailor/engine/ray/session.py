"""The connection to Ray, and workers that are hired and given back.

Ray is imported here and nowhere else, and only when it is asked for.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.engine.ray.cluster import Cluster
from fedtailor.engine.ray.worker import RayWorker

# workers that wait for the next run, by cluster, job and GPUs: a process with torch starts slowly
_idle: dict[tuple[str, str, float], list[Any]] = {}


def _import_ray() -> Any:
    # nothing is reported to anybody; a worker without a GPU keeps the environment it was given
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise BadInput(
            "engine is 'ray', but Ray is not installed: pip install 'fedtailor[ray]'"
        ) from None


def _connect(cluster: Cluster) -> Any:
    ray = _import_ray()
    if ray.is_initialized():
        return ray
    address = cluster.address or os.environ.get("RAY_ADDRESS") or "local"
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == "local":
            cores = max(os.cpu_count() or 1, cluster.workers)
            ray.init(address=address, num_cpus=cores, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(
            f"address '{address}' leads to no Ray cluster ({reason}): start one with "
            "'ray start --head', or leave --address out"
        ) from None
    return ray


class Session:
    """A cluster as far as a run needs it: no more workers are hired than there are clients."""

    def __init__(self, cluster: Cluster, clients: int) -> None:
        self.ray = _connect(cluster)
        self._gpus = cluster.gpus if cluster.device.startswith("cuda") else 0.0
        has = self.ray.cluster_resources()
        cores, gpus = int(has.get("CPU", 0)), float(has.get("GPU", 0))
        if self._gpus and gpus < self._gpus:
            raise BadInput(
                f"device is '{cluster.device}', but the Ray cluster has {gpus:g} GPUs and a worker "
                f"takes {self._gpus:g}: lower --worker-gpus, or use --device cpu"
            )
        most = int(gpus / self._gpus + 1e-6) if self._gpus else cores
        if cluster.workers > most:
            what = f"{gpus:g} GPUs" if self._gpus else f"{cores} cores"
            raise BadInput(
                f"workers is {cluster.workers}, but the Ray cluster has {what}: use fewer"
            )
        self.workers = min(cluster.workers or most, clients)
        self.threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, cores // self.workers))
        here = self.ray.get_runtime_context()
        # a cluster that was shut down takes its workers with it: jobs alone count from 1 again
        self._key = (here.get_node_id(), here.get_job_id(), self._gpus)
        errors = self.ray.exceptions
        self.failed: type[Exception] = errors.RayTaskError
        self.gone: type[Exception] = errors.ObjectLostError
        self.lost: tuple[type[Exception], ...] = (
            errors.RayActorError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
        )

    def acquire(self) -> Any:
        """A worker's handle; it may have to be started first."""
        waiting = _idle.get(self._key)
        if waiting:
            worker = waiting.pop()
        else:
            actor = self.ray.remote(num_cpus=1, num_gpus=self._gpus, max_restarts=0)(RayWorker)
            worker = actor.remote()
        worker.look_in.remote(sys.path)
        return worker

    def release(self, actor: Any) -> None:
        """Keeps a worker for the next run."""
        actor.clear.remote()
        _idle.setdefault(self._key, []).append(actor)

    def dismiss(self, actor: Any) -> None:
        """Ends a worker that does not answer."""
        self.ray.kill(actor)
