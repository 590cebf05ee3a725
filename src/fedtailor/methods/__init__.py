"""Every method by its name on the command line."""

from collections.abc import Callable

from ..method import Method
from .ditto import ditto
from .fedala import fedala
from .fedalt import fedalt
from .fedavg import fedavg
from .fedfomo import fedfomo
from .fedfomo_ma import fedfomo_ma
from .fedprox import fedprox
from .fedrep import fedrep
from .fedsim import fedsim
from .heurpfedla import heurpfedla
from .local import local
from .pfedhn import pfedhn
from .pfedla import pfedla
from .plgu_ghn import plgu_ghn
from .plgu_grep import plgu_grep
from .plgu_lf import plgu_lf
from .pmixfed import pmixfed

Factory = Callable[..., Method]

METHODS: dict[str, Factory] = {
    "local": local,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "ditto": ditto,
    "fedrep": fedrep,
    "fedala": fedala,
    "fedfomo": fedfomo,
    "fedfomo-ma": fedfomo_ma,
    "pfedhn": pfedhn,
    "pmixfed": pmixfed,
    "fedalt": fedalt,
    "fedsim": fedsim,
    "pfedla": pfedla,
    "heurpfedla": heurpfedla,
    "plgu-lf": plgu_lf,
    "plgu-grep": plgu_grep,
    "plgu-ghn": plgu_ghn,
}

__all__ = ["METHODS", "Factory", *(factory.__name__ for factory in METHODS.values())]
