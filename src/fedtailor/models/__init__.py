"""Networks, by name or as objects.

Every named network's top-level children are its coarse blocks in the order of use, the last of them
the linear layer `fc`. All run under `torch.func.functional_call`, `grad` and `vmap`.
"""

from fedtailor.models.named import MODELS, build
from fedtailor.models.objects import network_of
from fedtailor.models.weights import digest_of, freeze, globs_of, load_weights

__all__ = [
    "MODELS",
    "build",
    "digest_of",
    "freeze",
    "globs_of",
    "load_weights",
    "network_of",
]
