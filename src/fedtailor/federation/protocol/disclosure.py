"""What leaves a site for a method: every array by name, and every number beside them.

Found by playing one client's turn on a reference network, so it cannot differ from what a real
federation sends: the same functions make the messages there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.form import Form
from fedtailor.core.method import Upload
from fedtailor.core.tree import Tree
from fedtailor.core.turn import ClientTurn
from fedtailor.datasets import Encoder
from fedtailor.engine.fold import Fold
from fedtailor.engine.loops.torch_internals import one_client
from fedtailor.federation.protocol.messages import to_arrays
from fedtailor.federation.protocol.plan import (
    Setup,
    example_method,
    example_upload,
    few_rows,
    first_server,
    in_dtype,
    make_training_plan,
    set_up,
)
from fedtailor.results.config import make_config

REFERENCE = "mlp"
FORM = Form("image", (1, 8, 8), 10)  # digits
CLIENTS = 3

# (name, when, what) of each number in an answer's header; `share` in site.toml takes the last four
# groups away
NUMBERS = (
    (
        "columns",
        "before the first round, if shared (columns) and asked for (init --from-sites)",
        "names and kinds of columns, how many values, their sum and squared deviations, categories "
        "of at least min_category rows, classes; of images their size, of texts frequent words",
    ),
    (
        "n, val, test",
        "on joining",
        "how many rows the site has for training, validation, testing; the latter two in tens "
        "(counts)",
    ),
    ("name, client", "on joining or refusing", "what the site calls itself, and its number"),
    ("code, detail", "on refusing", "why, in one line, without values of its data"),
    ("newest", "on joining", "the newest round that the site has a state of"),
    ("weight", "each round", "the upload's weight in a mean, usually the training rows"),
    ("n", "each round", "training rows"),
    (
        "post_score, post_loss, test",
        "each round, if shared (scores)",
        "the metric of its model on its own test rows, and how many these are (in tens)",
    ),
    (
        "pre_score, pre_loss, test",
        "at the end, and where score_every asks; if shared (scores)",
        "the same of its personal model",
    ),
    (
        "train, val",
        "at the end, if shared (scores)",
        "rows for training and validation, for the report (in tens)",
    ),
    ("local_score", "at the end, if shared (baseline)", "of a model trained without the others"),
    (
        "gain_error",
        "at the end, if shared (error)",
        "the standard error of the score less local_score, over its test rows",
    ),
)
PROTECTED = (
    "With --dp-clip and --dp-noise the site clips each example's gradient and adds noise in every "
    "training step, with a key that never leaves it: all that is made of these gradients, so the "
    "arrays above, holds (ε, δ) per training example. Outside of it: numbers of rows, and scores "
    "on test rows (share = [] keeps them). A method that sends more of its rows is refused."
)


SEEN_BY_COORDINATOR = (
    "sees each upload. Without noise it could compute rows from it (the easier, the fewer rows it "
    "rests on), and tell whether a known row was trained on; a coordinator that lies chooses the "
    "model that makes this easiest."
)
# What other sites receive of a site's upload, and what they could learn from it.
Reach = Literal["nobody", "all", "mixed", "single"]
REACHES: dict[Reach, tuple[str, str]] = {
    "nobody": ("nothing", "nothing"),
    "all": (
        "one model for all, into which every upload went",
        "what the cohort's rows have in common; of one site's alone the more, the fewer sites",
    ),
    "mixed": (
        "a mixture of its own for each site, by likeness or a network of the server's",
        "as much, and more of those who weigh most in its mixture",
    ),
    "single": (
        "uploads of single sites, as they are or in sums that can be undone",
        "all that the coordinator could: rows by inversion, who was trained on",
    ),
}


class SentArray(NamedTuple):
    """An array that leaves a site."""

    name: str  # in the message
    shape: tuple[int, ...]  # of the array
    type: str  # of its numbers
    bytes: int  # that it takes
    needed: str  # `mean` where the mean over sites would do, `each` where the server needs it whole


class Disclosure(NamedTuple):
    """What a site uploads in a round."""

    arrays: tuple[SentArray, ...]  # of one upload
    parameters: int  # of the network
    reach: Reach = "all"  # what other sites receive of it

    @property
    def each(self) -> tuple[str, ...]:
        """Arrays that the server needs one by one; empty if a mean would do."""
        return tuple(array.name for array in self.arrays if array.needed == "each")

    @property
    def needs(self) -> Literal["each", "mean", "nothing"]:
        """What the server needs of uploads."""
        return "each" if self.each else "mean" if self.arrays else "nothing"

    @property
    def bytes(self) -> int:
        """Of one upload."""
        return sum(array.bytes for array in self.arrays)


def reach_of(setup: Setup) -> Reach:
    """What becomes of a site's upload in the next messages to others: found by playing a round.

    With up to three sites: the more there are, the less is one of them in what all receive. In
    double precision: rounding would hide a sum that can be undone.
    """
    setup = set_up(replace(setup.plan, dtype="float64"))
    method, clients = setup.method, range(min(setup.plan.clients, CLIENTS))
    if len(clients) == 1:
        return "nobody"
    server = first_server(setup, torch.full((len(clients),), 100))
    fewer = example_method(setup)
    first: Tree = {}
    sent: list[Upload] = []
    with in_dtype(setup.plan.dtype), torch.no_grad(), one_client():
        for i in clients:
            turn = setup.turn(rng.TURN, 0).of(torch.tensor(i))
            message = method.send(server, torch.tensor(i), turn)
            first = first or message
            data = few_rows(setup.encoder.form, setup.config.batch)
            data = data._replace(x=data.x.roll(i, 0))  # to each rows of its own
            sent.append(ClientTurn(fewer, setup.initial, message, data, turn).play()[0].upload)
        messages = _next_messages(setup, server, sent)
        moved = [sent[0], *(_moved(upload) for upload in sent[1:])]
        if _flat(messages[0]) == _flat(_next_messages(setup, server, moved)[0]):
            return "nobody"
        whole = [{"mean": upload.mean, "each": upload.each} for upload in sent]
        if _unravelled(whole[1], [first, whole[0]], messages[0]):
            return "single"
        return "all" if _flat(messages[0]) == _flat(messages[1]) else "mixed"


def _next_messages(setup: Setup, server: Tree, uploads: Sequence[Upload]) -> list[Tree]:
    fold, clients = Fold(), torch.arange(len(uploads))
    for upload in uploads:
        fold.add(tree.map(lambda p: p[None], upload.mean), torch.as_tensor(upload.weight)[None])
    whole = Upload(fold.mean(), fold.share(), tree.stack([upload.each for upload in uploads]))
    after = setup.method.receive(server, clients, whole, setup.turn(rng.TURN, 0))
    turn = setup.turn(rng.TURN, 1)
    return [setup.method.send(after, i, turn.of(i)) for i in clients]


def _moved(upload: Upload) -> Upload:
    """Another upload of the same form."""

    def more(leaf: Tensor) -> Tensor:
        return leaf + 0.5 if leaf.is_floating_point() else leaf

    return upload._replace(mean=tree.map(more, upload.mean), each=tree.map(more, upload.each))


def _flat(message: Tree) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in to_arrays(message).items()}


def _unravelled(upload: Tree, known: Sequence[Tree], message: Tree) -> bool:
    """Whether a message, with what was known before, has an upload as a sum of its parts.

    Tried with the upload's largest array; arrays of its size, and rows of such, are parts.
    """
    wanted = max(to_arrays(upload).values(), key=lambda array: array.size, default=np.zeros(0))

    def left(*trees: Tree) -> float:
        arrays = [array for each in trees for array in to_arrays(each).values() if array.ndim]
        parts = [p.ravel() for a in arrays for p in (a, *a) if p.size == wanted.size]
        b = wanted.ravel().astype(np.float64)
        if not parts:
            return float(np.linalg.norm(b))
        given = np.stack(parts, 1).astype(np.float64)
        return float(np.linalg.norm(given @ np.linalg.lstsq(given, b)[0] - b))

    return left(*known, message) < 1e-3 * left(*known)


def what_leaves(method: str) -> Disclosure:
    """What a site uploads in a round of a method.

    Raises:
      BadInput: the method is unknown, or not for sites.

    Example:
      >>> [array.name for array in what_leaves("fedper").arrays]  # the head stays
      ['mean/shared/fc1.weight', 'mean/shared/fc1.bias']
    """
    encoder = Encoder(FORM, tuple(str(i) for i in range(FORM.classes)))
    config = make_config(method, {"model": REFERENCE, "device": "cpu"}, {})
    return disclosure_of(set_up(make_training_plan(config, encoder, CLIENTS)))


def disclosure_of(setup: Setup) -> Disclosure:
    """What a site uploads in a round of a plan; tried with few sites, however many there are."""
    server = first_server(setup, torch.full((min(setup.plan.clients, CLIENTS),), 100))
    upload = example_upload(setup, server)
    found = [
        SentArray(f"{part}/{name}", array.shape, str(array.dtype), array.nbytes, part)
        for part, sent in (("mean", upload.mean), ("each", upload.each))
        for name, array in to_arrays(sent).items()
    ]
    parameters = sum(p.numel() for p in tree.leaves(setup.initial))
    return Disclosure(tuple(found), parameters, reach_of(setup))
