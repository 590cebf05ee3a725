"""What `mkdocs` is given beside the pages in this folder: pages that are made from the code.

The start page is the README, each method's page comes from its docstring and a measured round, and
the API reference lists what the package exports. mkdocs calls `on_config` and `on_files`.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # the checkout that is documented, installed or not

# Pages of the repository that stand outside docs/, and what they are called on the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}

# The packages of the API reference: what someone who writes methods or reads results may call.
PACKAGES = {
    "core": "what methods are written in",
    "core.steps": "a client's steps: loops over batches, optimisers, DP-SGD",
    "methods.parts": "what several methods share",
    "methods": "find, describe, check and combine methods",
    "engine": "functions of one client meet many",
    "models": "networks by name",
    "datasets": "data by name or path",
    "partition": "who holds which rows",
    "results": "what a run leaves behind, and what it means",
    "runs": "from settings to a run's folder",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the made pages into the navigation."""
    from fedtailor.methods import KINDS

    sections: dict[str, list[Any]] = {k: v for part in config.nav for k, v in part.items()}
    for kind, methods in KINDS.items():
        sections["Methods"].append({kind.capitalize(): [_at(name) for name in methods]})
    sections["API"] += ["api/index.md", *(f"api/{name}.md" for name in PACKAGES)]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the made pages."""
    made = {place: moved(name) for name, place in OUTSIDE.items()}
    made |= method_pages() | api_pages()
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Puts the list of methods where docs/methods.md wants it."""
    if page.file.src_uri != "methods.md":
        return markdown
    return markdown.replace("<!-- methods -->", overview())


# ---- pages that stand elsewhere in the repository ----


def moved(name: str) -> str:
    """A page from the repository's root, its links as they are on the site."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](", text)
    text = re.sub(r"\]\(examples/your_own_method\.py\)", "](own-method.md)", text)
    for other, place in OUTSIDE.items():
        text = text.replace(f"]({other})", f"]({place})")
    return text


# ---- methods ----


def _at(name: str) -> str:
    return f"methods/{name}.md"


def overview() -> str:
    """All methods by kind, a line each, and the parts that others take."""
    from fedtailor.methods import KINDS
    from fedtailor.methods.combine import WRAPPERS
    from fedtailor.methods.describe import page

    lines = []
    for kind, methods in KINDS.items():
        lines += [f"**{kind.capitalize()}**", ""]
        lines += [f"- [{name}]({_at(name)}): {page(made).title}" for name, made in methods.items()]
        lines += [""]
    lines += ["**Parts that others take**", ""]
    lines += [f"- `METHOD+{n}`: {part.title}; for {part.hosts}" for n, part in WRAPPERS.items()]
    return "\n".join(lines)


def method_pages() -> dict[str, str]:
    """A page for each method, by its place on the site."""
    from fedtailor.methods import METHODS

    return {_at(name): method_page(name, factory) for name, factory in METHODS.items()}


def method_page(name: str, factory: Any) -> str:
    """One method: idea and maths, options, bytes, deviations, paper, how to run it, its file."""
    from fedtailor.methods.check import tasks_of
    from fedtailor.methods.describe import page
    from fedtailor.methods.footprint import footprint

    def one_step(task: Any, *, recipe: Any) -> Any:
        """The same sizes as with whole epochs, sooner."""
        return factory(task, recipe=replace(recipe, epochs=1, batch=0))

    found, sizes = page(factory), footprint(one_step)
    lines = [f"# {name}", "", found.title, "", found.text, ""]
    lines += [f"**Paper**: {_linked(found.reference)}", ""]
    lines += [f"**Deviations**: {found.deviations or 'none.'}", ""]
    tasks = tasks_of(factory)
    lines += [f"**Learns**: {', '.join(task for task, why in tasks.items() if not why)}", ""]
    lines += [f"- not {task}: {why}" for task, why in tasks.items() if why] + [""]
    lines += ["## Run it", "", "```bash", f"fedtailor run {name} --data digits --clients 20"]
    if found.options:
        first = found.options[0]
        lines += [f"fedtailor run {name} --set {first.name}={first.default}"]
    lines += [f"fedtailor show {name} --wire    # what leaves a client", "```", ""]
    if found.options:
        lines += ["## Options", "", "| option | default | takes | tuned over | meaning |"]
        lines += ["|---|---|---|---|---|"]
        for o in found.options:
            told = (_cell(text) for text in (o.values, o.tried or "–", o.meaning))
            cells = (f"`{o.name}`", f"`{o.default}`", *told)
            lines += ["| " + " | ".join(cells) + " |"]
        lines += [""]
    lines += [
        "## What it sends and keeps",
        "",
        "| | models |",
        "|---|---:|",
        f"| a client downloads per round | {sizes.down:.4g} |",
        f"| a client uploads per round | {sizes.up:.4g} |",
        f"| a client keeps between rounds | {sizes.client:.4g} |",
        f"| the server keeps | {sizes.server:.4g} |",
        "",
        f"In sizes of one model, counted in a round with all of {sizes.clients} clients and a "
        f"network of {sizes.parameters:,} numbers.",
        "",
    ]
    path = Path(inspect.getsourcefile(inspect.unwrap(factory)) or "")
    source = path.read_text(encoding="utf-8").rstrip()
    lines += [f'??? note "The whole of it: {path.relative_to(ROOT)}"', "", "    ```python"]
    lines += [f"    {line}".rstrip() for line in source.splitlines()] + ["    ```"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _linked(text: str) -> str:
    return re.sub(r"https?://[^\s,;)]+", lambda m: f"<{m[0]}>", text)


# ---- API reference ----


def api_pages() -> dict[str, str]:
    """What `import fedtailor` gives, and a page per package."""
    import fedtailor

    names = [name for name in fedtailor.__all__ if not name.startswith("__")]
    lines = ["# fedtailor", "", "What `import fedtailor` gives.", ""]
    for name in sorted(names, key=str.lower):
        lines += [*_entry(name, getattr(fedtailor, name)), ""]
    pages = {"api/index.md": "\n".join(lines)}
    for package, what in PACKAGES.items():
        lines = [f"# fedtailor.{package}", "", f"{what[0].upper()}{what[1:]}.", ""]
        for module in _modules(package):
            lines += [f"::: {module}", ""]
        pages[f"api/{package}.md"] = "\n".join(lines)
    return pages


def _entry(name: str, value: Any) -> list[str]:
    home = getattr(value, "__module__", "")
    if not home.startswith("fedtailor") or not hasattr(value, "__qualname__"):
        kind = "module" if inspect.ismodule(value) else type(value).__name__
        what = inspect.getdoc(value) if inspect.ismodule(value) else f"{kind} of {len(value)}"
        return [f"## `{name}`", "", (what or "").partition("\n")[0]]
    package, _, module = home.rpartition(".")
    if module == name and not inspect.ismodule(getattr(sys.modules[package], module)):
        home = package  # the package exports the function under its module's name
    return [
        f"::: {home}.{value.__qualname__}",
        "    options:",
        f"      heading: fedtailor.{name}",
        f"      toc_label: {name}",
        "      skip_local_inventory: true",
    ]


def _modules(package: str) -> list[str]:
    """The modules of a package that a reader may want, in alphabetical order."""
    folder = ROOT / "src/fedtailor" / package.replace(".", "/")
    return [
        f"fedtailor.{package}.{path.stem}"
        for path in sorted(folder.glob("*.py"))
        if not path.stem.startswith("_")
    ]
