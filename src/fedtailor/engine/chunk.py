"""How many clients fit on the device at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params, Tree
from fedtailor.engine.client_data import ClientData
from fedtailor.engine.memory import free_memory, nbytes

MODEL_COPIES = 8  # parameters, gradients, optimiser, results and what is on its way between them
SHARE = 0.6  # of the free memory: 300 clients of FedAvg took a third of what is reckoned here
CACHE = 32 << 20  # on a CPU larger chunks that are mapped push each other out of its caches


def _saved_bytes(task: Task, params: Params, client_data: ClientData, batch: int) -> int:
    """Bytes that one training step keeps for its backward pass, measured on a real batch."""
    kept = 0

    def pack(saved: Tensor) -> Tensor:
        nonlocal kept
        kept += saved.nbytes
        return saved

    data = client_data.data(client_data.train.n.argmax()[None])  # the client with most rows
    one = data._replace(rows=data.rows[0], n=data.n[0])
    sample = next(one.batches(batch or len(one.rows), data.n[0]))
    leaf = {k: v.detach().clone().requires_grad_(v.is_floating_point()) for k, v in params.items()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        task.loss({k: leaf[k] if k not in task.buffers else params[k] for k in leaf}, sample)
    return kept


def clients_that_fit(
    task: Task,
    params: Params,
    client_data: ClientData,
    message: Tree,
    state: Tree,
    recipe: Recipe,
    *,
    server: Tree | None = None,
    mapped: bool = True,
) -> int:
    """How many clients fit, from the sizes of model, message, state and one training step.

    Message and state are those of one client. Where messages are made in the call that takes them,
    parts of one that are the `server`'s own tensors lie there once for all clients, each of whom
    makes no more of them than a model. `mapped` says whether steps are mapped as they come; workers
    have caches of their own.
    """
    ours = {id(leaf) for leaf in tree.leaves(server or {})}
    common = sum(leaf.nbytes for leaf in tree.leaves(message) if id(leaf) in ours)
    sent = nbytes(message) - common + min(common, nbytes(params))
    models = MODEL_COPIES * nbytes(params) + 2 * sent + 2 * nbytes(state)
    each = models + 2 * _saved_bytes(task, params, client_data, recipe.batch)
    device = client_data.x.device
    fits = (SHARE * free_memory(device) - common) // each
    if device.type == "cpu" and mapped:
        fits = min(fits, CACHE // (MODEL_COPIES * max(nbytes(params), 1)))
    return int(max(1, fits))
