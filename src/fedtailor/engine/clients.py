"""What a simulation asks of its clients, here or on other machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from fedtailor.core.rng import Turn
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Tree
from fedtailor.engine.fold import Fold
from fedtailor.engine.loops.runner import LoopMode, LoopRunner
from fedtailor.engine.loops.tracing import COMPILE_LIMIT
from fedtailor.engine.state_store import StatePlace

Point = Literal["pre", "post", "general"]
Keep = Callable[[Tensor, Tree], None]  # takes ids of some clients, and their models stacked


class ModelChoice(NamedTuple):
    """Which model of a client is looked at."""

    # what it would use now (`pre`), what it would have after training in this round (`post`), or
    # the global one as it has it (`general`, only where the method has one)
    point: Point = "pre"
    finetune: Recipe | None = None  # train a `pre` model so first
    kept: bool = False  # the model itself is wanted beside what it says


class ClientSettings(NamedTuple):
    """How clients are played, wherever they are."""

    recipe: Recipe  # how they train, to estimate memory by
    loop_mode: LoopMode = "plain"  # how loops over batches are run, see `LoopRunner`
    place: StatePlace | None = None  # where states are kept; None chooses
    chunk: int = 0  # how many clients share a device at a time; 0 chooses what fits
    compile_limit: float = COMPILE_LIMIT  # seconds that compiling may take in all
    keep_programs: bool = False  # whether traced steps are kept on disk, and read from there


class Outputs(NamedTuple):
    """What each client's model says of its test and validation rows, one entry per client."""

    test: Tensor  # clients x rows x outputs; a client's rows come first, the rest is padding
    val: Tensor  # the same for validation rows, which a `post` model is not asked for
    noisy: Tensor  # what noisy gradients (DP-SGD) making the model took: rows of `privacy.Spent`


class TurnReport(NamedTuple):
    """What a round notes of each client that was drawn, one row each."""

    down: Tensor  # bytes sent to it
    up: Tensor  # bytes received from it
    finite: Tensor  # whether all numbers that it kept and sent are finite
    post: Outputs | tuple[()]  # outputs after local training; empty if not asked for
    noisy: Tensor  # what noisy gradients (DP-SGD) it took: rows of `privacy.Spent`
    fresh: Tensor  # whether this was its first round
    watched: Tensor  # a row of `UploadWatch.look`
    weight: Tensor  # of its upload


class CohortOutcome(NamedTuple):
    """What the turns of some clients came to. Nothing has changed yet."""

    drawn: Tensor  # the ids of all, ascending
    taken: Tensor  # those that count, ascending
    fold: Fold  # the weighted mean of their uploads
    each: Callable[[], Tree]  # gives what the server needs of them one by one, one row each
    keep: Callable[[], None]  # makes their new states count
    measured: Callable[[], TurnReport]  # waits for the device, and gives a row for each of all
    notes: Callable[[], Tree]  # the same for what the method noted of those that count


class ClientStates(NamedTuple):
    """States of some clients."""

    ids: Tensor  # the clients, ascending
    rows: Tree  # their states, one row each


class SimulatedClients(Protocol):
    """All clients of a federation, wherever they are. They never change the server's state.

    Attributes:
      runner: runs loops on this machine, also the server's.
    """

    runner: LoopRunner

    @property
    def chunk(self) -> int:
        """How many clients share a call."""

    @chunk.setter
    def chunk(self, size: int) -> None: ...

    @property
    def place(self) -> str:
        """Where states are kept."""

    @property
    def preparing_seconds(self) -> float:
        """What tracing and compiling steps took so far, as far as it is known here."""

    def play(
        self, server: Tree, cohort: Tensor, turn: Turn, *, post: bool = False, skip: bool = True
    ) -> CohortOutcome:
        """The turns of the clients `cohort`, at least one; `post` also asks trained models.

        Those that diverge do not count if they are to be `skip`ped. Else nobody waits to hear who
        did, and all may count.
        """

    def outputs(
        self,
        server: Tree,
        ids: Tensor,
        turn: Turn,
        choice: ModelChoice,
        part: str = "test",
        keep: Keep | None = None,
    ) -> Outputs:
        """What a model of each client says, by ascending id; `part` counts as its test rows.

        The models themselves go to `keep`, some clients at a time.
        """

    def models(
        self, server: Tree, ids: Tensor, turn: Turn, choice: ModelChoice
    ) -> Iterator[tuple[Tensor, Tree]]:
        """(ids, models stacked), some clients at a time; the turn of `post` models is a round's."""

    def client_states(self) -> list[ClientStates]:
        """For each group the states of those clients that were met."""

    def restore_states(self, states: list[ClientStates]) -> None:
        """Puts states where `client_states` found them; other clients stay as they are."""

    def like(self) -> list[Tree]:
        """For each group its states without any row: names, shapes and types."""

    def keep_states_in(self, folder: Path | None) -> None:
        """Says where states on disk go (None: to a temporary folder), before anybody has one."""

    def close(self) -> None:
        """Gives back what was taken for the run."""
