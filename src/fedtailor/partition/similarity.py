"""Clients whose likeness is designed, to see whether a method finds out who resembles whom."""

from __future__ import annotations

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.partition.dealing import checked, choose_classes, deal_equally
from fedtailor.partition.draws import Array, Rows, draws


def ring(
    labels: Array, clients: int, classes_per_client: int = 4, rows: int = 0, *, seed: int
) -> list[Rows]:
    """Neighbours share all classes but one: client i has the i-th class and those that follow.

    The classes are put in a random circle, so that the last clients may meet the first ones. All
    clients have the same amount of each of their classes, as in `noniid1`.

    Example:
      >>> labels = np.arange(40) % 4
      >>> [np.unique(labels[rows]).tolist() for rows in ring(labels, 4, 2, seed=0)]
      [[0, 2], [0, 3], [1, 3], [1, 2]]
    """
    labels = checked(labels, clients)
    classes = np.unique(labels).size
    if not 1 <= classes_per_client < classes:
        raise BadInput(
            f"{classes_per_client} classes per client, but the data have {classes}: choose a "
            f"number from 1 to {classes - 1}, so that neighbours differ"
        )
    rng = draws(seed, "ring")
    circle = rng.permutation(classes)
    holds = np.zeros((clients, classes), bool)
    for client in range(clients):
        holds[client, circle[(client + np.arange(classes_per_client)) % classes]] = True
    return deal_equally(labels, holds, rng, rows)


def relatives(
    labels: Array, clients: int, classes_per_client: int = 4, rows: int = 0, *, seed: int
) -> list[Rows]:
    """Client 0 has a twin and a cousin among strangers.

    Client 1 has the classes of client 0, client 2 all of them but one, and the others only classes
    that client 0 has not. All clients have the same amount of each of their classes, as in
    `noniid1`.

    Example:
      >>> labels = np.arange(40) % 4
      >>> [np.unique(labels[rows]).tolist() for rows in relatives(labels, 4, 2, seed=0)]
      [[0, 2], [0, 2], [0, 3], [1, 3]]
    """
    labels = checked(labels, clients)
    classes = np.unique(labels).size
    if clients < 4:
        raise BadInput(f"{clients} clients, but client 0, twin, cousin and a stranger make 4")
    if not 2 <= classes_per_client <= classes // 2:
        raise BadInput(
            f"{classes_per_client} classes per client, but strangers need as many others and the "
            f"data have {classes}: choose a number from 2 to {classes // 2}"
        )
    rng = draws(seed, "relatives")
    own, others = np.split(rng.permutation(classes), [classes_per_client])
    holds = np.zeros((clients, classes), bool)
    holds[:2, own] = True
    holds[2, own[1:]] = True
    holds[2, others[0]] = True
    holds[3:, others] = choose_classes(others.size, clients - 3, classes_per_client, rng)
    return deal_equally(labels, holds, rng, rows)
