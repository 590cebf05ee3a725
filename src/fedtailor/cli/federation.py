"""Commands for real federations, from init and demo to inspect and accept."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.federation_init import init, renew, survey
from fedtailor.cli.federation_options import (
    Deadline,
    Folder,
    Insecure,
    MinSites,
    parse_number,
    require_flower,
    rules_of,
)
from fedtailor.cli.settings import Json
from fedtailor.cli.terminal import err, out, print_json
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import counted

app = typer.Typer(
    name="federation",
    help="A real federation: a coordinator and sites on machines of their own, over Flower "
    "(pip install 'fedtailor\\[flower]').\n\nStart with: fedtailor federation demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(init)
app.command()(survey)
app.command()(renew)


@app.command()
def demo(
    method: Annotated[
        str, typer.Option("--method", metavar="METHOD", help="See fedtailor list.")
    ] = "fedala",
    rounds: Annotated[str, typer.Option("--rounds", metavar="N", help="Number of rounds.")] = "8",
    sites: Annotated[str, typer.Option("--sites", metavar="N", help="Number of sites.")] = "3",
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep the project, its models and its logs."),
    ] = None,
    insecure: Insecure = False,
    json: Json = False,
) -> None:
    """A coordinator and 3 sites as processes of this machine, with TLS and node keys.

    Takes about two minutes and stops all that it started. Exit code 0 if every site ended with
    its model, 1 if not.

    Example: fedtailor federation demo --method fedrep --keep demo
    """
    require_flower()
    from fedtailor.cli.federation_view import FederationView, gains_table, last_round_note
    from fedtailor.cli.showing import in_bytes
    from fedtailor.federation.coordinator.federation_file import read_federation
    from fedtailor.federation.coordinator.progress import rounds_of, traffic_of
    from fedtailor.federation.deploy.demo import demo_project, model_cards, play_demo
    from fedtailor.federation.deploy.processes import signals_to
    from fedtailor.federation.protocol.ipc import require_unix
    from fedtailor.results.config import make_config

    require_unix()
    count, total = parse_number("--sites", sites, int, 1), parse_number("--rounds", rounds, int, 1)
    make_config(method, {"rounds": total}, {})
    scratch = None if keep else Path(tempfile.mkdtemp(prefix="fedtailor-demo-"))
    begun = time.monotonic()
    try:
        # being told to end is like Ctrl-C: what was started is stopped first
        with signals_to(signal.default_int_handler, "SIGTERM", "SIGHUP"):
            project = demo_project(keep or scratch / "demo", method, total, count, insecure)  # type: ignore[operator]
            with FederationView(method, "accuracy", total) as view:
                ending = play_demo(project, count, view.tell, view.say)
        cards = model_cards(project, count)
        state = read_federation(project.file).state_folder
        traffic, last = traffic_of(state), rounds_of(state)[-1:]
    finally:
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)
    seconds = time.monotonic() - begun
    good = ending.kind == "finished" and len(cards) == count
    if json:
        said = {"ending": ending._asdict(), "sites": cards, "bytes": traffic}
        print_json(said | {"seconds": round(seconds, 1)})
    else:
        out.print(gains_table(method, cards))
        ends = {card["site"]: {"pre_score": card["score"]} for card in cards}
        if last and (note := last_round_note("accuracy", last[0], ends, 0)):
            out.print(note, markup=False, soft_wrap=True)
        trust = "without TLS" if insecure else "TLS, node keys"
        out.print(
            f"{counted(total, 'round')}, {counted(count, 'site')}, {seconds:.0f} s in all "
            f"({trust}); uploads "
            f"{in_bytes(traffic['up'])} and {in_bytes(traffic['envelope_up'])} around them"
        )
        if keep:
            out.print(f"Kept in {keep}; models: {keep}/sites/*/state/federations/demo/models")
    if not good:
        why = f"{ending.kind}: {ending.detail or f'{len(cards)} of {count} sites have a model'}"
        sys.stderr.write(f"fedtailor: {why}\n")
    raise typer.Exit(0 if good else 1)


@app.command()
def run(
    folder: Folder,
    min_sites: MinSites = None,
    deadline: Deadline = None,
    insecure: Insecure = False,
    json: Json = False,
) -> None:
    """Play the rounds that are left and follow them; goes on where the last run ended.

    The coordinator and the sites must have been started (start.sh in their folders). Ctrl-C stops
    following: the federation goes on. Exit code 0 if it finished, 1 if it stopped before.

    Example: fedtailor federation run wards --min-sites 2 --deadline 300
    """
    require_flower()
    from fedtailor.cli.federation_view import FederationView, finished_table, last_round_note
    from fedtailor.federation.coordinator import progress, store
    from fedtailor.federation.coordinator.federation_file import read_federation
    from fedtailor.federation.deploy.project import check_scripts, read_project
    from fedtailor.federation.protocol.lines import read_lines

    rules = rules_of(min_sites, deadline)
    project = read_project(folder, insecure=insecure)
    found, link = read_federation(project.file), project.link()
    kept, rounds = found.state_folder, found.plan.rounds
    metric = str(found.plan.settings["metric"])
    if store.is_played(kept):
        raise BadInput(
            f"'{folder}' is being played already: see fedtailor federation status {folder}"
        )
    store.check_version(kept)
    store.check_rounds(kept, rounds)
    if not link.listens():
        check_scripts(project.folder)
        raise BadInput(
            f"no coordinator at {link.address}: start it with sh {folder}/coordinator/start.sh"
        )
    progress.forget_stop(kept)
    since = len(read_lines(kept / store.EVENTS))
    done = progress.round_now(kept)
    with FederationView(found.plan.method, metric, rounds, done) as view:
        view.say("starting" if not progress.rounds_of(kept) else f"going on after round {done}")
        flower_run = link.submit(project.file, **rules)
        try:
            ending = progress.follow(kept, link.status, flower_run, since, view.tell)
        except KeyboardInterrupt:
            sys.stderr.write(
                f"fedtailor: no longer followed, but it goes on; stop it with: fedtailor "
                f"federation stop {folder}{' --insecure' if insecure else ''}\n"
            )
            raise typer.Exit(130) from None
    sites = progress.finished_of(kept)
    if json:
        said = {"ending": ending._asdict(), "rounds": progress.round_now(kept), "sites": sites}
        print_json(said)
    elif ending.kind == "finished":
        out.print(finished_table(found.plan.method, metric, sites))
        last, tuned = progress.rounds_of(kept)[-1], int(found.plan.settings["finetune"])
        if note := last_round_note(metric, last, sites, tuned):
            out.print(note, markup=False, soft_wrap=True)
        for who in progress.without_model(kept, found.plan.clients):
            told = f"No model yet: {who}. When that is mended, run again."
            out.print(told, markup=False, soft_wrap=True)
    if ending.kind != "finished":
        sys.stderr.write(
            f"fedtailor: {ending.kind} after round {progress.round_now(kept)} of {rounds}: "
            f"{ending.detail}; go on with: fedtailor federation run {folder}\n"
        )
        raise typer.Exit(1)


@app.command()
def status(folder: Folder, insecure: Insecure = False, json: Json = False) -> None:
    """Who is connected, the last rounds, failures by name, bytes.

    Example: fedtailor federation status wards
    """
    require_flower()
    from fedtailor.cli.federation_view import show_status
    from fedtailor.federation.deploy.status import project_status

    found = project_status(folder, insecure=insecure)
    if json:
        print_json(found)
    else:
        show_status(found)


@app.command()
def stop(
    folder: Folder,
    seconds: Annotated[
        str, typer.Option("--wait", metavar="S", help="How long to wait for the round's end.")
    ] = "900",
    insecure: Insecure = False,
) -> None:
    """Stop after the round that is being played; `run` goes on from there.

    The coordinator's and the sites' processes stay: end those with Ctrl-C or systemctl stop.

    Example: fedtailor federation stop wards
    """
    from fedtailor.federation.coordinator import progress
    from fedtailor.federation.coordinator.federation_file import read_federation
    from fedtailor.federation.coordinator.store import is_played
    from fedtailor.federation.deploy.project import read_project

    limit = parse_number("--wait", seconds, float, 0)
    found = read_federation(read_project(folder, insecure=insecure).file)
    kept = found.state_folder
    done = progress.round_now(kept)
    if not is_played(kept):
        rounds = counted(found.plan.rounds, "round")
        out.print(f"Nothing is being played; {done} of {rounds} done.")
        return
    progress.ask_to_stop(kept)
    with err.status("waiting for the end of the round..."):
        ended = progress.wait_for_end(kept, limit)
    if not ended:
        sys.stderr.write(f"fedtailor: still playing after {limit:g} s; it will stop by itself\n")
        raise typer.Exit(1)
    progress.forget_stop(kept)
    if progress.is_over(kept, found.plan.rounds):
        out.print("All rounds had been played: it finished.")
        return
    out.print(
        f"Stopped after round {progress.round_now(kept)} of {found.plan.rounds}; go on with: "
        f"fedtailor federation run {folder}"
    )


@app.command()
def report(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|SITE.toml", help="The project's folder; at a site, its own file."
        ),
    ],
    insecure: Insecure = False,
) -> None:
    """Write a finished federation's page, from what its sites agreed to share.

    It is the page that a simulation has. With SITE.toml, at a site: the page about that site alone,
    with everything that it knows of itself.

    Example: fedtailor federation report wards
    """
    if place.suffix == ".toml" and not place.is_dir():
        from fedtailor.federation.site.model_card import own_pages
        from fedtailor.federation.site.settings import read_settings

        pages = own_pages(read_settings(place))
    else:
        from fedtailor.federation.coordinator.federation_file import read_federation
        from fedtailor.federation.coordinator.report import federation_report
        from fedtailor.federation.deploy.project import read_project

        project = read_project(place, insecure=insecure)
        pages = [federation_report(read_federation(project.file))]
    for page in pages:
        typer.echo(f"Written: {page}")


SiteFile = Annotated[Path, typer.Argument(metavar="SITE.toml", help="The site's own file.")]


@app.command()
def inspect(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="federation.toml, or plan.json or proposed-plan.json of a site."
        ),
    ],
    site: Annotated[
        Path | None,
        typer.Option("--site", metavar="SITE.toml", help="Hold it against this site's limits."),
    ] = None,
    json: Json = False,
) -> None:
    """What a plan asks of a site, in words: what leaves, how often, who could learn what.

    Exit code 2 if the site would refuse it.

    Example: fedtailor federation inspect wards/federation.toml --site sites/north/site.toml
    """
    from fedtailor.cli.federation_view import show_plan
    from fedtailor.federation.coordinator.federation_file import find_plan
    from fedtailor.federation.site.inspection import inspect_plan
    from fedtailor.federation.site.settings import read_settings

    found = inspect_plan(find_plan(plan), read_settings(site) if site else None)
    if json:
        print_json(found.to_json())
    else:
        show_plan(found, site is not None)
    raise typer.Exit(2 if found.refused else 0)


@app.command()
def accept(site: SiteFile) -> None:
    """At a site: agree to the plan that it has refused because its owner had not agreed to it.

    The state of a plan that was agreed to before is put aside, not lost. Limits still hold.

    Example: fedtailor federation accept site.toml
    """
    from fedtailor.cli.federation_view import show_plan
    from fedtailor.federation.site.inspection import accept_plan, inspect_plan
    from fedtailor.federation.site.settings import read_settings

    settings = read_settings(site)
    done = accept_plan(settings)
    for change in done.changes:
        out.print(change, markup=False)
    show_plan(inspect_plan(done.plan, settings), True)
    if done.aside:
        out.print(f"The state of the plan before lies in {done.aside}.", markup=False)
    out.print(f"Agreed: the site takes part in '{done.federation}' with this plan alone.")


@app.command()
def replace(
    folder: Folder,
    site: Annotated[str, typer.Argument(metavar="SITE", help="The site's name.")],
    insecure: Insecure = False,
) -> None:
    """Take a site's number from its node key: the next that joins with the number keeps it.

    For a site that has a new key. Put its public key into coordinator/keys first.

    Example: fedtailor federation replace wards north
    """
    from fedtailor.federation.coordinator.federation_file import read_federation
    from fedtailor.federation.coordinator.owners import NumberOwners
    from fedtailor.federation.deploy.project import read_project

    found = read_federation(read_project(folder, insecure=insecure).file)
    if not found.keyed:
        raise BadInput(f"'{folder}' has no node keys: a site may come back at any place")
    number = NumberOwners(found.state_folder).release(site)
    out.print(f"Client {number} is free: the next site that joins with this number keeps it.")


def add_to(main: typer.Typer) -> None:
    """Registers the commands."""
    main.add_typer(app)
