"""Strangers against real processes: what they can reach and what they can run. Run with --slow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

from fedtailor.federation.deploy.keys import renew_certificate
from fedtailor.federation.deploy.processes import ProcessGroup, descendants, free_port
from fedtailor.federation.deploy.project import read_project
from fedtailor.federation.deploy.project_files import ProjectSpec, write_project
from fedtailor.federation.deploy.proxy import find_nginx
from tests.federation.crew import Crew
from tests.federation.real import RULES, equals_simulation, finished, history, until
from tests.federation.stranger import flwr_run, foreign_app
from tests.federation.trial import Trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("name", "publisher"), [("evil", "stranger"), ("fedtailor-app", "fedtailor")]
)
def test_a_foreign_app_does_not_run_at_a_site(tmp_path, name, publisher):
    """Even of whoever has the coordinator's control interface, and under our own name."""
    trial, loot = Trial(tmp_path, "fedavg", table=RULES), tmp_path / "loot"
    app = foreign_app(tmp_path / "app", loot, name, publisher)
    folder = tmp_path / "coordinator" / "trial"
    with Crew(tmp_path / "crew") as crew:
        crew.start_coordinator()
        for i, path in enumerate(trial.sites):
            crew.start_site(f"site-{i}", path)
        done = flwr_run(tmp_path / "stranger", crew.address, crew.certificates.authority, app)
        assert json.loads(done.stdout)["success"], done.stdout
        until(lambda: (loot / "reply").exists(), 120, "the foreign run ends")
        assert not (loot / "ran-at-site").exists()
        said, log = (loot / "reply").read_text(), (crew.folder / "site-0.log").read_text()
        if publisher == "stranger":
            assert "'stranger/evil' is not FedTailor's" in said
            assert "'stranger/evil' is not FedTailor's" in log
        # and the site goes on with the federation
        crew.submit(trial.federation)
        until(lambda: finished(folder), 240, "the federation is done")
    equals_simulation(trial, folder)


HERE, THERE, SPACE = "10.213.7.1", "10.213.7.2", "fedtailor-test"
SCAN = """
import json, socket
found = []
for port in range(1, 65536):
    with socket.socket() as probe:
        if probe.connect_ex(("10.213.7.1", port)) == 0:
            found.append(port)
print(json.dumps(found))
"""
POST = """
import http.client, json, ssl, sys
port, authority, size, *paths = sys.argv[1:]
context, said = ssl.create_default_context(cafile=authority), []
for path in paths:
    link = http.client.HTTPSConnection("10.213.7.1", int(port), context=context, timeout=30)
    try:
        link.request("POST", path, bytes(int(size)), {"content-type": "application/protobuf"})
        said.append(link.getresponse().status)
    except (BrokenPipeError, ConnectionResetError):
        said.append(0)
print(json.dumps(said))
"""


