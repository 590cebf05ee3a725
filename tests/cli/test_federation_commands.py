"""`fedtailor federation`: what init writes, what is refused, and what status tells."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from math import inf
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

from fedtailor.cli import main
from fedtailor.core import __version__
from fedtailor.federation.coordinator.federation_file import read_federation, read_survey_file
from fedtailor.federation.deploy import project_files
from fedtailor.federation.deploy.project import read_project
from fedtailor.federation.site.settings import read_settings

TRIAL = ["--sites", "2", "--model", "mlp", "--rounds", "3"]


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["federation", *arguments])
    return int(end.value.code or 0)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_trial_project_has_everything(here: Path) -> None:
    assert call("init", "trial", *TRIAL, "--host", "hub.example.org", "--deadline", "90") == 0
    root = here / "trial"
    found = read_federation(root / "federation.toml")
    assert found.plan.clients == 2 and found.plan.rounds == 3 and found.rules.deadline == 90
    project = read_project(root, insecure=False)
    assert project.host == "hub.example.org" and project.listen == "0.0.0.0"
    for i in range(2):
        site = root / "sites" / f"site-{i}"
        settings = read_settings(site / "site.toml")
        assert settings.client == i and settings.allow == ("fedala",)
        assert settings.data["clients"] == 2
        public = (site / "node.key.pub").read_bytes()
        assert (root / "coordinator" / "keys" / f"site-{i}.pub").read_bytes() == public
        assert (site / "ca.crt").read_bytes() == project.certificates.authority.read_bytes()
    private = [*root.rglob("*.key")]
    assert len(private) == 4  # two sites', the server's and the authority's
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in private)
    assert {path.parent.name for path in private if path.name == "authority.key"} == {
        "certificates"
    }
    # others reach nginx, the SuperLink stays on loopback
    assert project.proxied and project.link().address == f"127.0.0.1:{project.port + 1}"
    conf = (root / "coordinator" / "nginx.conf").read_text()
    assert f"listen 0.0.0.0:{project.port} ssl;" in conf and str(here) not in conf
    assert not [path for path in here.iterdir() if path.name != "trial"]


def test_each_site_s_file_names_its_network(here: Path) -> None:
    several = ["--method", "fedproto", "--models", "mlp-2:1,mlp:2", "--insecure"]
    for folder, how in (("trial", []), ("like", ["--like", "digits"])):
        assert call("init", folder, *several, *how) == 0
        found = read_federation(here / folder / "federation.toml")
        assert found.plan.settings["model"] == "mlp-2", "the deepest"
        sites = [here / folder / "sites" / f"site-{i}" / "site.toml" for i in range(3)]
        assert [read_settings(site).model for site in sites] == ["mlp-2", "mlp", "mlp"]


def test_the_certificate_holds_for_the_host(here: Path) -> None:
    from cryptography import x509

    assert call("init", "a", *TRIAL, "--host", "hub.example.org") == 0
    assert call("init", "b", *TRIAL, "--host", "192.0.2.7") == 0
    names = []
    for folder in ("a", "b"):
        path = here / folder / "coordinator" / "certificates" / "server.pem"
        made = x509.load_pem_x509_certificate(path.read_bytes())
        san = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names.append([str(n.value) for n in san])
    assert "hub.example.org" in names[0] and "192.0.2.7" in names[1]
    assert all("127.0.0.1" in found for found in names)


@pytest.mark.parametrize(
    ("host", "listen"), [("::1", "::1"), ("2001:db8::7", "::"), ("127.0.0.1", "127.0.0.1")]
)
def test_ipv6_has_brackets_and_its_own_loopback(here: Path, host: str, listen: str) -> None:
    yaml = pytest.importorskip("yaml")
    from cryptography import x509

    assert call("init", "p", *TRIAL, "--host", host, "--port", "8123") == 0
    ipv6 = ":" in host
    project = read_project(here / "p", insecure=False)
    assert (project.host, project.listen) == (host, listen)
    own = {"::": "127.0.0.1:8124", "::1": "[::1]:8123"}  # behind nginx it is another port
    assert project.link().address == own.get(listen, "127.0.0.1:8123")
    if project.proxied:
        assert "listen [::]:8123 ssl;" in (here / "p" / "coordinator" / "nginx.conf").read_text()
    script = (here / "p" / "sites" / "site-0" / "start.sh").read_text()
    assert f'"${{COORDINATOR:-{f"[{host}]" if ipv6 else host}:8123}}"' in script
    path = here / "p" / "coordinator" / "certificates" / "server.pem"
    made = x509.load_pem_x509_certificate(path.read_bytes())
    san = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {host, "127.0.0.1", "::1"} <= {str(name.value) for name in san}
    services = yaml.safe_load((here / "p" / "compose.yaml").read_text())["services"]
    # between containers it is IPv4, whatever the sites' way to it
    assert services["coordinator"]["command"][2:] == ["--listen", "0.0.0.0"]


def test_sites_that_tell_their_columns_are_asked_before_the_first_round(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--from-sites", "--label", "ill", "--normalise", "federated", "--insecure")
    assert call("init", "p", *TRIAL, *given) == 0
    assert "fedtailor federation survey" in capsys.readouterr().out
    found = read_survey_file(here / "p" / "federation.toml")
    assert (found.normalise, found.sites) == ("federated", 2)
    assert found.out == here / "p" / "coordinator" / "preprocessing.json"
    site = read_settings(here / "p" / "sites" / "site-0" / "site.toml")
    assert "columns" in site.share and site.data["label"] == "ill"
    for command in ("run", "status"):
        assert call(command, "p", "--insecure") == 2
        assert "have not told their columns yet" in capsys.readouterr().err
    assert call("survey", "p", "--insecure") == 2
    assert "no coordinator at 127.0.0.1" in capsys.readouterr().err


def test_infinity_is_written_as_toml_has_it(here: Path) -> None:
    assert call("init", "p", *TRIAL, "--method", "fedavg", "--dp-clip", "inf") == 0
    assert read_federation(here / "p" / "federation.toml").plan.settings["dp_clip"] == inf


def test_a_label_may_have_any_letter(here: Path) -> None:
    lines = ["age,\U0001f600", "31.25,ill", "47.75,well", "62.5,well"]
    Path("example.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert call("init", "p", "--like", "example.csv", "--label", "\U0001f600", "--sites", "2") == 0
    site = read_settings(here / "p" / "sites" / "site-0" / "site.toml")
    assert site.data["label"] == "\U0001f600"


def test_scripts_units_and_containers_are_sound(here: Path) -> None:
    yaml = pytest.importorskip("yaml")
    assert call("init", "trial", *TRIAL) == 0
    root = here / "trial"
    scripts = [*root.rglob("*.sh")]
    assert len(scripts) == 3
    for script in scripts:
        assert script.stat().st_mode & stat.S_IXUSR
        done = subprocess.run(["sh", "-n", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    services = yaml.safe_load((root / "compose.yaml").read_text())["services"]
    assert set(services) == {"coordinator", "site-0", "site-1"}
    for service in services.values():
        assert service["image"].startswith("fedtailor:") and service["command"][0] == "sh"
        assert service["cap_drop"] == ["ALL"] and service["read_only"] and "user" in service
        assert service["security_opt"] == ["no-new-privileges:true"]
        for volume in service["volumes"]:
            assert (root / volume.split(":")[0]).exists(), volume
    units = [*root.rglob("*.service")]
    assert len(units) == 3
    assert "\nUSER " in (root / "Dockerfile").read_text()
    for unit in units:
        for line in ("NoNewPrivileges=true", "ProtectSystem=strict", "CapabilityBoundingSet=\n"):
            assert line in unit.read_text()
    sites = [unit for unit in units if "site" in unit.name]
    assert all("User=fedtailor-site\n" in unit.read_text() for unit in sites)
    assert all("RestartSec=70" in unit.read_text() for unit in sites)
    if shutil.which("systemd-analyze"):
        for unit in units:
            text = re.sub("User=fedtailor-[a-z]+", "User=root", unit.read_text())
            unit.write_text(text.replace("/opt/fedtailor/bin/python", sys.executable))
        done = subprocess.run(
            ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_own_data_need_an_example_and_no_rows_are_kept(here: Path) -> None:
    lines = ["age,ward,diagnosis", "31.25,a,ill", "47.75,b,well", "62.5,a,well"]
    Path("example.csv").write_text("\n".join(lines) + "\n")
    arguments = ["--like", "example.csv", "--label", "diagnosis", "--site", "north", "--site", "so"]
    assert call("init", "wards", *arguments) == 0
    plan = read_federation(here / "wards" / "federation.toml").plan
    assert plan.encoder["classes"] == ["ill", "well"] and plan.settings["model"] == "mlp"
    assert [c["name"] for c in plan.encoder["columns"]] == ["age", "ward"]
    for path in (here / "wards").rglob("*"):
        assert path.is_dir() or b"47.75" not in path.read_bytes()
    site = tomllib.loads((here / "wards" / "sites" / "north" / "site.toml").read_text())
    assert site["data"] == "data" and site["label"] == "diagnosis" and site["client"] == 0
    # what was agreed on can be agreed on again
    again = ["--like", "wards/preprocessing.json", "--sites", "2"]
    assert call("init", "more", *again) == 0
    assert read_federation(here / "more" / "federation.toml").plan.encoder == plan.encoder


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ([], "Models are judged by accuracy, since nobody knows yet how common each class is"),
        (["--metric", "sensitivity"], "Positive, for sensitivity, is 'well', which comes after"),
        (["--metric", "roc-auc"], ""),
    ],
)
def test_what_models_are_judged_by_is_said(
    here: Path, metric: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["age,ward,diagnosis", "31.25,a,ill", "47.75,b,well", "62.5,a,well"]
    Path("example.csv").write_text("\n".join(lines) + "\n")
    assert call("init", "p", "--like", "example.csv", "--label", "diagnosis", *metric) == 0
    told = capsys.readouterr().out
    assert said in told if said else not any(w in told for w in ("Models are judged", "Positive,"))


def test_images_need_their_size_and_classes_alone(here: Path) -> None:
    assert call("init", "scans", "--like", "digits", "--sites", "2") == 0
    plan = read_federation(here / "scans" / "federation.toml").plan
    assert plan.encoder["shape"] == [1, 8, 8] and plan.settings["model"] == "cnn"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["init", "p", "--sites", "0"], "--sites is 0"),
        (["init", "p", "--sites", "few"], "--sites is 'few'"),
        (["init", "p", "--sites", "2", "--site", "a"], "not both"),
        (["init", "p", "--site", "a", "--site", "a"], "named twice"),
        (["init", "p", "--site", "../a"], "site '../a'"),
        (["init", "p", "--site", "coordinator"], "another name"),
        (["init", "p", "--method", "fedalla"], "did you mean 'fedala'"),
        (["init", "p", "--method", "fedavg-data"], "gives training rows away"),
        (["init", "p", "--method", "centralised"], "gathers all training rows in one place"),
        (["init", "p", "--rounds", "0"], "at least 1"),
        (["init", "p", "--models", "mlp:2,cnn:1"], "fedala needs equal networks"),
        (
            ["init", "p", "--method", "fml", "--models", "mlp:2"],
            "is for 2 clients, but there are 3",
        ),
        (["init", "p", "--set", "mu=1"], "unknown option 'mu'"),
        (["init", "p", "--host", "a b"], "host 'a b'"),
        (["init", "p", "--id", "a/b"], "federation id 'a/b'"),
        (["init", "p", "--port", "x"], "--port is 'x'"),
        (["init", "p", "--port", "99999"], "--port is 99999: give a whole number from 1 to 65535"),
        (["init", "p", "--deadline", "0"], "--deadline is 0"),
        (["init", "p", "--data", "rows.csv"], "--like"),
        (["init", "p", "--like", "no/such.csv"], "does not exist"),
        (["init", "p", "--like", "digits", "--normalise", "federated"], "say --from-sites"),
        (["init", "p", "--like", "digits", "--from-sites"], "--like and --from-sites"),
        (["init", "p", "--from-sites", "--data", "digits"], "--data and --from-sites"),
        (["init", "p", "--from-sites", "--dp-clip", "1", "--dp-noise", "1"], "has no noise"),
        (["survey", "p"], "federation init"),
        (["init", "p", "--like", "digits", "--data", "digits"], "--data and --like"),
        (["run", "p"], "federation init"),
        (["status", "p"], "federation init"),
        (["stop", "p"], "federation init"),
        (["demo", "--rounds", "0"], "--rounds is 0"),
        (["demo", "--method", "fedalla"], "did you mean 'fedala'"),
    ],
)
def test_slips_are_named_and_leave_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert call(*arguments) == 2
    told = capsys.readouterr()
    assert said in told.err and told.err.count("\n") == 1 and told.out == ""
    assert not list(here.iterdir())


def test_nothing_is_overwritten_unasked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("init", "p", *TRIAL) == 0
    before = (here / "p" / "coordinator" / "certificates" / "ca.crt").read_bytes()
    assert call("init", "p", *TRIAL) == 2 and "--overwrite" in capsys.readouterr().err
    assert (here / "p" / "coordinator" / "certificates" / "ca.crt").read_bytes() == before
    assert call("init", "p", *TRIAL, "--overwrite") == 0
    assert (here / "p" / "coordinator" / "certificates" / "ca.crt").read_bytes() != before
    (here / "theirs").mkdir()
    (here / "theirs" / "letter.txt").write_text("dear")
    assert call("init", "theirs", *TRIAL, "--overwrite") == 2
    assert (here / "theirs" / "letter.txt").read_text() == "dear"


def test_a_failure_leaves_the_old_project(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("init", "p", *TRIAL) == 0
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}

    def full(path: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(project_files, "make_node_key", full)
    assert call("init", "p", *TRIAL, "--overwrite") == 2
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


def test_without_tls_it_stays_on_this_machine(here: Path, capsys) -> None:
    assert call("init", "open", *TRIAL, "--insecure", "--host", "hub.example.org") == 2
    assert "stays on one machine" in capsys.readouterr().err
    assert call("init", "open", *TRIAL, "--insecure") == 0
    assert not (here / "open" / "compose.yaml").exists()
    path = here / "open" / "federation.toml"
    path.write_text(path.read_text().replace('listen = "127.0.0.1"', 'listen = "0.0.0.0"'))
    assert call("status", "open", "--insecure") == 2
    assert "listen is '0.0.0.0'" in capsys.readouterr().err


def test_a_certificate_that_ends_soon_is_shown_and_renewed(here: Path, capsys) -> None:
    from fedtailor.federation.deploy.keys import make_certificates

    assert call("init", "p", *TRIAL, "--host", "hub.example.org") == 0
    root = here / "p"
    make_certificates(root / "coordinator" / "certificates", ["hub.example.org"], days=9)
    capsys.readouterr()
    assert call("status", "p") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Warning: certificate" in said and "in 9 days" in said and "federation renew" in said
    authority = (root / "coordinator" / "certificates" / "ca.crt").read_bytes()
    assert call("renew", "p") == 0
    assert "within 10 seconds" in capsys.readouterr().out
    assert (root / "coordinator" / "certificates" / "ca.crt").read_bytes() == authority
    assert call("status", "p") == 0 and "Warning" not in capsys.readouterr().out
    # as 0.2 left it: no key of the authority
    (root / "coordinator" / "certificates" / "authority.key").unlink()
    assert call("renew", "p") == 2
    told = capsys.readouterr()
    assert "--new-authority" in told.err and told.err.count("\n") == 1
    assert call("renew", "p", "--new-authority") == 0
    new = (root / "coordinator" / "certificates" / "ca.crt").read_bytes()
    assert new != authority and (root / "sites" / "site-0" / "ca.crt").read_bytes() == new


def test_insecure_must_be_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("init", "open", *TRIAL, "--insecure") == 0
    assert not list((here / "open").rglob("*.key"))
    assert "--insecure" in (here / "open" / "coordinator" / "start.sh").read_text()
    capsys.readouterr()
    for command in ("run", "status", "stop"):
        assert call(command, "open") == 2
        assert "say --insecure" in capsys.readouterr().err
    assert call("init", "shut", *TRIAL) == 0
    capsys.readouterr()
    assert call("status", "shut", "--insecure") == 2
    assert "leave --insecure out" in capsys.readouterr().err


def played(root: Path) -> None:
    """The coordinator's folder after two rounds, one of them without site-1."""
    folder = root / "coordinator" / "state" / root.name
    folder.mkdir(parents=True)
    common = {"cohort": [0, 1], "bytes": {"up": 100, "down": 50}, "seconds": 4.0}
    common["envelope"] = {"up": 7, "down": 3}
    lines = [
        common | {"round": 1, "taken": [0, 1], "failed": {}}
        | {"sites": {"site-0": {"post_score": 0.5}, "site-1": {"post_score": 0.6}}},
        common | {"round": 2, "taken": [0], "failed": {"site-1": "not connected"}}
        | {"sites": {"site-0": {"post_score": 0.75}}},
    ]  # fmt: skip
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "latest.json").write_text(json.dumps({"round": 2, "version": __version__}))
    event = {"time": 0, "round": 2, "site": "all", "event": "stopped", "detail": "why"}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")


