"""Latent distributions: rows that a network finds alike, as data for clients with kindred tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import BadInput
from fedtailor.partition.draws import Array, draws

if TYPE_CHECKING:
    from torch import Tensor, nn

_WIDTH = 128  # of the embedding that our own network makes
_EPOCHS = 5
_BATCH = 64
_CHUNK = 1024  # rows embedded at a time


def latent_clusters(
    x: Array,
    labels: Array,
    k: int,
    *,
    seed: int,
    embed: Callable[[Array], Array] | None = None,
    components: int = 256,
) -> npt.NDArray[np.int64]:
    """A cluster number for each row: embedding, principal components, k-means.

    If there are as many clusters as classes, a row's class is its cluster, as in FedFomo's code.

    Args:
      x: images [n, channels, height, width], or a table of floats [n, features].
      labels: one class per row, to train the network that embeds the rows.
      k: number of clusters.
      embed: makes one vector of each row; None trains a small network for it, which takes a few
        epochs on the processor and leaves the global random state as it was.
      components: principal components to keep, where there are that many.
    """
    labels = np.asarray(labels)
    if labels.shape != x.shape[:1]:
        raise BadInput(f"{labels.size} labels for {len(x)} rows: give one label per row")
    if not 1 <= k <= len(x):
        raise BadInput(f"{k} latent distributions for {len(x)} rows: choose from 1 to {len(x)}")
    if k == np.unique(labels).size:
        return labels.astype(np.int64)

    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    made = np.asarray(_train_and_embed(x, labels, seed=seed) if embed is None else embed(x))
    if made.ndim != 2 or len(made) != len(x) or not np.isfinite(made).all():
        raise BadInput(
            f"the embedding of {len(x)} rows has the shape {made.shape}, or numbers that are not "
            "finite: it must be one vector of finite numbers per row"
        )
    state = int(draws(seed, "latent clusters").integers(2**32))
    reduced = PCA(min(components, *made.shape), random_state=state).fit_transform(made)
    means = KMeans(k, n_init=5, max_iter=100, random_state=state)
    found: npt.NDArray[np.int64] = means.fit_predict(reduced).astype(np.int64)
    if np.unique(found).size < k:
        raise BadInput(f"the rows differ too little for {k} latent distributions: ask for fewer")
    return found


def _train_and_embed(x: Array, labels: Array, *, seed: int) -> Array:
    """The layer before the last one, before its activation, of a small network trained on `x`."""
    import torch
    from torch import nn

    from fedtailor.core.network.made import drawing

    read = _reader(x)
    classes, target = np.unique(labels, return_inverse=True)
    rng = draws(seed, "latent network")
    with drawing(torch.tensor(int(rng.integers(2**63)))):
        body = _body(x)
        head = nn.Sequential(nn.ReLU(), nn.Linear(_WIDTH, classes.size))
    network = nn.Sequential(body, head)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    goal = torch.from_numpy(target.astype(np.int64))
    with torch.enable_grad():
        for _ in range(_EPOCHS):
            order = rng.permutation(len(x))
            for batch in np.split(order, range(_BATCH, len(x), _BATCH)):
                optimiser.zero_grad()
                loss = nn.functional.cross_entropy(network(read(batch)), goal[batch])
                torch.autograd.backward(loss)
                optimiser.step()
    with torch.no_grad():
        chunks = np.split(np.arange(len(x)), range(_CHUNK, len(x), _CHUNK))
        return torch.cat([body(read(chunk)) for chunk in chunks]).numpy()


def _reader(x: Array) -> Callable[[Array], Tensor]:
    """Rows as float tensors of a friendly scale, made when asked for: images need the memory."""
    import torch

    if x.ndim == 4 and x.dtype == np.uint8:
        return lambda rows: torch.from_numpy(x[rows]).float() / 255 - 0.5
    if x.ndim in (2, 4) and x.dtype.kind == "f":
        around = (0,) if x.ndim == 2 else (0, 2, 3)
        mean = x.mean(axis=around, keepdims=True, dtype=np.float64)
        scale = x.std(axis=around, keepdims=True, dtype=np.float64)
        scale[scale == 0] = 1
        return lambda rows: torch.from_numpy((x[rows] - mean) / scale).float()
    raise BadInput(
        f"latent distributions of {x.dtype} data of shape {x.shape}: they need images or a table "
        "of floats; use another partition, e.g. 'dirichlet:0.1'"
    )


def _body(x: Array) -> nn.Module:
    from torch import nn

    if x.ndim == 2:
        return nn.Sequential(nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Linear(256, _WIDTH))
    return nn.Sequential(
        nn.Conv2d(x.shape[1], 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),  # any picture size
        nn.Flatten(),
        nn.Linear(64 * 16, _WIDTH),
    )
