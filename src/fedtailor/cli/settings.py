"""Every setting of a run as an option of the command line, from its one definition."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtailor.core.errors import BadInput
from fedtailor.core.options import Option
from fedtailor.results.config import read_config, settings

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else there.")]
SET_HELP = "A hyper-parameter of the method; see fedtailor show METHOD. May be given several times."
CONFIG_HELP = "Take settings from a TOML file (e.g. a run's config.toml); options here go first."


def _shown(option: Option) -> str:
    if option.kind is bool:
        return "yes" if option.default else "no"
    return str(option.default) if option.default != "" else "none"


def _parameter(option: Option, panel: str) -> inspect.Parameter:
    flag = "--" + option.name.replace("_", "-")
    kind: Any = bool if option.kind is bool else str  # text is checked by us, with our words
    about = typer.Option(
        f"{flag}/--no-{flag[2:]}" if option.kind is bool else flag,
        help=option.meaning[0].upper() + option.meaning[1:] + ".",
        rich_help_panel=panel,
        show_default=_shown(option),
        metavar=None if option.kind is bool else _metavar(option),
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, about],
    )


def _metavar(option: Option) -> str:
    if option.choices:
        return "|".join(option.choices)
    return {int: "N", float: "X", str: "TEXT"}[option.kind]


def with_settings(
    *panels: str, without: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command an option for each setting; it gets those that were used as `given`.

    Args:
      panels: groups of settings; all if none is named.
      without: settings that the command has no use for.
    """
    chosen = {
        name: (option, field.metadata["panel"])
        for name, (option, field) in settings().items()
        if (not panels or field.metadata["panel"] in panels)
        and name not in without
        and field.metadata["typed"]
    }

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True)
        kept = [p for p in own.parameters.values() if p.name != "given"]
        added = [_parameter(option, panel) for option, panel in chosen.values()]

        @functools.wraps(command)
        def run(**values: Any) -> Any:
            given = {k: values.pop(k) for k in chosen}
            return command(given={k: v for k, v in given.items() if v is not None}, **values)

        as_keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in kept]
        run.__signature__ = own.replace(parameters=as_keywords + added)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in as_keywords + added}
        return run

    return decorate


def whole(flag: str, text: str) -> int:
    """A whole number from the command line, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"--{flag} is '{text}': give a whole number, at least 1")
    return int(text)


def read_pairs(pairs: list[str] | None) -> dict[str, str]:
    """`name=value` pairs as a dict."""
    out: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise BadInput(f"--set '{pair}': write name=value, e.g. --set mu=0.1")
        out[name.strip()] = value.strip()
    return out


def gather_several(
    methods: list[str] | None,
    given: dict[str, Any],
    pairs: list[str] | None,
    config: Path | None,
) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """(methods, settings, options) likewise; a file's options are those of its method alone."""
    options, methods = read_pairs(pairs), methods or []
    if config is not None:
        named, values, hyper = read_config(config)
        methods, given = methods or ([named] if named else []), values | given
        if named in methods:
            options = {f"{named}.{k}": v for k, v in hyper.items()} | options
    return methods, given, options


def gather(
    method: str | None, given: dict[str, Any], pairs: list[str] | None, config: Path | None
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(method, settings, options) from file and command line; the command line goes first."""
    options: dict[str, Any] = {}
    if config is not None:
        named, values, options = read_config(config)
        if method is not None and named not in (None, method):
            options = {}  # hyper-parameters of another method
        method, given = method or named, values | given
    if method is None:
        raise BadInput("no method: name one (fedtailor list shows them), or give a --config file")
    return method, given, options | read_pairs(pairs)
