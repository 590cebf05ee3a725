"""A plan as a site's owner sees it: what would leave, what could be learnt, and agreeing to it."""

from __future__ import annotations

from math import ceil, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.core.steps.privacy import Spent, epsilon
from fedtailor.federation.protocol.disclosure import Disclosure, disclosure_of
from fedtailor.federation.protocol.messages import like_of, message_bytes
from fedtailor.federation.protocol.packet import checked_id
from fedtailor.federation.protocol.plan import Setup, TrainingPlan, read_plan, set_up
from fedtailor.federation.site.guard import PROPOSED, Guard, plan_mark
from fedtailor.federation.site.limits import SiteLimits
from fedtailor.federation.site.local_data import load_local_data
from fedtailor.federation.site.plan_check import (
    PlanCheck,
    check_plan,
    rows_of_rarest_class,
    rows_per_upload,
)
from fedtailor.federation.site.settings import SiteSettings
from fedtailor.federation.site.state import FEDERATIONS, PLAN

_CODE = ("method", "model")  # what may be code from elsewhere, which is not run to be looked at


class PlanReport(NamedTuple):
    """What a plan asks of a site."""

    plan: TrainingPlan
    checks: list[PlanCheck]  # the site's limits, or the usual ones
    leaves: Disclosure | None = None  # None: it is code from elsewhere
    down: int = 0  # bytes of a message to the site, without parts that are sent at times
    rows: int | None = None  # training rows; None: not known
    per_upload: int | None = None  # of these, those that an upload rests on
    epsilon: float | None = None  # after all rounds, at least; None: no guarantee
    trouble: str = ""  # why its rows are not known

    @property
    def refused(self) -> bool:
        """Whether the site would refuse it."""
        return any(check.cure for check in self.checks)

    @property
    def uploads(self) -> int:
        """How often the site uploads, about: in its share of the rounds."""
        return ceil(self.plan.rounds * float(self.plan.settings["participation"]))

    def to_json(self) -> dict[str, Any]:
        """The same in plain numbers and words."""
        leaves = self.leaves
        return {
            "plan": self.plan.fingerprint(),
            "method": self.plan.method,
            "model": self.plan.settings["model"],
            "models": self.plan.settings["models"],
            "uploads": self.uploads,
            "arrays": [a._asdict() for a in leaves.arrays] if leaves else None,
            "bytes": {"up": leaves.bytes, "down": self.down} if leaves else None,
            "server_needs": leaves.needs if leaves else None,
            "others_receive": leaves.reach if leaves else None,
            "rows": self.rows,
            "rows_per_upload": self.per_upload,
            "epsilon": self.epsilon,
            "limits": [check._asdict() for check in self.checks],
            "refused": self.refused,
        }


def _plan_epsilon(setup: Setup, rows: int, uploads: int) -> float | None:
    """ε after so many uploads with one noisy gradient per batch; a method may take more."""
    config = setup.config
    if not (config.dp_clip and config.dp_noise):
        return None
    batches = uploads * config.recipe().count(rows)
    rate = min(1.0, (config.batch or rows) / rows)
    found = epsilon(Spent(batches, 1, rate), config.dp_noise, config.dp_delta)
    return found if isfinite(found) else None


def inspect_plan(plan: TrainingPlan, site: SiteSettings | None = None) -> PlanReport:
    """What a plan asks of a site, whose rows are counted; without one, of any with usual limits."""
    limits, client = site or SiteLimits(), site.client if site else 0
    checks = check_plan(limits, plan, client=client)
    if any(check.cure and check.code in _CODE for check in checks):
        return PlanReport(plan, checks)
    setup = set_up(plan).of(client)
    down = message_bytes(like_of(plan.message_to(client)))
    report = PlanReport(plan, checks, disclosure_of(setup), down)
    if site is None:
        return report
    try:
        local = load_local_data(site, setup.encoder)
    except BadInput as error:
        return report._replace(trouble=str(error))
    rows = int(local.data.n)
    return report._replace(
        checks=check_plan(limits, plan, rows, client, rows_of_rarest_class(setup, local.mix)),
        rows=rows,
        per_upload=rows_per_upload(plan, rows),
        epsilon=_plan_epsilon(setup, rows, report.uploads),
    )


def differences(old: TrainingPlan, new: TrainingPlan) -> list[str]:
    """What another plan has otherwise, a line each."""

    def flat(plan: TrainingPlan) -> dict[str, Any]:
        tables = {**plan.options, **plan.settings}
        whole = {"method": plan.method, "sites": plan.clients, "dtype": plan.dtype}
        return (
            whole
            | tables
            | {"preprocessing": plan.encoder, "messages": [plan.message, plan.messages]}
        )

    one, two = flat(old), flat(new)
    found = []
    for name in dict.fromkeys([*one, *two]):
        was, now = one.get(name), two.get(name)
        if was != now:
            words = isinstance(was, (dict, list)) or isinstance(now, (dict, list))
            found.append(f"{name} is another" if words else f"{name}: {was} → {now}")
    return found


class Accepted(NamedTuple):
    """A plan that a site's owner has agreed to."""

    federation: str
    plan: TrainingPlan
    changes: list[str]  # against the one that was agreed to before, as far as it is known
    aside: Path | None  # where the state of that one lies now


def read_proposed(path: Path) -> tuple[str, TrainingPlan]:
    """A federation's id and the plan that its coordinator would like, as a site kept them."""
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        return checked_id(str(found["federation"])), read_plan(str(found["plan"]))
    except FileNotFoundError:
        raise BadInput(f"'{path}' does not exist: no plan waits to be accepted") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"'{path}' cannot be read ({error}): let the site join again") from None


def accept_plan(site: SiteSettings) -> Accepted:
    """Agrees to the plan that the site has refused last; the state of another one is put aside."""
    path = site.folder / PROPOSED
    federation, plan = read_proposed(path)
    folder, guard = site.folder / FEDERATIONS / federation, Guard(site)
    guard.answers.refresh()
    pinned = guard.answers.pinned.get(federation)
    changes: list[str] = []
    aside = None
    if (folder / PLAN).exists():
        changes = differences(read_plan((folder / PLAN).read_text(encoding="utf-8")), plan)
    if pinned and pinned != plan_mark(plan.fingerprint()) and folder.exists():
        aside = folder.with_name(f"{federation}.{pinned[:8]}")
        if aside.exists():
            raise BadInput(f"'{aside}' exists: move it away, then accept again")
        folder.replace(aside)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PLAN, plan.text(), durable=True)
    guard.pin(federation, plan.fingerprint())
    path.unlink()
    assert guard.answers.pinned[federation] == plan_mark(plan.fingerprint())
    return Accepted(federation, plan, changes, aside)
