"""A method is seven pure functions. Five are written for ONE client; engines do the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.form import TaskKind
from fedtailor.core.options import Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params, Tree

Model = Any  # a tree; usually a whole set of parameters


class ClientCount(int):
    """How many clients there are.

    Attributes:
      sizes: the number of training rows of each.
      may_train: whether each may take part at all (others are held out).
      training: `sizes` of those alone that may.
    """

    sizes: Tensor
    may_train: Tensor
    training: Tensor

    @classmethod
    def of(cls, sizes: Tensor, held_out: Tensor | None = None) -> ClientCount:
        """From one size per client, and the ids of those that never take part.

        Example:
          >>> clients = ClientCount.of(torch.tensor([5, 3, 8]), held_out=torch.tensor([1]))
          >>> clients, clients.may_train.tolist(), clients.training.tolist()
          (3, [True, False, True], [5, 8])
        """
        made = cls(len(sizes))
        made.sizes, made.may_train = sizes, torch.ones_like(sizes, dtype=torch.bool)
        if held_out is not None:
            made.may_train[held_out.to(sizes.device)] = False
        made.training = sizes[made.may_train]
        return made

    def copies(self, one: Tree) -> Tree:
        """A copy for each client along a new first axis; 0 for those that never train.

        Example:
          >>> clients = ClientCount.of(torch.tensor([5, 3, 8]), held_out=torch.tensor([1]))
          >>> clients.copies({"w": torch.tensor(7)})
          {'w': tensor([7, 0, 7])}
        """
        never = (~self.may_train).nonzero()[:, 0]
        return tree.map(lambda p: p.index_fill(0, never, 0), tree.tile(one, self))


class Upload(NamedTuple):
    """What a client sends to the server, and nothing else does it send.

    Attributes:
      mean: entries of which the server needs the weighted mean only (secure aggregation would do).
      weight: this client's weight in that mean. In `receive`: for each name of `mean`, the share
        of the cohort's weight that sent it (below 1 only where clients have different networks).
      each: entries that the server needs one by one.
    """

    mean: Tree = {}
    weight: Any = 1.0
    each: Tree = {}


class Outcome(NamedTuple):
    """What a client's turn ends with.

    Attributes:
      state: what the client keeps.
      upload: what it sends.
      model: what it would predict with right after training (evaluation point `post`).
      notes: small numbers for the run's records, by name; they are not sent.
    """

    state: Tree
    upload: Upload
    model: Model
    notes: Tree = {}


class Download(NamedTuple):
    """The one model that a client downloads: what a wrapper asks that moves the start of training.

    Such a wrapper calls `client` and `personal` with one more entry in the message, `begin`: a
    method with a `Download` begins there instead of with what it received (see `beginning`).

    Attributes:
      entry: its name in the message; in the upload, what came of it has the same name.
      client: the function that begins there: with another one the method has no `Download`.
      rest: (state, whether it is to be trained) -> the parameters that are not downloaded; None
        where the whole model is.
      tested: whether `personal` begins with it, too.
    """

    entry: str
    client: Callable[[Tree, Tree, Data, Turn], Outcome]
    rest: Callable[[Tree, bool], Params] | None = None
    tested: bool = True


class Method(NamedTuple):
    """A federated method: pure functions, written for ONE client; engines map them over many.

    In a round the server sends each client of the cohort a message (`send`); the client trains,
    with the state from its last turn or, at first contact, from `start` (`client`); the server
    takes in what they upload (`receive`). Whatever is kept or sent is a tree of tensors.

    A wrapper takes a method and returns one: `with_ala(fedavg(task), task, Ala(), recipe)`.

    Attributes:
      init: (number of clients, common initial parameters, key) -> server state.
      send: (server, client id, turn) -> the message to that client.
      start: (first message, common initial parameters, key) -> the client's first state. The
        initial parameters are the one-off broadcast that every method is granted.
      client: (message, state, data, turn) -> outcome.
      receive: (server, ids of the cohort, upload, turn) -> server. `upload.mean` is the weighted
        mean over the cohort, `upload.each` has the cohort as its first axis. `turn.of(id)` is the
        turn that `send` saw for that client in this round.
      personal: (message, state, data, turn) -> the model this client would use now (point `pre`).
      predict: (model, x) -> logits.
      record: server -> small arrays for the run's records, by name.
      general: (message, state) -> the global model, where there is one beside personal models.
      general_predict: (global model, x) -> logits, where its network is another than the client's.
      donate: share of each client's training rows that goes into a pool which all train on.
      gathered: whether all training rows go to one place, where one client trains for all: a bound,
        not a federation.
      download: the model that local training begins with, where wrappers may change it.
      common: the entry of the server's state that all clients move, where there is one: parameters
        that a server optimiser may move another way.
      mean_only: why no other rule may take the place of the weighted mean of its uploads (robust
        rules, `--max-norm`); empty if one may.
      validates: whether clients look at their validation rows.
      leaks: whether those are to be test rows, as in a paper that leaks: a result is marked so.
      not_private: why DP-SGD gives no guarantee with this method; empty if it does.
      alone: whether clients never hear of each other: then preprocessing is their own, too.
      refuses: kinds of tasks that its mathematics does not have, each with the reason.
      admit: (message, upload) -> what the server takes in of that client's upload, as it arrives.
      one_rate: why clients with several learning rates cannot share a call; empty if they can,
        since the method takes the rate from `Recipe.rate` alone.
      own_rates: whether clients train with rates among the method's options alone: then the run's
        learning rate changes nothing, and is not tuned.
      by_class: what the mean of a class that a client sends is of, where it sends some: `all` its
        rows of that class, or those that its `steps` took. A site may ask for a number of them.
      own_networks: which network the server has where clients' networks differ (`--models`): the
        `deepest` of theirs, or the one that is `named` for all; empty if they may not differ. A
        factory with an argument `networks` is given all of them then, the server's first.
      finetune: (message, state, model, data, turn, recipe) -> the `personal` model after more
        training on the client's rows, where this is not to train all of its numbers with the task's
        loss (see `finetuned`).

    Example:
      Federated averaging: all train the server's model, and the server takes the mean.

      >>> from fedtailor.core.training import Recipe, fit
      >>> def averaging(task, *, recipe=Recipe()):
      ...     def client(msg, state, data, turn):
      ...         params = fit(task, msg["params"], data, turn, recipe)
      ...         return Outcome({}, Upload({"params": params}, by_size(data, "data")), params)
      ...     return Method(
      ...         init=lambda clients, initial, key: {"params": initial},
      ...         send=lambda server, cid, turn: server,
      ...         start=lambda msg, initial, key: {},
      ...         client=client,
      ...         receive=lambda server, ids, upload, turn: upload.mean,
      ...         personal=lambda msg, state, data, turn: msg["params"],
      ...         predict=task.predict,
      ...     )
    """

    init: Callable[[ClientCount, Params, Key], Tree]
    send: Callable[[Tree, Tensor, Turn], Tree]
    start: Callable[[Tree, Params, Key], Tree]
    client: Callable[[Tree, Tree, Data, Turn], Outcome]
    receive: Callable[[Tree, Tensor, Upload, Turn], Tree]
    personal: Callable[[Tree, Tree, Data, Turn], Model]
    predict: Callable[[Model, Tensor], Tensor]
    record: Callable[[Tree], Tree] = lambda server: {}
    general: Callable[[Tree, Tree], Model] | None = None
    general_predict: Callable[[Model, Tensor], Tensor] | None = None
    donate: float = 0.0
    gathered: bool = False
    download: Download | None = None
    common: str = ""
    mean_only: str = ""
    validates: bool = False
    leaks: bool = False
    not_private: str = ""
    alone: bool = False
    refuses: Mapping[TaskKind, str] = MappingProxyType({})
    admit: Callable[[Tree, Upload], Upload] = lambda message, upload: upload
    one_rate: str = ""
    own_rates: bool = False
    by_class: Literal["", "all", "steps"] = ""
    own_networks: Literal["", "deepest", "named"] = ""
    finetune: Callable[[Tree, Tree, Model, Data, Turn, Recipe], Model] | None = None


def download_of(method: Method) -> Download | None:
    """A method's `Download`, unless its client's function has been replaced since."""
    download = method.download
    return download if download and download.client is method.client else None


def beginning(message: Tree, otherwise: Params) -> Params:
    """Where a client's training begins: with what a wrapper put there, or else `otherwise`."""
    begin: Params = message.get("begin", otherwise)
    return begin


def only_classes(reason: str) -> Mapping[TaskKind, str]:
    """For `Method.refuses`: classification alone, and why."""
    return MappingProxyType({"regression": reason, "survival": reason})


def by_size(data: Data, weighting: Weighting) -> Tensor:
    """A client's weight in a mean: its number of training rows (`data`) or 1 (`uniform`).

    Example:
      >>> data = Data.of(torch.zeros(10, 2), torch.zeros(10).long())
      >>> by_size(data, "data"), by_size(data, "uniform")
      (tensor(10.), tensor(1.))
    """
    weight = data.n.to(torch.get_default_dtype())
    return torch.ones_like(weight) if weighting == "uniform" else weight
