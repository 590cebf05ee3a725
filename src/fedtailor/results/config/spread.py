"""Which of several methods gets which option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtailor.core.errors import unknown
from fedtailor.methods.describe import page
from fedtailor.methods.find import find
from fedtailor.results.objects import Objects


def spread_options(
    methods: Sequence[str], given: dict[str, Any], objects: dict[str, Objects] | None = None
) -> dict[str, dict[str, Any]]:
    """Which method gets which option.

    `name=value` goes to all that have it, `method.name=value` to one.
    """
    made = {m: own.factory() for m, own in (objects or {}).items()}
    known = {m: {o.name for o in page(made.get(m) or find(m)).options} for m in methods}
    out: dict[str, dict[str, Any]] = {m: {} for m in methods}
    # what is said for one method goes before what is said for all
    for name, value in sorted(given.items(), key=lambda item: "." in item[0]):
        method, dot, short = name.rpartition(".")
        if dot and method not in known:
            raise unknown("method in option", method, methods)
        takers = [method] if dot else [m for m in methods if short in known[m]]
        if not takers or short not in known[takers[0]]:
            raise unknown("option", short, sorted({o for m in takers or methods for o in known[m]}))
        for taker in takers:
            out[taker][short] = value
    return out
