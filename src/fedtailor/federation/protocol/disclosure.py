"""What leaves a site for a method: every array by name, and every number beside them.

Found by playing one client's turn on a reference network, so it cannot differ from what a real
federation sends: the same functions make the messages there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from fedtailor.core import tree
from fedtailor.core.form import Form
from fedtailor.datasets import Encoder
from fedtailor.federation.protocol.messages import to_arrays
from fedtailor.federation.protocol.plan import (
    example_upload,
    first_server,
    make_training_plan,
    set_up,
)
from fedtailor.results.config import make_config

REFERENCE = "mlp"
FORM = Form("image", (1, 8, 8), 10)  # digits
CLIENTS = 3

# (name, when, what) of each number in an answer's header; `share` in site.toml takes the last two
# groups away
NUMBERS = (
    ("n, val, test", "on joining", "how many rows the site has for training, validation, testing"),
    ("name, client", "on joining", "what the site calls itself, and its number"),
    ("newest", "on joining", "the newest round that the site has a state of"),
    ("weight", "each round", "the upload's weight in a mean, usually the training rows"),
    ("n", "each round", "training rows"),
    (
        "post_score, post_loss, test",
        "each round, if shared (scores)",
        "the metric of its model on its own test rows, and how many these are",
    ),
    (
        "pre_score, pre_loss, test",
        "at the end, and where score_every asks; if shared (scores)",
        "the same of its personal model",
    ),
    ("local_score", "at the end, if shared (baseline)", "of a model trained without the others"),
)
PROTECTED = (
    "With --dp-clip and --dp-noise the site clips each example's gradient and adds noise in every "
    "training step, with a key that never leaves it: all that is made of these gradients, so the "
    "arrays above, holds (ε, δ) per training example. Outside of it: numbers of rows, and scores "
    "on test rows (share = [] keeps them). A method that sends more of its rows is refused."
)


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
    parameters: int  # of the reference network

    @property
    def each(self) -> tuple[str, ...]:
        """Arrays that the server needs one by one; empty if a mean would do."""
        return tuple(array.name for array in self.arrays if array.needed == "each")


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
    setup = set_up(make_training_plan(config, encoder, CLIENTS))
    server = first_server(setup, torch.full((CLIENTS,), 100))
    upload = example_upload(setup, server)
    found = [
        SentArray(f"{part}/{name}", array.shape, str(array.dtype), array.nbytes, part)
        for part, sent in (("mean", upload.mean), ("each", upload.each))
        for name, array in to_arrays(sent).items()
    ]
    parameters = sum(p.numel() for p in tree.leaves(setup.initial))
    return Disclosure(tuple(found), parameters)
