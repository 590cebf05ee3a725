"""Coordinator and sites in network namespaces of their own, on bad wires. Run with --slow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

import torch

from fedtailor.core import tree
from fedtailor.engine import Simulation
from fedtailor.federation.deploy.processes import ProcessGroup, free_port
from fedtailor.federation.deploy.project_files import ProjectSpec, write_project
from fedtailor.federation.deploy.proxy import find_nginx
from fedtailor.results.config import make_config
from fedtailor.results.storage import load_tensors
from fedtailor.runs.build import make_method, make_task
from fedtailor.runs.data import load_run_data
from tests.federation.real import RULES, finished, history, until
from tests.federation.trial import distance

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SITES, HUB = ("north", "south"), "10.213.9.1"
FEDTAILOR = (sys.executable, "-c", "from fedtailor.cli import main; main()", "federation")
# what a wire can be made to do, the first that this kernel has: loss and delay, or a narrow wire
# with a short queue, which loses and delays what does not fit
WIRES = ("netem delay 50ms 10ms loss 2%", "tbf rate 4mbit burst 16kb latency 30ms")


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


def within(name: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", f"ft-{name}", *command]


@pytest.fixture
def wires():
    """A namespace for each of three machines, and a wire from each site to the coordinator's."""
    if not (shutil.which("ip") and shutil.which("tc") and ip("netns", "add", "ft-hub")):
        pytest.skip("needs the right to make network namespaces (root), and the commands ip and tc")
    try:
        hub = ("-n", "ft-hub")
        made = [ip(*hub, "link", "set", "lo", "up")]
        made.append(ip(*hub, "link", "add", "bridge", "type", "bridge"))
        made.append(ip(*hub, "addr", "add", f"{HUB}/24", "dev", "bridge"))
        made.append(ip(*hub, "link", "set", "bridge", "up"))
        for number, name in enumerate(SITES, 2):
            own = ("-n", f"ft-{name}")
            ends = ("peer", name, "netns", "ft-hub")
            made.append(ip("netns", "add", f"ft-{name}"))
            made.append(ip("link", "add", "wire", "netns", f"ft-{name}", "type", "veth", *ends))
            made.append(ip(*own, "addr", "add", f"10.213.9.{number}/24", "dev", "wire"))
            made += [ip(*own, "link", "set", device, "up") for device in ("lo", "wire")]
            made.append(ip(*hub, "link", "set", name, "master", "bridge", "up"))
        if not all(made):
            pytest.skip("no wires between network namespaces can be made here")
        yield
    finally:
        for name in ("hub", *SITES):
            ip("netns", "del", f"ft-{name}")


def spoil(name: str) -> str:
    """Makes a site's wire a bad one; returns what it does."""
    for kind in WIRES:
        words = within(name, "tc", "qdisc", "add", "dev", "wire", "root", *kind.split())
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return kind
    pytest.skip("tc knows neither netem nor tbf here")


def dropped(name: str) -> int:
    """Packets that a site's wire has lost."""
    words = within(name, "tc", "-s", "qdisc", "show", "dev", "wire")
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return int(said.split("(dropped ")[1].split(",")[0])


@pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")
def test_three_machines_on_bad_wires_equal_the_simulation(tmp_path: Path, wires) -> None:
    """Both wires lose and delay, and one is cut for a while: rounds go on, and equal."""
    settings = {"data": "digits", "model": "mlp", "rounds": 8, "lr": 0.02}
    spec = ProjectSpec(
        "wards", "fedala", SITES, settings, rules=RULES | {"min_sites": 1, "deadline": 25},
        host=HUB, port=free_port(), control=free_port(), node_ports=[free_port(), free_port()],
    )  # fmt: skip
    root = write_project(tmp_path / "wards", spec)
    folder = root / "coordinator" / "state" / "wards"
    env = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    played = lambda: [line for line in history(folder) if "taken" in line]
    with ProcessGroup(tmp_path / "logs") as group:
        hub = root / "coordinator"
        group.start("coordinator", within("hub", "sh", str(hub / "start.sh")), env, hub)
        marks = hub / "flower" / "registered"
        until(lambda: len(list(marks.glob("*"))) == len(SITES), 120, "keys are known")
        kinds = {name: spoil(name) for name in SITES}
        for name in SITES:
            site = root / "sites" / name
            group.site_files.add(site / "site.toml")
            group.start(name, within(name, "sh", str(site / "start.sh")), env, site)
        group.start("run", within("hub", *FEDTAILOR, "run", str(root)), env, root)
        until(lambda: len(played()) >= 2, 300, "two rounds")
        assert ip("-n", "ft-hub", "link", "set", "south", "down")  # the wire is cut
        alone = lambda: [line for line in played() if line["taken"] == [0]]
        until(alone, 240, "a round without the site behind the wire")
        assert ip("-n", "ft-hub", "link", "set", "south", "up")
        until(lambda: finished(folder), 420, "the federation is done")
        assert group.started["run"].wait(60) == 0
        lost = {name: dropped(name) for name in SITES}
    assert set(alone()[0]["failed"]) == {"south"} and all(lost.values()), lost
    assert [line["round"] for line in played()] == list(range(1, 9))
    world = load_run_data(make_config("fedala", settings | {"clients": 2, "device": "cpu"}, {}))
    task = make_task(world.config, world.encoder.form)
    sim = Simulation(
        make_method(world.config, task), world.client_data, task, seed=world.config.seed,
        rounds=8, recipe=world.config.recipe(),
    )  # fmt: skip
    for line in played():
        sim.step(torch.tensor(line["taken"]))
    latest = json.loads((folder / "latest.json").read_text())
    server = tree.unflatten(load_tensors(folder / latest["file"]))
    apart = distance(server, sim.server)
    assert apart <= 1e-6
    seen = {"wires": kinds, "lost": lost, "distance": apart, "rounds": played()}
    (tmp_path / "seen.json").write_text(json.dumps(seen))
