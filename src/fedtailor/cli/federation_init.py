"""`fedtailor federation init`: a project with everything that coordinator and sites need."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtailor.cli.federation_options import (
    Deadline,
    Folder,
    Insecure,
    MinSites,
    parse_number,
    require_flower,
    rules_of,
)
from fedtailor.cli.settings import SET_HELP, read_pairs, with_settings
from fedtailor.cli.terminal import err, out
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import counted

# Settings that a simulation has and a federation of sites has not.
_SIMULATED = (
    "hub", "clients", "partition_file", "held_out", "permute_targets", "join", "weights",
    "weights_except", "eval_every", "engine", "device", "compile", "compile_limit", "precision",
    "chunk", "states", "on_nan", "checkpoint_every", "keep_path", "dropout", "slow", "deadline",
)  # fmt: skip
_PANELS = ("Data", "Clients", "Federation", "Model", "Training", "Privacy", "Evaluation", "Run")


@with_settings(*_PANELS, without=_SIMULATED)
def init(
    given: dict[str, Any],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the project.")],
    sites: Annotated[
        str | None, typer.Option("--sites", metavar="N", help="How many sites (default: 3).")
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option("--site", metavar="NAME", help="A site's name; once for each site."),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", metavar="METHOD", help="See fedtailor list.")
    ] = "fedala",
    options: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET_HELP)
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            metavar="EXAMPLE",
            help="Sites bring their own data, which look like this example: a known data set, a "
            "file or folder that every site may see (made-up rows do), or a preprocessing.json. "
            "Column names, classes, categories and scales are taken from it.",
        ),
    ] = None,
    from_sites: Annotated[
        bool,
        typer.Option(
            "--from-sites",
            help="Sites bring their own data, and are asked for what preprocessing is made of: "
            "sums and categories of columns, no rows (fedtailor federation survey).",
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Of the federation (default: the folder's name)."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Name or address at which sites reach the coordinator.")
    ] = "127.0.0.1",
    port: Annotated[str, typer.Option("--port", metavar="N", help="Of the coordinator.")] = "8000",
    min_sites: MinSites = None,
    deadline: Deadline = None,
    insecure: Insecure = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier project, keys and all.")
    ] = False,
) -> None:
    """Write a project: configuration, certificates, node keys, scripts, units, containers.

    Without --like it is a trial: every site takes its share of data that come with FedTailor.

    Example: fedtailor federation init trial --sites 3 --rounds 10

    Example: fedtailor federation init wards --site north --site south --site east
    --host hub.example.org --like made-up.csv --label diagnosis --method fedala

    Example: fedtailor federation init wards --sites 3 --from-sites --label diagnosis
    """
    require_flower()
    from fedtailor.datasets import KNOWN
    from fedtailor.federation.deploy.project import LAST_PORT
    from fedtailor.federation.deploy.project_files import ProjectSpec, write_project
    from fedtailor.federation.site.preprocessing import model_for, preprocessing_like
    from fedtailor.results.config import make_config

    if site and sites is not None:
        raise BadInput("--sites and --site: give a number or names, not both")
    names = site or [f"site-{i}" for i in range(parse_number("--sites", sites or "3", int, 1))]
    pairs = read_pairs(options)
    own = like is not None or from_sites
    if like is not None and from_sites:
        raise BadInput("--like and --from-sites: give an example, or let the sites tell, not both")
    if not own and given.get("data", "digits") not in KNOWN:
        raise BadInput(
            f"--data '{given['data']}': a trial needs a known data set; for data that lie at the "
            "sites say --like EXAMPLE or --from-sites"
        )
    if own and "data" in given:
        flag = "--from-sites" if from_sites else "--like"
        raise BadInput(f"--data and {flag}: each site names its data in its site.toml")
    config = make_config(method, given, pairs)  # bad names and values are named before all else
    settings = {k: getattr(config, k) for k in given}
    agreed = None
    if like is not None:
        if config.normalise == "federated":
            raise BadInput(
                "normalise is 'federated', but with --like no site tells its sums: say "
                "--from-sites instead, or use own (each site by its own rows) or pooled (the "
                "example's numbers)"
            )
        encoder = preprocessing_like(like, settings)
        agreed = encoder.to_json()
        if "model" in given or not config.models:
            settings["model"] = model_for(encoder, config.model)
        settings.pop("normalise", None)
    elif not own and "data" not in settings:
        settings = {"data": "digits"} | settings
    spec = ProjectSpec(
        name or folder.expanduser().absolute().name,
        method,
        names,
        settings,
        config.options,
        {"min_sites": min(2, len(names))} | rules_of(min_sites, deadline),
        host,
        parse_number("--port", port, int, 1, LAST_PORT),
        insecure=insecure,
        preprocessing=agreed,
        survey=from_sites,
    )
    made = write_project(folder, spec, overwrite=overwrite)
    _tell_next(made, spec)


def _judged_by(spec: Any) -> str:
    """What models of sites with their own classes are judged by, where that may mislead."""
    from fedtailor.results.metrics.named import positive_note

    classes = (spec.preprocessing or {}).get("classes") or ()
    metric = spec.settings.get("metric", "auto")
    if classes and metric == "auto":
        return (
            "Models are judged by accuracy, since nobody knows yet how common each class is: where "
            "one is rare, say another (--metric balanced-accuracy)."
        )
    return positive_note([metric], classes)


def _tell_next(made: Path, spec: Any) -> None:
    from fedtailor.federation.deploy.proxy import CONFIGURATION, CURE, find_nginx

    flag = " --insecure" if spec.insecure else ""
    lines = [
        f"Project '{spec.id}' in {made}: {spec.method}, {counted(len(spec.sites), 'site')} "
        f"({', '.join(spec.sites[:8])}{', ...' if len(spec.sites) > 8 else ''})",
        "Next:",
        f"  sh {made}/coordinator/start.sh            (leave it running)",
        "  sh .../sites/NAME/start.sh                (on each site's machine; leave it running)",
        f"  fedtailor federation run {made}{flag}",
    ]
    if not spec.trial:
        lines.insert(2, '  each site: name its data in its site.toml (now: data = "data")')
    if spec.survey:
        lines.insert(
            -1, f"  fedtailor federation survey {made}{flag}   (once, before the first round)"
        )
    if (made / "coordinator" / CONFIGURATION).exists() and find_nginx() is None:
        lines.append(f"The coordinator's machine needs nginx, which is not installed here: {CURE}")
    if judged := _judged_by(spec):
        lines.append(judged)
    if not spec.insecure:
        lines.append("Certificates and keys are for a trial; README.md there says how to replace.")
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


def survey(folder: Folder, min_sites: MinSites = None, insecure: Insecure = False) -> None:
    """Ask the sites for what their preprocessing is made of, once, before the first round.

    Of a project made with init --from-sites. The coordinator and the sites must have been started.
    Sites tell names and kinds of columns, sums and categories, and no rows; what most of them have
    is agreed on, and written to coordinator/preprocessing.json. Exit code 1 if too few told.

    Example: fedtailor federation survey wards
    """
    require_flower()
    from fedtailor.federation.coordinator import progress, store
    from fedtailor.federation.coordinator.federation_file import read_survey_file
    from fedtailor.federation.deploy.project import read_project
    from fedtailor.federation.protocol.lines import read_lines
    from fedtailor.federation.site.preprocessing import preprocessing_lines, read_preprocessing

    rules = rules_of(min_sites, None)
    project = read_project(folder, insecure=insecure)
    found, link = read_survey_file(project.file), project.link()
    kept = found.state_folder
    if store.read_latest(kept):
        raise BadInput(f"'{found.id}' has begun: another preprocessing needs a new id")
    if not link.listens():
        raise BadInput(
            f"no coordinator at {link.address}: start it with sh {folder}/coordinator/start.sh"
        )

    def tell(event: dict[str, Any]) -> None:
        said = ": ".join(filter(None, (event.get("event"), event.get("detail"))))
        err.print(f"{event.get('site')}: {said}", markup=False, soft_wrap=True)

    since = len(read_lines(kept / store.EVENTS))
    run = link.submit(project.file, survey=True, **rules)
    ending = progress.follow(kept, link.status, run, since, tell)
    if ending.kind != "finished":
        sys.stderr.write(f"fedtailor: {ending.kind}: {ending.detail}\n")
        raise typer.Exit(1)
    for line in preprocessing_lines(read_preprocessing(found.out)):
        out.print(line, markup=False, soft_wrap=True)
    flag = " --insecure" if insecure else ""
    out.print(
        f"Written: {found.out}; next: fedtailor federation run {folder}{flag}",
        markup=False,
        soft_wrap=True,
    )


def renew(
    folder: Folder,
    new_authority: Annotated[
        bool,
        typer.Option(
            "--new-authority", help="Of a new authority: every site needs the new ca.crt then."
        ),
    ] = False,
) -> None:
    """Make a new server certificate; a running federation goes on.

    Behind nginx the coordinator takes it within 10 seconds, and sites notice nothing.

    Example: fedtailor federation renew wards
    """
    from fedtailor.federation.deploy.keys import renew_authority, renew_certificate
    from fedtailor.federation.deploy.project import read_project
    from fedtailor.federation.deploy.project_files import certified_hosts

    project = read_project(folder, insecure=False)
    made = project.certificates
    assert made is not None  # else it would be insecure
    if new_authority:
        end = renew_authority(made, certified_hosts(project.host))
        sites = sorted(folder.glob("sites/*/ca.crt"))
        for path in sites:
            path.write_bytes(made.authority.read_bytes())
        out.print(
            f"New authority: give each site '{made.authority}' as its ca.crt and start it again"
            + (f" (done in {len(sites)} folders under {folder}/sites)" if sites else ""),
            markup=False,
            soft_wrap=True,
        )
    else:
        end = renew_certificate(made)
    how = "A running coordinator takes it within 10 seconds."
    if not project.link_is_proxied:
        how = "Start the coordinator again to use it."
    out.print(f"Certificate '{made.certificate}' holds until {end:%Y-%m-%d}. {how}", soft_wrap=True)