def test_status_and_stop_without_a_coordinator(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("init", "trial", *TRIAL, "--port", "1") == 0
    played(here / "trial")
    capsys.readouterr()
    assert call("status", "trial", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["round"], found["rounds"]) == (2, 3) and not found["listens"]
    assert not found["playing"] and found["ended"] == "stopped: why"
    assert found["bytes"] == {"up": 200, "down": 100, "envelope_up": 14, "envelope_down": 6}
    first, second = found["sites"]
    assert first["name"] == "site-0" and first["last"] == 2 and first["score"] == 0.75
    assert second["failures"] == 1 and second["why"] == "round 2: not connected"
    assert call("status", "trial") == 0
    told = capsys.readouterr().out
    assert "does NOT listen" in told
    assert "round 1: 2 of 2 sites in 4.0 s\n" in told
    assert "round 2: 1 of 2 sites in 4.0 s, without site-1\n" in told and "nobody" not in told
    assert call("stop", "trial") == 0
    assert "Nothing is being played; 2 of 3" in capsys.readouterr().out
    assert call("run", "trial") == 2
    assert "coordinator/start.sh" in capsys.readouterr().err


@pytest.mark.parametrize("broken", [b'{"rou', b"[]", b"{}", b'{"round": null}', b"\xff"])
@pytest.mark.parametrize("command", ["status", "stop"])
def test_a_broken_checkpoint_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, broken: bytes
) -> None:
    assert call("init", "trial", *TRIAL, "--port", "1") == 0
    played(here / "trial")
    (here / "trial" / "coordinator" / "state" / "trial" / "latest.json").write_bytes(broken)
    capsys.readouterr()
    assert call(command, "trial") == 2
    told = capsys.readouterr()
    assert "latest.json' cannot be read" in told.err and "put back a copy" in told.err
    assert told.err.count("\n") == 1 and told.out == ""


