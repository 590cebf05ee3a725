"""The audit of a run: its parts one after the other, kept in the run's folder as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedtailor.analysis.audit.asked import (
    measure_membership,
    membership_work,
    refused_membership,
)
from fedtailor.analysis.audit.attacks import AttackPlan
from fedtailor.analysis.audit.inversion import (
    Inversion,
    chosen_clients,
    inversion_cases,
    invert,
    nothing_to_invert,
)
from fedtailor.analysis.audit.opened import ROUNDS, AuditedRun, Protection
from fedtailor.analysis.audit.page import MODELS, audit_page
from fedtailor.core import __version__
from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.files import write_atomically, write_json
from fedtailor.datasets.wording import listed
from fedtailor.results.folder import AUDIT, AUDIT_PAGE
from fedtailor.results.objects import AGAIN, separate

Tell = Callable[[str, int, int], None]  # (what, done, in all)


def protections_of(
    own: Protection, clip: float | None = None, noise: float | None = None
) -> list[Protection]:
    """What an upload is looked at with: as in the run, and the other way for comparison.

    Example:
      >>> [p.words for p in protections_of(Protection(), noise=2.0)]
      ['none', 'DP-SGD, clip 1, noise 2']
      >>> [p.words for p in protections_of(Protection(1.0, 0.5))]
      ['DP-SGD, clip 1, noise 0.5', 'none']
    """
    for name, value in (("dp-clip", clip), ("dp-noise", noise)):
        if value is not None and not 0 <= value < float("inf"):
            raise BadInput(f"{name} is {value:g}: give 0 or more")
    other = Protection()
    if clip is not None or noise is not None:
        other = Protection(1.0 if clip is None else clip, noise or 0.0)
    if not other.clip:
        other = Protection()
    return list(dict.fromkeys([own, other]))


def audit(
    folder: str | Path,
    *,
    clients: Sequence[str] = (),
    rows: int = 4,
    attack: str = "idlg",
    steps: int = 0,
    restarts: int = 1,
    tv: float = 0.1,
    labels: str = "known",
    round: str = "first",
    dp_clip: float | None = None,
    dp_noise: float | None = None,
    seed: int = 0,
    device: str = "auto",
    tell: Tell = lambda what, done, all: None,
    method: Any = None,
    **objects: Any,
) -> dict[str, Any]:
    """Measures what a finished run gives away; writes `audit.json` and `audit.html` beside it.

    Rows are rebuilt from what clients upload, and it is asked of every kind of model which rows it
    was trained on.

    Args:
      folder: of the run.
      clients: whose uploads are attacked; else the three with fewest training rows.
      rows: of each client that the upload is made of; 0: all, as in the run.
      attack: `idlg`, `geiping` or `analytic`.
      steps: of one attempt; 0 takes the attack's usual number.
      restarts: attempts from other beginnings; the one that fits best counts.
      tv: how much `geiping` wants neighbouring pixels to be alike.
      labels: `known` to the attacker, or `guessed` from the upload.
      round: `first`, or `last`: one more after the last.
      dp_clip, dp_noise: compare with an upload that has this DP-SGD.
      seed: of the attacks' beginnings and of the bootstrap.
      device: where to compute.
      tell: called with (method, steps done, steps in all).
      method: again, if the run was given it as a Python object.
      objects: the same for `data`, `model` and others, as for `resume`.

    Returns:
      What `audit.json` has: `inversion`, `membership`, `notes`.

    Raises:
      BadInput: the run cannot be audited so; nothing is written.

    Example:
      >>> import fedtailor
      >>> from tempfile import TemporaryDirectory
      >>> with TemporaryDirectory() as place:
      ...     done = fedtailor.run("fedavg", model="linear", clients=3, rounds=1, out=place)
      ...     found = audit(place, clients=["client-1"], rows=1, attack="analytic")
      >>> found["inversion"][0]["psnr"]["recovered"] > 60, found["membership"][0]["model"]
      (True, 'personal')
    """
    asked = Inversion(tuple(clients), rows, labels, AttackPlan(attack, steps, restarts, tv, seed))
    asked.check()
    if round not in ROUNDS:
        raise unknown("round", round, ROUNDS)
    for name in objects:
        if name not in AGAIN:
            raise unknown("object of a run", name, AGAIN)
    given = separate("local" if method is None else method, objects)[2]
    run = AuditedRun(Path(folder), given, device, round)
    try:
        return _write(run, asked, protections_of(run.own, dp_clip, dp_noise), tell)
    finally:
        run.close()


def _write(
    run: AuditedRun, asked: Inversion, protections: list[Protection], tell: Tell
) -> dict[str, Any]:
    begun = time.monotonic()
    clients = chosen_clients(run, asked.clients)
    for protection in protections:  # what the method refuses is told before anything is computed
        run.player(clients[0], protection)
    none, refused = nothing_to_invert(run), refused_membership(run)
    cases = [] if none else inversion_cases(run, clients, protections)
    plan = asked.plan
    every = len(cases) * plan.work + membership_work(run, protections)
    done = 0

    def add(steps: int) -> None:
        nonlocal done
        done += steps
        tell(run.config.method, done, every)

    form = run.prepared.data.encoder.form
    found: dict[str, Any] = {
        "version": __version__,
        "method": run.config.method,
        "data": run.config.data,
        "model": run.config.model,
        "task": form.task,
        "kind": form.kind,
        "round": run.at,
        "attack": "" if form.kind == "text" else plan.attack,
        "steps": plan.length,
        "restarts": plan.restarts,
        "tv": plan.tv,
        "seed": plan.seed,
        "delta": run.config.dp_delta,
        "inversion": [],
        "membership": [],
        "notes": [f"Inversion: {none}."] * bool(none) + [f"Membership: {refused}."] * bool(refused),
        "finished": False,
    }
    try:
        for case in invert(run, cases, asked, add):
            found["inversion"].append(case)
        if not refused:
            for told in measure_membership(run, protections, plan.seed, add):
                found["membership"].append(told)
        found["finished"] = True
    except KeyboardInterrupt:
        found["notes"].append("Stopped before the end: some attacks were not made.")
        raise
    finally:
        if found["finished"] or found["inversion"] or found["membership"]:
            found["notes"] += _notes(found, run)
            found["seconds"] = round(time.monotonic() - begun, 1)
            keep(run.folder, found)
    return found


def _notes(found: dict[str, Any], run: AuditedRun) -> list[str]:
    """What a reader must know before trusting the numbers."""
    cases, notes = found["inversion"], []
    if any(case["rows"] < case["of_rows"] for case in cases):
        notes.append(
            "Uploads were made of some of a client's rows, which is easier to attack than the "
            "run's own: --rows 0 takes all of them."
        )
    if any(case["batch_norm"] for case in cases):
        notes.append("BatchNorm takes the batch's own statistics, here as in training.")
    if cases and run.config.augment != "none":
        notes.append(
            "Images are changed at random while training; the attacker knows how, but for borders."
        )
    if cases and run.method.validates:
        notes.append("The attacker was given the client's validation rows, which the method uses.")
    for told in found["membership"]:
        if "diverged" in told:
            notes.append(
                f"Membership of {MODELS[told['model']]} ({told['protection']}) is without "
                f"{listed(told['diverged'], 10)}: outputs there are not finite numbers."
            )
    if any(case["state"] == "guessed" for case in cases):
        notes.append(
            "What a client keeps to itself does not travel: it was attacked as if known, and with "
            "a random guess in its place."
        )
    return notes


def keep(folder: Path, found: dict[str, Any]) -> None:
    """Puts an audit into its run's folder.

    Raises:
      BadInput: it cannot be written there.
    """
    try:
        write_json(folder / AUDIT, found)
        write_atomically(folder / AUDIT_PAGE, audit_page(found))
    except OSError as error:
        raise BadInput(
            f"'{folder}' cannot be written to ({error.strerror}): see that it can be"
        ) from None
