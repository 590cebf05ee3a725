"""`fedtailor federation init`: a project with everything that coordinator and sites need."""

from __future__ import annotations

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
from fedtailor.core.errors import BadInput

# Settings that a simulation has and a federation of sites has not.
_SIMULATED = (
    "hub", "clients", "partition_file", "held_out", "permute_targets", "join", "depths", "weights",
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
    """
    require_flower()
    from fedtailor.cli.showing import out
    from fedtailor.datasets import KNOWN
    from fedtailor.federation.deploy.project import LAST_PORT
    from fedtailor.federation.deploy.project_files import ProjectSpec, write_project
    from fedtailor.federation.site.preprocessing import model_for, preprocessing_like
    from fedtailor.results.config import make_config

    if site and sites is not None:
        raise BadInput("--sites and --site: give a number or names, not both")
    names = site or [f"site-{i}" for i in range(parse_number("--sites", sites or "3", int, 1))]
    pairs = read_pairs(options)
    if like is None and given.get("data", "digits") not in KNOWN:
        raise BadInput(
            f"--data '{given['data']}': a trial needs a known data set; for data that lie at the "
            "sites say --like EXAMPLE"
        )
    if like is not None and "data" in given:
        raise BadInput("--data and --like: with --like, each site names its data in its site.toml")
    config = make_config(method, given, pairs)  # bad names and values are named before all else
    settings = {k: getattr(config, k) for k in given}
    agreed = None
    if like is not None:
        if config.normalise == "federated":
            raise BadInput(
                "normalise is 'federated': real sites do not exchange sums yet; use own (each site "
                "by its own rows), or pooled (all by the example's numbers)"
            )
        encoder = preprocessing_like(like, settings)
        agreed = encoder.to_json()
        settings["model"] = model_for(encoder, config.model)
        settings.pop("normalise", None)
    elif "data" not in settings:
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
    )
    made = write_project(folder, spec, overwrite=overwrite)
    _tell_next(made, spec, out)


def _tell_next(made: Path, spec: Any, out: Any) -> None:
    from fedtailor.federation.deploy.proxy import CONFIGURATION, CURE, find_nginx

    flag = " --insecure" if spec.insecure else ""
    own = spec.preprocessing is not None
    lines = [
        f"Project '{spec.id}' in {made}: {spec.method}, {len(spec.sites)} sites "
        f"({', '.join(spec.sites[:8])}{', ...' if len(spec.sites) > 8 else ''})",
        "Next:",
        f"  sh {made}/coordinator/start.sh            (leave it running)",
        "  sh .../sites/NAME/start.sh                (on each site's machine; leave it running)",
        f"  fedtailor federation run {made}{flag}",
    ]
    if own:
        lines.insert(2, '  each site: name its data in its site.toml (now: data = "data")')
    if (made / "coordinator" / CONFIGURATION).exists() and find_nginx() is None:
        lines.append(f"The coordinator's machine needs nginx, which is not installed here: {CURE}")
    if not spec.insecure:
        lines.append("Certificates and keys are for a trial; README.md there says how to replace.")
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


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
    from fedtailor.cli.showing import out
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
