"""Every method by its name on the command line."""

from collections.abc import Callable

from ..method import Method
from .ditto import ditto
from .fedala import fedala
from .fedavg import fedavg
from .fedfomo import fedfomo
from .fedprox import fedprox
from .fedrep import fedrep
from .local import local
from .pfedhn import pfedhn

Factory = Callable[..., Method]

METHODS: dict[str, Factory] = {
    "local": local,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "ditto": ditto,
    "fedrep": fedrep,
    "fedala": fedala,
    "fedfomo": fedfomo,
    "pfedhn": pfedhn,
}

__all__ = ["METHODS", "Factory", *METHODS]
