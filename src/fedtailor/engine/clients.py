"""What a simulation asks of its clients, here or on other machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from fedtailor.core.rng import Turn
from fedtailor.core.training import Recipe, Score
from fedtailor.core.tree import Tree
from fedtailor.engine.fold import Fold
from fedtailor.engine.loops.runner import LoopMode
from fedtailor.engine.state_store import StatePlace

Point = Literal["pre", "post", "general"]


class ModelChoice(NamedTuple):
    """Which model of a client is looked at.

    Attributes:
      point: what it would use now (`pre`), what it would have after training in this round
        (`post`), or the global one as it has it (`general`, only where the method has one).
      finetune: train a `pre` model so first.
    """

    point: Point = "pre"
    finetune: Recipe | None = None


class ClientSettings(NamedTuple):
    """How clients are played, wherever they are.

    Attributes:
      recipe: how they train, to estimate memory by.
      loop_mode: how loops over batches are run, see `LoopRunner`.
      place: where states are kept; None chooses.
      chunk: how many clients share a device at a time; 0 chooses what fits.
    """

    recipe: Recipe
    loop_mode: LoopMode = "plain"
    place: StatePlace | None = None
    chunk: int = 0


class Scores(NamedTuple):
    """One row per client: right answers and summed losses on its test and validation rows.

    Attributes:
      test: on test rows.
      val: on validation rows.
      noisy: what noisy gradients (DP-SGD) making the model took: rows of `privacy.Spent`.
    """

    test: Score
    val: Score
    noisy: Tensor


class TurnReport(NamedTuple):
    """What a round notes of each client that was drawn, one row each.

    Attributes:
      down: bytes sent to it.
      up: bytes received from it.
      finite: whether all numbers that it kept and sent are finite.
      post: scores after local training; zeros if not asked for.
      noisy: what noisy gradients (DP-SGD) it took: rows of `privacy.Spent`.
      fresh: whether this was its first round.
    """

    down: Tensor
    up: Tensor
    finite: Tensor
    post: Scores
    noisy: Tensor
    fresh: Tensor


class CohortOutcome(NamedTuple):
    """What the turns of some clients came to. Nothing has changed yet.

    Attributes:
      drawn: the ids of all, ascending.
      measured: one row for each of them.
      taken: those that did not diverge and count, ascending.
      notes: what the method noted of those, one row each.
      fold: the weighted mean of their uploads.
      each: gives what the server needs of them one by one, one row each.
      keep: makes their new states count.
    """

    drawn: Tensor
    measured: TurnReport
    taken: Tensor
    notes: Tree
    fold: Fold
    each: Callable[[], Tree]
    keep: Callable[[], None]


class ClientStates(NamedTuple):
    """States of some clients.

    Attributes:
      ids: the clients, ascending.
      rows: their states, one row each.
    """

    ids: Tensor
    rows: Tree


class SimulatedClients(Protocol):
    """All clients of a federation, wherever they are. They never change the server's state."""

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
        self, server: Tree, cohort: Tensor, turn: Turn, *, post: bool = False
    ) -> CohortOutcome:
        """The turns of the clients `cohort`, at least one; `post` also scores trained models."""

    def score(
        self, server: Tree, ids: Tensor, turn: Turn, choice: ModelChoice, part: str = "test"
    ) -> Scores:
        """Scores of a model of each client, by ascending id; `part` counts as its test rows."""

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
