"""Models that a run keeps: the personal ones, the global one, and those on the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.inputs.files import replacing
from fedtailor.core.tree import Tree
from fedtailor.engine import Simulation
from fedtailor.engine.clients import Keep
from fedtailor.results import folder as files
from fedtailor.results.measurements import AFTER, BEFORE
from fedtailor.results.storage import load_tensors, save_tensors

WRITERS = 8  # files that are written at a time: a disk is asked to keep each one safe
WAITING = 16  # models that may wait for it in memory


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@contextmanager
def writing_models() -> Iterator[Callable[[Path, dict[str, Tensor]], None]]:
    """Gives what writes a model to a path, several at a time; all are on the disk at the end.

    Equal ones in a row are one file: where all clients end with the server's model, it is written
    once instead of a hundred times.
    """
    begun: list[Future[None]] = []
    first: tuple[Path, dict[str, Tensor], Future[None]] | None = None

    def write(path: Path, model: dict[str, Tensor]) -> None:
        nonlocal first
        if first is not None and _same(first[1], model):
            job = pool.submit(_write_again, *first, path)
        else:
            job = pool.submit(save_tensors, path, model)
            first = path, model, job
        begun.append(job)
        if len(begun) > WAITING:
            begun.pop(0).result()

    with ThreadPoolExecutor(WRITERS, "fedtailor-models") as pool:
        yield write
        for job in begun:
            job.result()


def _write_again(first: Path, model: dict[str, Tensor], written: Future[None], path: Path) -> None:
    """The same model under another name: a link, or a copy where there are none.

    Nobody may write into such a file, which would change other clients' models: it can only be
    replaced.
    """
    written.result()  # it was begun earlier, so somebody is at it
    try:
        if os.name != "nt":  # where it could not be removed either
            first.chmod(first.stat().st_mode & 0o444)  # read by whoever could before
        with replacing(path) as part:
            part.hardlink_to(first)
    except OSError:  # a file system without links, or with too many to one file
        save_tensors(path, model)


@contextmanager
def keeping_personal(names: Sequence[str], folder: Path | None) -> Iterator[Keep | None]:
    """Gives what writes clients' models; None without a folder to keep them in.

    Args:
      names: of all clients.
      folder: of the run.
    """
    if folder is None:
        yield None
        return
    (folder / files.MODELS).mkdir(exist_ok=True)
    with writing_models() as write:

        def keep(ids: Tensor, models: Tree) -> None:
            for i, cid in enumerate(ids.tolist()):
                model = tree.flatten(tree.index(models, i))
                write(files.model_file(folder, names[cid]), model)

        yield keep


def keep_general(simulation: Simulation, folder: Path) -> None:
    """Writes the global model: one file, or one for each client where part of it is its own.

    Args:
      simulation: whose method has a global model.
      folder: of the run.
    """

    def models() -> Iterator[tuple[int, dict[str, Tensor]]]:
        for cid, model in simulation.models(point="general"):
            yield cid, tree.flatten(model)

    several = models()
    first = next(several)[1]
    if all(_same(first, model) for _, model in several):
        save_tensors(folder / f"{files.GENERAL}{files.TENSORS}", first)
        return
    (folder / files.GENERAL).mkdir(exist_ok=True)
    names = simulation.client_data.names
    with writing_models() as write:
        for cid, model in models():
            write(files.model_file(folder, names[cid], files.GENERAL), model)


def read_general(folder: Path, client: str) -> Tree | None:
    """The global model as a client has it; None for a run without one."""
    for path in (
        folder / f"{files.GENERAL}{files.TENSORS}",
        files.model_file(folder, client, files.GENERAL),
    ):
        if path.exists():
            return tree.unflatten(load_tensors(path))
    return None


class PathModels:
    """Some clients' models around a round, collected before it is played and then written.

    A model before training is the one that the client would be tested with. That after training
    is what training makes of it, computed aside, so that the run itself knows nothing of it.

    Args:
      simulation: before the round.
      watched: ids of the clients that are followed.
      cohort: ids of those who train.
    """

    def __init__(self, simulation: Simulation, watched: Tensor, cohort: Tensor) -> None:
        training = watched[torch.isin(watched, cohort)]
        found = {BEFORE: simulation.models(ids=watched)}
        if len(training):
            found[AFTER] = simulation.models(ids=training, point="post")
        names = simulation.client_data.names
        self.tensors = {
            f"{files.file_name(names[cid])}/{when}/{k}": leaf
            for when, models in found.items()
            for cid, model in models
            if bool(tree.finite(model))  # a client that diverged has no place on a picture
            for k, leaf in tree.flatten(model).items()
        }

    def save(self, folder: Path, number: int) -> None:
        """Writes them into a run's folder as those of round `number`."""
        (folder / files.PATH).mkdir(exist_ok=True)
        save_tensors(files.round_file(folder, files.PATH, number), self.tensors)


def path_rounds(folder: Path) -> list[int]:
    """The rounds of which a run kept points."""
    return list(files.round_files(folder, files.PATH))


def path_clients(folder: Path, number: int, names: Sequence[str]) -> list[str]:
    """Which of the clients a run followed, going by round `number`."""
    kept = tree.unflatten(load_tensors(files.round_file(folder, files.PATH, number)))
    return [name for name in names if files.file_name(name) in kept]


def read_points(folder: Path, number: int, client: str) -> dict[str, Tree]:
    """A client's models before and after training in a round, as far as they were kept."""
    kept = tree.unflatten(load_tensors(files.round_file(folder, files.PATH, number)))
    found = kept.get(files.file_name(client), {})
    return {when: found[when] for when in (BEFORE, AFTER) if when in found}
