"""Preprocessing from what the sites tell of their own columns, before the first round."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.core.inputs.plain_text import check_name, printable
from fedtailor.datasets import Encoder
from fedtailor.datasets.encoding.columns import (
    Categorical,
    Column,
    ColumnSums,
    Numeric,
    Target,
    numeric_of_sums,
    pooled_numbers,
)
from fedtailor.datasets.encoding.encoder import FIRST_WORD, Normalisation
from fedtailor.datasets.encoding.fit import TEXT_LENGTH
from fedtailor.datasets.parts import sorted_names
from fedtailor.datasets.wording import listed, quoted
from fedtailor.federation.coordinator.owners import NumberOwners
from fedtailor.federation.protocol.packet import PROTOCOL, SURVEY, Header, Packet
from fedtailor.federation.protocol.survey import SiteSurvey, ToldColumn, read_survey
from fedtailor.federation.protocol.transport import Answer, Rules, Transport

Tell = Callable[[str, str, str], None]  # (who, what happened, more of it)


class Agreed(NamedTuple):
    """What comes of a survey."""

    encoder: Encoder  # for all sites
    lines: list[tuple[str, str]]  # what is to be said of which site, or of `all`


class SurveyedSite(NamedTuple):
    """A site that has told its columns."""

    name: str
    survey: SiteSurvey


# --- asking ---


def ask_sites(
    transport: Transport,
    federation: str,
    sites: int,
    rules: Rules,
    owners: NumberOwners,
    tell: Tell,
) -> dict[int, SurveyedSite]:
    """What the sites tell, by their numbers.

    Waits until all have told or refused, or `rules.wait` is over.

    Raises:
      BadInput: fewer than `rules.min_sites` have told.
    """
    begun, least = time.monotonic(), min(rules.min_sites, sites)
    told: dict[int, SurveyedSite] = {}
    heard: dict[int, str] = {}  # by place: why nothing was told there, or nothing
    header: Header = {
        "protocol": PROTOCOL,
        "version": __version__,
        "federation": federation,
        "kind": SURVEY,
        "plan": "",
        "round": 0,
    }
    while True:
        places = [place for place in transport.places() if place not in heard]
        for answer in transport.ask({p: Packet(header, {}) for p in places}, rules.join):
            who = f"place {answer.place}"
            try:
                packet = _signed(answer, header)
                client, who = packet.number("client"), _name(packet)
                if not 0 <= client < sites:
                    raise BadInput(f"says it is client {client} of {sites}")
                owners.check(client, answer.place)
                if client in told:
                    raise BadInput(f"says it is client {client}, which {told[client].name} is")
                if packet.header.get("status") == "error":
                    said = packet.header
                    raise BadInput(f"{said.get('code', '?')}: {said.get('detail', '')}")
                told[client] = SurveyedSite(who, read_survey(packet.text("text")))
                heard[answer.place] = ""
                tell(who, "told its columns", "")
            except BadInput as error:
                heard[answer.place] = f"{who}: {printable(' '.join(str(error).split()))[:500]}"
                tell(who, "told no columns", heard[answer.place].removeprefix(f"{who}: "))
        waited = time.monotonic() - begun
        if len(heard) >= sites or waited > rules.wait:
            break
        time.sleep(min(1.0, rules.pause))
    if len(told) < least:
        why = "; ".join(filter(None, heard.values())) or "start them, then ask again"
        raise BadInput(f"{len(told)} of {sites} sites told their columns, {least} must: {why}")
    return dict(sorted(told.items()))


def _name(packet: Packet) -> str:
    return check_name(packet.text("name")[:80], "site")


def _signed(answer: Answer, header: Header) -> Packet:
    """The packet of an answer, if it is one to this question."""
    packet = answer.packet
    if packet is None:
        raise BadInput(answer.failure or "no answer")
    for name in ("protocol", "version", "federation", "kind"):
        if (found := packet.header.get(name)) != header[name]:
            if packet.header.get("status") == "error":
                raise BadInput(f"{packet.header.get('detail', '')}")
            raise BadInput(f"another {name}: {found!r}, not {header[name]!r}"[:120])
    return packet


# --- agreeing ---


def agree(told: Sequence[SurveyedSite], normalise: str) -> Agreed:
    """The preprocessing that fits most sites.

    What more than half of them have counts. A site that has it otherwise is named, and cannot join
    until it is mended; a column that fewer have is left out.

    Args:
      told: by the sites, in the order of their numbers: sums are added as a simulation adds them.
      normalise: as for a run.

    Raises:
      BadInput: no more than half of them have the same kind of data.
    """
    chosen: Normalisation = "own" if normalise == "auto" else normalise  # type: ignore[assignment]
    lines: list[tuple[str, str]] = []
    whose = {site.name: f"{s.kind} for {s.task}" for site in told for s in [site.survey]}
    usual = _most(whose, "data", lines)
    told = [site for site in told if whose[site.name] == usual]
    sites = [site.survey for site in told]
    kind, task = sites[0].kind, sites[0].task
    classes = sorted_names(name for site in sites for name in site.classes)
    if task == "classification" and len(classes) < 2:
        raise BadInput(f"all sites together have the classes {listed(classes)}: 2 are needed")
    columns: tuple[Column, ...] = ()
    words: tuple[str, ...] = ()
    levels: tuple[float, float] | None = None
    if kind == "table":
        columns = _columns(told, chosen, lines)
        width = sum(c.width for c in columns)
        if not width:
            raise BadInput("no column is one that more than half of the sites have")
        form = Form("table", (width,), len(classes), task=task)
    elif kind == "text":
        counts = sum((Counter(site.words) for site in sites), Counter[str]())
        words = tuple(sorted(counts, key=lambda word: (-counts[word], word)))
        form = Form("text", (TEXT_LENGTH,), len(classes), FIRST_WORD + len(words), task)
    else:
        sizes = {site.name: " × ".join(map(str, site.survey.shape)) for site in told}
        size = _most(sizes, "images of", lines)
        sites = [site.survey for site in told if sizes[site.name] == size]
        form = Form("image", sites[0].shape, len(classes), task=task)
        deep = [site.levels for site in sites if site.levels is not None]
        levels = (min(low for low, _ in deep), max(high for _, high in deep)) if deep else None
    target = None
    if task == "regression":
        sums = [site.target for site in sites if site.target is not None]
        numbers = pooled_numbers(sums, "the label") if chosen != "none" else (0.0, 1.0)
        target = Target(sites[0].label, *numbers)
    return Agreed(Encoder(form, classes, columns, words, chosen, target, levels=levels), lines)


def _most(whose: Mapping[str, str], what: str, lines: list[tuple[str, str]]) -> str:
    """What more than half of the sites have; who has another is named."""
    usual, count = Counter(whose.values()).most_common(1)[0]
    if 2 * count <= len(whose):
        each = "; ".join(f"{name}: {mine}" for name, mine in whose.items())
        raise BadInput(f"the sites have no {what} in common ({each}): mend some of them")
    for name, mine in whose.items():
        if mine != usual:
            lines.append((name, f"has {what} {mine}, others {usual}: it cannot join as it is"))
    return usual


def _columns(
    told: Sequence[SurveyedSite], normalise: Normalisation, lines: list[tuple[str, str]]
) -> tuple[Column, ...]:
    found: list[Column] = []
    for name in dict.fromkeys(c.name for site in told for c in site.survey.columns):
        mine = {s.name: c for s in told for c in s.survey.columns if c.name == name}
        kinds = Counter(c.kind for c in mine.values() if c.kind != "empty")
        kind, count = kinds.most_common(1)[0] if kinds else ("number", 0)
        if 2 * (count + sum(c.kind == "empty" for c in mine.values())) <= len(told):
            each = ", ".join(f"{site} ({c.kind})" for site, c in mine.items())
            lines.append(("all", f"column {quoted(name)} is left out: no more than {each} have it"))
            continue
        for site in (s.name for s in told):
            if site not in mine:
                line = f"lacks column {quoted(name)} ({kind}), which most have: it cannot join"
                lines.append((site, f"{line} until its table has it"))
            elif mine[site].kind not in (kind, "empty"):
                line = f"has column {quoted(name)} as {mine[site].kind}, most as {kind}"
                lines.append((site, f'{line}: say types = "{name}={kind}" in its site file'))
        of_kind = [c for c in mine.values() if c.kind == kind or c.kind == "empty"]
        column = _column(name, kind == "category", of_kind, normalise)
        if isinstance(column, Categorical) and not column.values:
            few = "no category that enough rows of a site have: it counts for nothing"
            lines.append(("all", f"column {quoted(name)} has {few}"))
        found.append(column)
    return tuple(found)


def _column(
    name: str, categorical: bool, told: Sequence[ToldColumn], normalise: Normalisation
) -> Column:
    if categorical:
        return Categorical(name, tuple(sorted({value for c in told for value in c.values})))
    ways = {c.reads for c in told if c.kind != "empty"}
    # truth values are 0 and 1 elsewhere, and words among numbers may be at one site alone
    reads = next((way for way in ("words", "truth") if way in ways), next(iter(ways), ""))
    gap = Counter(c.gap for c in told).most_common(1)[0][0]
    sums: list[ColumnSums] = [c.sums for c in told]
    if normalise in ("federated", "pooled"):
        return numeric_of_sums(name, sums, reads, gap)
    # each site has numbers of its own; these stand in where it has no value at all
    mean, deviation = pooled_numbers(sums, f"column {quoted(name)}")
    if normalise == "none":
        return Numeric(name, mean, 0.0, 1.0, reads=reads, gap=gap)
    return Numeric(name, mean, mean, deviation, reads=reads, gap=gap)
