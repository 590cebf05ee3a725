"""A small federation of three sites, each with a table of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from fedtailor.core import tree
from fedtailor.engine import Simulation, draw_cohort
from fedtailor.results.config import make_config
from fedtailor.runs.build import make_players
from fedtailor.runs.data import RunData, load_run_data

FEATURES, CLASSES, SIZES = 5, 3, (40, 64, 52)
SETTINGS = {"model": "mlp", "rounds": 2, "batch": 20, "lr": 0.1, "seed": 3}


def write_data(root: Path) -> Path:
    """ROOT/site-I/rows.npz for each site: what a simulation reads as one client per folder."""
    draw = np.random.Generator(np.random.Philox(key=11))
    shared = draw.standard_normal((FEATURES, CLASSES))
    for i, size in enumerate(SIZES):
        x = draw.standard_normal((size, FEATURES))
        rule = shared + draw.standard_normal((FEATURES, CLASSES))
        folder = root / f"site-{i}"
        folder.mkdir(parents=True)
        np.savez(folder / "rows.npz", x=x, y=(x @ rule).argmax(-1))
    return root


def toml(values: dict[str, object]) -> str:
    return "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items())


class Trial:
    """The files of a federation, and the simulation that it must equal."""

    def __init__(
        self,
        root: Path,
        method: str,
        options: dict | None = None,
        table: dict | None = None,
        where: dict | None = None,
        federations: tuple[str, ...] = (),
        **more,
    ) -> None:
        self.federations = list(federations)  # that the sites' files name
        self.root, self.method, self.options = root, method, options or {}
        self.settings = SETTINGS | more
        data = root / "data"
        if not data.exists():
            write_data(data)
        config = make_config(method, self.settings | {"data": str(data)}, self.options)
        self.world: RunData = load_run_data(config)
        encoder = json.dumps(self.world.encoder.to_json())
        (root / "preprocessing.json").write_text(encoder)
        said = {"id": "trial", "sites": 3, "preprocessing": "preprocessing.json", "pause": 0.01}
        self.federation = root / "federation.toml"
        self.federation.write_text(
            toml({"method": method} | self.settings)
            + "[options]\n"
            + toml(self.options)
            + "[federation]\n"
            + toml(said | (table or {}))
            + "[coordinator]\n"
            + toml(where or {})
        )
        self.sites = [self.write_site(i) for i in range(3)]

    def write_site(self, i: int, **more: object) -> Path:
        path = self.root / f"site-{i}.toml"
        own = {"client": i, "data": f"data/site-{i}/rows.npz", "folder": f"site-{i}", "idle": 60}
        more = ({"federations": self.federations} if self.federations else {}) | more
        path.write_text(toml(own | {"name": f"site-{i}", "threads": 1} | more))
        return path

    def simulate(self, rounds: int | None = None) -> Simulation:
        config = self.world.config
        (method, task, _), *others = make_players(config, self.world.encoder.form, 3)
        sim = Simulation(
            method,
            self.world.client_data,
            task,
            others=others,
            seed=config.seed,
            rounds=config.rounds,
            recipe=config.recipe(),
        )
        for r in range(config.rounds if rounds is None else rounds):
            sim.step(draw_cohort(config.seed, r, torch.arange(3), config.participation))
        return sim


def distance(a: tree.Tree, b: tree.Tree) -> float:
    one, two = tree.flatten(a), tree.flatten(b)
    assert one.keys() == two.keys()
    apart = [float((one[k].double() - two[k].double()).abs().max()) for k in one if one[k].numel()]
    return max(apart, default=0.0)
