"""Every method by its name on the command line."""

from collections.abc import Callable

from ..method import Method
from .apfl import apfl
from .apple import apple
from .cfl import cfl
from .ditto import ditto
from .fedala import fedala
from .fedalt import fedalt
from .fedamp import fedamp
from .fedavg import fedavg
from .fedavg_c import fedavg_c
from .fedavg_data import fedavg_data
from .fedbabu import fedbabu
from .fedbn import fedbn
from .fedfomo import fedfomo
from .fedfomo_ma import fedfomo_ma
from .fedper import fedper
from .fedphp import fedphp
from .fedprox import fedprox
from .fedprox_c import fedprox_c
from .fedrep import fedrep
from .fedsam import fedsam
from .fedsim import fedsim
from .heurfedamp import heurfedamp
from .heurpfedla import heurpfedla
from .lg_fedavg import lg_fedavg
from .local import local
from .mocha import mocha
from .partialfed import partialfed
from .perfedavg_fo import perfedavg_fo
from .perfedavg_hf import perfedavg_hf
from .pfedhn import pfedhn
from .pfedla import pfedla
from .pfedme import pfedme
from .plgu_ghn import plgu_ghn
from .plgu_grep import plgu_grep
from .plgu_lf import plgu_lf
from .pmixfed import pmixfed
from .scaffold import scaffold

Factory = Callable[..., Method]

# What a method does about personal models, and the methods that do it so.
KINDS: dict[str, dict[str, Factory]] = {
    "alone": {"local": local},
    "global": {
        "fedavg": fedavg,
        "fedprox": fedprox,
        "fedsam": fedsam,
        "scaffold": scaffold,
        "fedavg-data": fedavg_data,
    },
    "fine-tuning": {"fedavg-c": fedavg_c, "fedprox-c": fedprox_c},
    "regularised": {
        "ditto": ditto,
        "pfedme": pfedme,
        "mocha": mocha,
        "fedphp": fedphp,
        "plgu-lf": plgu_lf,
    },
    "partial sharing": {
        "fedper": fedper,
        "fedrep": fedrep,
        "fedbabu": fedbabu,
        "lg-fedavg": lg_fedavg,
        "fedalt": fedalt,
        "fedsim": fedsim,
        "fedbn": fedbn,
        "plgu-grep": plgu_grep,
        "partialfed": partialfed,
    },
    "mixture": {"fedala": fedala, "pmixfed": pmixfed, "apfl": apfl},
    "client-to-client": {
        "fedfomo": fedfomo,
        "fedfomo-ma": fedfomo_ma,
        "fedamp": fedamp,
        "heurfedamp": heurfedamp,
        "apple": apple,
    },
    "hypernetwork": {
        "pfedhn": pfedhn,
        "pfedla": pfedla,
        "heurpfedla": heurpfedla,
        "plgu-ghn": plgu_ghn,
    },
    "clustering": {"cfl": cfl},
    "meta-learning": {"perfedavg-fo": perfedavg_fo, "perfedavg-hf": perfedavg_hf},
}

METHODS: dict[str, Factory] = {
    name: factory for methods in KINDS.values() for name, factory in methods.items()
}

__all__ = ["KINDS", "METHODS", "Factory", *(factory.__name__ for factory in METHODS.values())]
