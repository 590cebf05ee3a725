"""A federation's plan, held against a site's limits before it takes part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fedtailor.federation.protocol.plan import Setup, TrainingPlan
from fedtailor.federation.site.limits import SiteLimits
from fedtailor.methods.combine import built_in
from fedtailor.models import MODELS


class PlanCheck(NamedTuple):
    """A limit, held against a plan."""

    code: str  # of a refusal, in a word
    plan: str  # what the plan says
    limit: str  # what the site says
    cure: str  # empty if the plan keeps within it

    @property
    def line(self) -> str:
        """A refusal: the plan's value, the limit, and what to do."""
        return f"the plan has {self.plan}, the site {self.limit}: {self.cure}"


def rows_per_upload(plan: TrainingPlan, rows: int) -> int:
    """Training rows that an upload rests on, if a site has so many.

    A method's own `..._steps` count like `steps`: it may train a part for fewer.
    """
    said = plan.settings
    own = [v for k, v in plan.options.items() if k.endswith("_steps") and isinstance(v, int)]
    steps = [s for s in (int(said["steps"]), *own) if s > 0]
    batch = int(said["batch"]) or rows
    return min(rows, batch * min(steps)) if steps else rows


def rows_of_rarest_class(setup: Setup, mix: Mapping[str, int]) -> int | None:
    """The fewest training rows that a class's own mean in an upload rests on; None if it has none.

    Args:
      setup: the plan, brought to life.
      mix: the site's training rows of each class that it has.
    """
    by_class, fewest, rows = setup.method.by_class, min(mix.values(), default=0), sum(mix.values())
    # the rows that steps left out may all be of that class
    left_out = rows - rows_per_upload(setup.plan, rows) if by_class == "steps" else 0
    return max(1, fewest - left_out) if by_class else None


def check_plan(
    limits: SiteLimits,
    plan: TrainingPlan,
    rows: int | None = None,
    client: int = 0,
    of_class: int | None = None,
) -> list[PlanCheck]:
    """A plan held against a site's limits.

    Args:
      limits: of the site.
      plan: of the federation.
      rows: the site's training rows, if they are known.
      client: the site's number.
      of_class: the fewest rows that a class's own mean rests on, see `rows_of_rarest_class`.
    """
    return list(_checks(limits, plan, rows, client, of_class))


def _checks(
    limits: SiteLimits, plan: TrainingPlan, rows: int | None, client: int, of_class: int | None
) -> Iterator[PlanCheck]:
    def check(good: bool, code: str, said: str, limit: str, cure: str) -> PlanCheck:
        return PlanCheck(code, said, limit, "" if good else cure)

    method, own = plan.method, plan.network_of(client)
    models = dict.fromkeys([str(plan.settings["model"]), *(name for name, _ in plan.models())])
    allowed = limits.allow
    good = built_in(method) if allowed is None else method in allowed
    listed = "those that come with FedTailor" if allowed is None else ", ".join(allowed) or "none"
    yield check(
        good, "method", f"method '{method}'", f"allow: {listed}",
        "name it in `allow` of the site's file, if its owner agrees",
    )  # fmt: skip
    more = "".join(f", {name}" for name in limits.allow_models)
    for model in models:
        yield check(
            model in MODELS or model in limits.allow_models, "model", f"model '{model}'",
            f"those that come with FedTailor{more}",
            "name it in `allow_models` of the site's file, if its owner agrees",
        )  # fmt: skip
    if limits.model:
        yield check(
            own == limits.model, "network", f"network '{own}' for site {client}",
            f"model = '{limits.model}'",
            "set models in federation.toml, or model in the site's file",
        )  # fmt: skip
    batch = int(plan.settings["batch"])
    yield check(
        batch == 0 or batch >= limits.min_batch, "batch", f"batch = {batch}",
        f"min_batch = {limits.min_batch}",
        "raise batch in federation.toml, or lower min_batch in the site's file",
    )  # fmt: skip
    touched = rows_per_upload(plan, 10**9 if rows is None else rows)
    few = "all rows" if touched >= 10**9 else f"{touched} rows"
    yield check(
        touched >= limits.min_rows, "rows", f"uploads of {few}", f"min_rows = {limits.min_rows}",
        "raise steps or batch in federation.toml, or lower min_rows in the site's file",
    )  # fmt: skip
    if of_class is not None:
        few = ", one of fewer rows" if of_class < limits.min_rows else ""
        yield check(
            of_class >= limits.min_rows, "rows",  # how many they are is not told
            f"a mean for each class{few}", f"min_rows = {limits.min_rows}",
            "set another method in federation.toml, gather more rows of that class, or lower "
            "min_rows in the site's file",
        )  # fmt: skip
    noise = float(plan.settings["dp_noise"]) if plan.settings["dp_clip"] else 0.0
    yield check(
        noise >= limits.min_noise, "privacy", f"dp_noise = {noise:g}",
        f"min_noise = {limits.min_noise:g}",
        "raise dp_noise in federation.toml, or lower min_noise in the site's file",
    )  # fmt: skip
    if limits.max_epsilon:
        yield check(
            noise > 0, "privacy", "no noise" if not noise else f"dp_noise = {noise:g}",
            f"max_epsilon = {limits.max_epsilon:g}",
            "set dp_clip and dp_noise in federation.toml, or max_epsilon = 0 in the site's file",
        )  # fmt: skip
        if rows:  # with a chance of one in so many rows, one of them might be told as it is
            delta = float(plan.settings["dp_delta"])
            yield check(
                delta * rows < 1, "privacy", f"dp_delta = {delta:g}",
                f"max_epsilon = {limits.max_epsilon:g} and {rows} training rows",
                f"set dp_delta below {1 / rows:.1g} in federation.toml, or max_epsilon = 0 in the "
                "site's file",
            )  # fmt: skip
    most = limits.max_rounds
    if most:
        # a warning to whoever reads it, not a refusal: the first rounds are within it
        yield check(True, "round", f"rounds = {plan.rounds}", f"max_rounds = {most}", "")