def quietly(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def outside():
    """Another network namespace, which reaches this one by a wire: a command that runs in it."""
    if not (shutil.which("ip") and quietly("ip", "netns", "add", SPACE)):
        pytest.skip("needs the right to make a network namespace (root) and the command ip")
    within = ("ip", "netns", "exec", SPACE)
    try:
        made = [
            quietly(
                "ip", "link", "add", "ft-here", "type", "veth", "peer", "ft-there", "netns", SPACE
            ),
            quietly("ip", "addr", "add", f"{HERE}/24", "dev", "ft-here"),
            quietly("ip", "link", "set", "ft-here", "up"),
            quietly(*within, "ip", "addr", "add", f"{THERE}/24", "dev", "ft-there"),
            quietly(*within, "ip", "link", "set", "ft-there", "up"),
            quietly(*within, "ip", "link", "set", "lo", "up"),
        ]
        if not all(made):
            pytest.skip("no wire between two network namespaces can be made here")
        yield within
    finally:
        quietly("ip", "netns", "del", SPACE)
        quietly("ip", "link", "del", "ft-here")


def run_there(outside: tuple[str, ...], code: str, *arguments: object) -> list[int]:
    command = [*outside, sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return list(json.loads(done.stdout))


def peak(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """The most memory that each process of the coordinator ever had, in MB."""
    found = {}
    for pid in descendants(process.pid):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        size = int(status.get("VmHWM", "0 kB").split()[0]) // 1000
        name = Path(f"/proc/{pid}/cmdline").read_text()
        kind = "superlink" if "flower-superlink" in name else status["Name"].strip()
        found[kind] = max(found.get(kind, 0), size)
    return found


def settled(process: subprocess.Popen[bytes], seconds: float = 60) -> dict[str, int]:
    """The same, once all of them have started: some still load what they need."""
    until, found = time.monotonic() + seconds, peak(process)
    while time.monotonic() < until:
        time.sleep(3)
        before, found = found, peak(process)
        if found == before:
            break
    return found


@pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")
def test_from_another_network_only_sites_get_in(tmp_path, outside):
    """A scan, a stranger's run, a flood, and a federation that plays on while its key changes."""
    names = ["north", "south"]
    settings = {"data": "digits", "model": "mlp", "rounds": 8}
    rules = RULES | {"min_sites": 2}
    ports = [free_port() for _ in names]
    spec = ProjectSpec(
        "wards", "fedavg", names, settings, rules=rules, host=HERE, port=free_port(),
        control=free_port(), node_ports=ports,
    )  # fmt: skip
    root = write_project(tmp_path / "wards", spec)
    project = read_project(root, insecure=False)
    folder = root / "coordinator" / "state" / "wards"
    env = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    before = run_there(outside, SCAN)
    with ProcessGroup(tmp_path / "logs") as group:
        group.start_script("coordinator", root / "coordinator", env)
        group.wait_until(project.reachable, "coordinator", "listen")
        # a scan: one port, and behind it nothing for who has no key
        assert set(run_there(outside, SCAN)) - set(before) == {project.port}
        control = ("/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/register-node")
        asked = (outside, POST, project.port, project.authority)
        assert run_there(*asked, 10, *control) == [404, 404, 404]
        assert run_there(*asked, 10, "/v1/fleet/activate-node") == [403]
        app = foreign_app(tmp_path / "app", tmp_path / "loot")
        home, address = tmp_path / "stranger", f"{HERE}:{project.port}"
        done = flwr_run(home, address, project.authority, app, *outside)
        assert done.returncode or not json.loads(done.stdout)["success"]
        assert not list((tmp_path / "loot").iterdir())
        # 200 MB from a stranger
        used = settled(group.started["coordinator"])
        paths = ("/v1/fleet/push-object", "/v1/control/start-run")
        assert set(run_there(*asked, 200_000_000, *paths)) <= {403, 404, 413, 0}
        grown = {k: v - used[k] for k, v in peak(group.started["coordinator"]).items() if k in used}
        assert {"superlink", "nginx"} <= set(grown) and max(grown.values()) < 20, grown
        # sites from there play, and go on while the certificate is renewed
        for name in names:
            site = root / "sites" / name
            group.site_files.add(site / "site.toml")
            group.start(name, [*outside, "sh", str(site / "start.sh")], env, site)
        project.link().submit(project.file)
        until(lambda: len(history(folder)) >= 2, 240, "two rounds")
        old = project.certificate.read_bytes()
        renew_certificate(project.certificates)
        until(lambda: finished(folder), 300, "the federation is done")
        assert project.certificate.read_bytes() != old
    log = (tmp_path / "logs" / "coordinator.log").read_text()
    assert "takes new keys or certificates" in log
    lines = [line for line in history(folder) if "taken" in line]
    assert len(lines) == 8 and not any(line["failed"] for line in lines)
    (tmp_path / "memory.json").write_text(json.dumps([used, grown]))
