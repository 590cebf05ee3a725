"""The conformance suite on variants of methods: options that change what is sent, kept or learnt.

Those that differ most run by default; the others with --slow.
"""

from typing import Any

import pytest

from fedtailor.methods.check import check_method
from fedtailor.methods.find import find

NET = {"hidden": 8, "embed": 4, "depth": 1}  # hypernetworks as small as the toy federation


def _slow(*case: Any) -> Any:
    return pytest.param(*case, marks=pytest.mark.slow)


VARIANTS = [
    ("pmixfed", {"mix_policy": "sigmoid"}),
    _slow("pmixfed", {"mix_policy": "dynamic"}),
    _slow("pmixfed", {"mix_policy": "gradual"}),
    _slow("pmixfed", {"mix_policy": "random"}),
    _slow("pmixfed", {"mix_policy": "random_adaptive"}),
    _slow("fedalt", {}),
    _slow("fedalt", {"stateless": True}),
    _slow("fedsim", {}),
    _slow("fedalt+mix", {}),
    ("fedsim+mix", {}),
    _slow("fedsim+mix", {"stateless": True}),
    _slow("plgu-lf", {"D": 1}),
    _slow("plgu-lf", {"D": 1, "eval_point": "w"}),
    _slow("plgu-grep", {"head_epochs": 2}),
    ("plgu-grep", {"head_epochs": 2, "reuse_grad": True}),
    _slow("plgu-ghn", {"hidden": 8, "depth": 1}),
    _slow("pfedla", {"normalisation": "softmax", **NET}),
    ("pfedla", {"normalisation": "relu_norm", **NET}),
    _slow("heurpfedla", NET),
    ("fedfomo", {"extra_candidates": True, "federations": 2}),
    _slow("fedfomo-ma", {}),
    _slow("fedavg+ala", {}),
    _slow("fedprox+ala", {}),
    _slow("ditto+ala", {}),
    _slow("fedrep+ala", {}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_conforms(name: str, options: dict[str, Any]) -> None:
    broken = [f for f in check_method(find(name), **options) if not f.passed]
    assert not broken, "\n".join(f"{f.check}: {f.detail}" for f in broken)
