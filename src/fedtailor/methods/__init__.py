"""Every method by its name on the command line."""

from fedtailor.methods.client_to_client.apple import apple
from fedtailor.methods.client_to_client.cfl import cfl
from fedtailor.methods.client_to_client.fedamp import fedamp
from fedtailor.methods.client_to_client.fedfomo import fedfomo
from fedtailor.methods.client_to_client.fedfomo_ma import fedfomo_ma
from fedtailor.methods.client_to_client.heurfedamp import heurfedamp
from fedtailor.methods.client_to_client.pfedgraph import pfedgraph
from fedtailor.methods.client_to_client.pfedsim import pfedsim
from fedtailor.methods.describe import Factory
from fedtailor.methods.distillation.feddistill import feddistill
from fedtailor.methods.distillation.fedgen import fedgen
from fedtailor.methods.distillation.fedkd import fedkd
from fedtailor.methods.distillation.fml import fml
from fedtailor.methods.hypernetworks.heurpfedla import heurpfedla
from fedtailor.methods.hypernetworks.pfedhn import pfedhn
from fedtailor.methods.hypernetworks.pfedla import pfedla
from fedtailor.methods.hypernetworks.plgu_ghn import plgu_ghn
from fedtailor.methods.local import local
from fedtailor.methods.meta_learning.perfedavg_fo import perfedavg_fo
from fedtailor.methods.meta_learning.perfedavg_hf import perfedavg_hf
from fedtailor.methods.mixture.apfl import apfl
from fedtailor.methods.mixture.fedala import fedala
from fedtailor.methods.mixture.knn_per import knn_per
from fedtailor.methods.mixture.pmixfed import pmixfed
from fedtailor.methods.one_model.centralised import centralised
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.one_model.fedavg_c import fedavg_c
from fedtailor.methods.one_model.fedavg_data import fedavg_data
from fedtailor.methods.one_model.feddyn import feddyn
from fedtailor.methods.one_model.fednova import fednova
from fedtailor.methods.one_model.fedprox import fedprox
from fedtailor.methods.one_model.fedprox_c import fedprox_c
from fedtailor.methods.one_model.fedsam import fedsam
from fedtailor.methods.one_model.moon import moon
from fedtailor.methods.one_model.qfedavg import qfedavg
from fedtailor.methods.one_model.scaffold import scaffold
from fedtailor.methods.one_model.term import term
from fedtailor.methods.partial_sharing.fedalt import fedalt
from fedtailor.methods.partial_sharing.fedas import fedas
from fedtailor.methods.partial_sharing.fedbabu import fedbabu
from fedtailor.methods.partial_sharing.fedbn import fedbn
from fedtailor.methods.partial_sharing.fedcp import fedcp
from fedtailor.methods.partial_sharing.feddbe import feddbe
from fedtailor.methods.partial_sharing.fedper import fedper
from fedtailor.methods.partial_sharing.fedrep import fedrep
from fedtailor.methods.partial_sharing.fedrod import fedrod
from fedtailor.methods.partial_sharing.fedselect import fedselect
from fedtailor.methods.partial_sharing.fedsim import fedsim
from fedtailor.methods.partial_sharing.gpfl import gpfl
from fedtailor.methods.partial_sharing.lg_fedavg import lg_fedavg
from fedtailor.methods.partial_sharing.partialfed import partialfed
from fedtailor.methods.partial_sharing.plgu_grep import plgu_grep
from fedtailor.methods.prototypes.fedgh import fedgh
from fedtailor.methods.prototypes.fedpac import fedpac
from fedtailor.methods.prototypes.fedproto import fedproto
from fedtailor.methods.prototypes.fedtgp import fedtgp
from fedtailor.methods.regularised.ditto import ditto
from fedtailor.methods.regularised.fedphp import fedphp
from fedtailor.methods.regularised.mocha import mocha
from fedtailor.methods.regularised.pfedme import pfedme
from fedtailor.methods.regularised.plgu_lf import plgu_lf

# What a method does about personal models, and the methods that do it so.
KINDS: dict[str, dict[str, Factory]] = {
    "alone": {"local": local},
    "global": {
        "fedavg": fedavg,
        "fedprox": fedprox,
        "fedsam": fedsam,
        "scaffold": scaffold,
        "fednova": fednova,
        "feddyn": feddyn,
        "moon": moon,
        "qfedavg": qfedavg,
        "term": term,
        "fedavg-data": fedavg_data,
        "centralised": centralised,
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
        "fedrod": fedrod,
        "feddbe": feddbe,
        "gpfl": gpfl,
        "fedcp": fedcp,
        "fedas": fedas,
        "plgu-grep": plgu_grep,
        "partialfed": partialfed,
        "fedselect": fedselect,
    },
    "prototypes": {
        "fedproto": fedproto,
        "fedpac": fedpac,
        "fedgh": fedgh,
        "fedtgp": fedtgp,
    },
    "mixture": {"fedala": fedala, "pmixfed": pmixfed, "apfl": apfl, "knn-per": knn_per},
    "distillation": {
        "fml": fml,
        "fedkd": fedkd,
        "feddistill": feddistill,
        "fedgen": fedgen,
    },
    "client-to-client": {
        "fedfomo": fedfomo,
        "fedfomo-ma": fedfomo_ma,
        "fedamp": fedamp,
        "heurfedamp": heurfedamp,
        "apple": apple,
        "pfedgraph": pfedgraph,
        "pfedsim": pfedsim,
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