def test_a_site_with_a_new_key_takes_its_number_back(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedtailor.federation.coordinator.owners import NumberOwners

    assert call("init", "trial", *TRIAL) == 0
    found = read_federation(here / "trial" / "federation.toml")
    assert found.keyed
    owners = NumberOwners(found.state_folder)
    found.state_folder.mkdir(parents=True)
    owners.note(1, 77, "site-1")
    assert call("replace", "trial", "site-1") == 0
    assert "Client 1 is free" in capsys.readouterr().out and owners.read() == {}
    assert call("replace", "trial", "site-1") == 2
    assert "no site 'site-1' has joined: known are nobody yet" in capsys.readouterr().err
    assert call("init", "open", *TRIAL, "--insecure") == 0
    assert call("replace", "open", "site-1", "--insecure") == 2
    assert "has no node keys" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["init", "demo", "run", "status", "stop", "replace", "inspect", "accept"]
)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(command, "--help") == 0
    assert f"Example: fedtailor federation {command}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("method", "needs"),
    [
        ("fedala", "mean"),
        ("fedrep", "mean"),
        ("fedfomo", "each"),
        ("pfedhn", "each"),
        ("fedamp", "each"),
        ("local", "nothing"),
    ],
)
def test_what_leaves_a_site(method: str, needs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["show", method, "--wire", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["server_needs"] == needs
    assert all(
        array["bytes"] == 4 * int(np.prod(array["shape"])) or array["type"] != "float32"
        for array in found["arrays"]
    )
    assert bool(found["arrays"]) == (method != "local")
    heads = [a["name"] for a in found["arrays"] if a["name"].endswith("fc.weight")]
    assert bool(heads) == (method not in ("fedrep", "local"))  # fedrep's head stays at the site
    with pytest.raises(SystemExit):
        main(["show", method, "--wire"])
    told = capsys.readouterr().out
    assert ("One by one" in told) == (needs == "each")


def test_the_last_rounds_number_is_the_tables_or_a_line_says_why() -> None:
    from fedtailor.cli.federation_view import last_round_note

    last = {"round": 4, "sites": {"a": {"post_score": 0.8}, "b": {"post_score": 0.6}}}
    same = {"a": {"pre_score": 0.9}, "b": {"pre_score": 0.5}}
    assert last_round_note("accuracy", last, same, 0) == ""
    assert last_round_note("accuracy", last, {"a": {}, "b": {}}, 0) == ""
    other = same | {"c": {"pre_score": 0.85}}
    assert last_round_note("accuracy", last, other, 2) == (
        "Round 4 had accuracy 70.00 %: the mean over 2 sites, right after training. The table is "
        "of the models that sites keep, made after that round and fine-tuned: accuracy 75.00 %, "
        "over 3 sites."
    )
