"""What FedTailor is built on: bounded above, and free to use.

Known weaknesses are asked for with `make audit`, which needs the registry's advisories.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FREE = re.compile(
    r"apache|bsd|mit\b|mit-|mpl[- ]2|mozilla public license 2|psf|python software foundation|isc|"
    r"hpnd|zlib|cc0|bsl-1|unlicense|public domain",
    re.IGNORECASE,
)
NOT_FREE = re.compile(r"\b[al]?gpl|affero|gnu general|sspl|busl|commons clause|proprietary", re.I)


@pytest.mark.parametrize("text", [*PROJECT["dependencies"], *chain(*EXTRAS.values())])
def test_nothing_is_taken_in_any_version(text: str) -> None:
    """A release that does not exist yet cannot break, or enter, an installation of today."""
    wanted = Requirement(text)
    if wanted.name == PROJECT["name"]:
        return
    assert any(bound.operator in ("<", "==") for bound in wanted.specifier), text


def needed(requirements: list[str]) -> Iterator[metadata.Distribution]:
    """What is installed for these requirements, with all that it needs itself."""
    todo, seen = [Requirement(r) for r in requirements], set()
    while todo:
        wanted = todo.pop()
        if wanted.name in seen:
            continue
        seen.add(wanted.name)
        try:
            found = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed here
        yield found
        extras = ["", *wanted.extras]
        for text in found.requires or []:
            below = Requirement(text)
            if not below.marker or any(below.marker.evaluate({"extra": e}) for e in extras):
                todo.append(below)


def licence(found: metadata.Distribution) -> str:
    """What a package says of its licence; the first line of a whole text."""
    said = found.metadata
    classes = [c for c in said.get_all("Classifier") or [] if c.startswith("License")]
    text = said.get("License-Expression") or " ".join(classes) or said.get("License") or ""
    return text.strip().partition("\n")[0]


def test_everything_it_needs_is_free_to_use() -> None:
    used = [EXTRAS[name] for name in ("flower", "ray", "privacy", "frames", "hub", "track", "tune")]
    said = {d.name: licence(d) for d in needed([*PROJECT["dependencies"], *chain(*used)])}
    assert len(said) > 10
    wrong = {n: t for n, t in said.items() if not FREE.search(t) or NOT_FREE.search(t)}
    assert wrong == {}


@pytest.mark.parametrize("text", ["GPL-3.0-or-later", "AGPL-3.0", "LGPLv3", "SSPL-1.0"])
def test_what_is_not_free_would_be_found(text: str) -> None:
    assert NOT_FREE.search(text)
