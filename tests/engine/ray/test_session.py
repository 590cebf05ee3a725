"""The connection to Ray: what is missing is said plainly."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.engine.ray.cluster import Cluster
from fedtailor.engine.ray.session import Session


def no_build(device: str) -> list[Any]:
    raise AssertionError("nobody builds anything here")


def test_without_ray_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BadInput, match=r"pip install 'fedtailor\[ray\]'$"):
        Session(Cluster(no_build), 4)


class FakeRay:
    """As much of Ray as a session asks for before it acquires anybody."""

    class exceptions:
        RayTaskError = RayActorError = WorkerCrashedError = NodeDiedError = ObjectLostError = (
            RuntimeError
        )

    def __init__(self, **resources: float) -> None:
        self.resources, self.given, self.node = resources, dict[str, Any](), "a"

    def is_initialized(self) -> bool:
        return False

    def init(self, **given: Any) -> None:
        self.given = given
        if given["address"] == "nowhere:1":
            raise ConnectionError("nobody answers\nfor long")

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def get_runtime_context(self) -> Any:
        return self

    def get_job_id(self) -> str:
        return "1"

    def get_node_id(self) -> str:
        return self.node


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(**resources: float) -> FakeRay:
        made = FakeRay(**resources)
        monkeypatch.setattr(importlib, "import_module", lambda name: made)
        return made

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return make


def test_nothing_is_reported_and_no_dashboard_is_started(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    ray = fake(CPU=2.0)
    Session(Cluster(no_build), 4)
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert ray.given["address"] == "local" and ray.given["include_dashboard"] is False


@pytest.mark.parametrize(
    ("asked", "cpus", "gpus", "workers", "threads"),
    [
        (Cluster(no_build), 4, 0, 4, 1),
        (Cluster(no_build, 2), 4, 0, 2, 2),
        (Cluster(no_build), 64, 0, 10, 6),  # no more than clients
        (Cluster(no_build, device="cuda"), 64, 8, 8, 8),
        (Cluster(no_build, 3, device="cuda"), 64, 8, 3, 21),
        (Cluster(no_build, device="cuda", gpus=0.5), 64, 4, 8, 8),
    ],
)
def test_how_many_workers(
    asked: Cluster, cpus: int, gpus: int, workers: int, threads: int, fake: Any
) -> None:
    fake(CPU=float(cpus), GPU=float(gpus))
    session = Session(asked, 10)
    assert (session.workers, session.threads) == (workers, threads)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Cluster(no_build, 5), "workers is 5, but the Ray cluster has 4 cores: use fewer"),
        (Cluster(no_build, 3, device="cuda"), "workers is 3, but the Ray cluster has 2 GPUs"),
        (Cluster(no_build, device="cuda", gpus=4), "has 2 GPUs and a worker takes 4"),
        (Cluster(no_build, address="nowhere:1"), r"address 'nowhere:1' .*\(nobody answers\)"),
    ],
)
def test_what_cannot_be_had(asked: Cluster, words: str, fake: Any) -> None:
    fake(CPU=4.0, GPU=2.0)
    with pytest.raises(BadInput, match=words) as error:
        Session(asked, 100)
    assert "\n" not in str(error.value)


def test_workers_wait_for_the_next_run(fake: Any) -> None:
    ray = fake(CPU=4.0)
    session = Session(Cluster(no_build), 4)

    class Actor:
        class clear:
            @staticmethod
            def remote() -> None: ...

        class look_in:
            @staticmethod
            def remote(path: list[str]) -> None: ...

    actor, lost = Actor(), Actor()
    session.release(actor)
    assert Session(Cluster(no_build), 4).acquire() is actor
    session.release(lost)
    ray.node = "b"  # shut down and started again: its workers are gone
    other = Session(Cluster(no_build), 4)
    other.release(actor)
    assert other.acquire() is actor
