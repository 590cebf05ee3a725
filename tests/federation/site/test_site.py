"""What a site agrees to, and its rows."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.datasets import Encoder
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.protocol.packet import JOIN, PROTOCOL, Packet
from fedtailor.federation.protocol.plan import make_training_plan, read_plan
from fedtailor.federation.site.guard import Guard, Refused
from fedtailor.federation.site.local_data import load_local_data
from fedtailor.federation.site.settings import read_settings
from fedtailor.federation.site.site import Site
from fedtailor.results.config import make_config
from fedtailor.runs.data import load_run_data
from tests.federation.trial import Trial, toml


def write(path, **values):
    path.write_text(toml(values))
    return read_settings(path)


def test_a_trial_share_is_the_simulations(tmp_path):
    how = {"data": "digits", "clients": 3, "partition": "dirichlet:0.5", "partition_seed": 4}
    world = load_run_data(make_config("local", how, {}))
    for i in range(3):
        site = write(tmp_path / "site.toml", client=i, **how)
        mine = load_local_data(site, world.encoder)
        theirs = world.client_data.data(torch.tensor([i]))
        rows, n = theirs.rows[0, : theirs.n[0]], int(theirs.n[0])
        assert int(mine.data.n) == n and len(mine.data.x) < len(theirs.x)  # its own rows alone
        assert torch.equal(mine.data.x[mine.data.rows], theirs.x[rows])
        assert torch.equal(mine.data.y[mine.data.rows], theirs.y[rows])
        assert sum(mine.mix.values()) == n
    site = write(tmp_path / "site.toml", client=3, **how)
    with pytest.raises(BadInput, match="client is 3, but the partition has 3"):
        load_local_data(site, world.encoder)


def test_classes_are_matched_by_name(tmp_path):
    trial = Trial(tmp_path, "fedavg")
    x = np.random.default_rng(0).standard_normal((40, 5))
    labels = np.array(["2", "0"] * 20)  # it has no rows of class 1
    np.savez(tmp_path / "own.npz", x=x, y=labels.astype(int))
    site = write(tmp_path / "site.toml", client=0, data="own.npz")
    found = load_local_data(site, trial.world.encoder)
    assert set(found.data.y.unique().tolist()) == {0, 2} and set(found.mix) == {"0", "2"}
    np.savez(tmp_path / "own.npz", x=x, y=(labels == "0") * 7)
    with pytest.raises(BadInput, match="the class '7', which the federation does not know"):
        load_local_data(site, trial.world.encoder)


@pytest.mark.parametrize(
    ("allow", "method", "model", "refused"),
    [
        (None, "fedala", "mlp", ""),
        (None, "fedrep+ala", "mlp", ""),
        (None, "os:system", "mlp", "method 'os:system', the site allow: those"),
        (None, "fedala", "os:system", "model 'os:system', the site those"),
        (["fedavg"], "fedala", "mlp", "method 'fedala', the site allow: fedavg"),
        (["my.module:method"], "my.module:method", "mlp", ""),
    ],
)
def test_code_from_elsewhere_must_be_allowed(tmp_path, allow, method, model, refused):
    more = {} if allow is None else {"allow": allow}
    plan = read_federation(Trial(tmp_path, "fedavg").federation).plan
    plan = replace(plan, method=method, settings=plan.settings | {"model": model})
    guard = Guard(write(tmp_path / "site.toml", client=0, data="x.npz", **more))
    if not refused:
        guard.require_limits(plan)
        return
    with pytest.raises(Refused, match=refused):
        guard.require_limits(plan)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p | {"version": "0.0"}, "runs FedTailor 0.0"),
        (lambda p: p | {"protocol": 9}, "speaks protocol 9"),
        (lambda p: p | {"clients": 0}, "clients is 0"),
        (lambda p: p | {"dtype": "bfloat16"}, "unknown dtype 'bfloat16'"),
        (lambda p: p | {"extra": 1}, "unknown setting 'extra'"),
        (lambda p: p | {"settings": p["settings"] | {"data_dir": "/"}}, "settings: it must"),
    ],
)
def test_plans_are_checked(tmp_path, change, said):
    plan = read_federation(Trial(tmp_path, "fedavg").federation).plan
    assert read_plan(plan.text()) == plan
    with pytest.raises(BadInput, match=said):
        read_plan(json.dumps(change(json.loads(plan.text()))))


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_messages_that_the_method_cannot_use_are_refused_at_joining(tmp_path, method):
    """They would end its first training, with a traceback in the site's log."""
    trial = Trial(tmp_path, method)
    plan = read_federation(trial.federation).plan
    spec = [[name, kind, [7] * max(1, len(shape))] for name, kind, shape in plan.message]
    site = Site(read_settings(trial.write_site(0, min_rows=1)))  # its classes have a few rows each

    def join(plan):
        header = {"protocol": PROTOCOL, "version": __version__, "federation": "trial", "round": 0}
        header |= {"plan": plan.fingerprint(), "kind": JOIN, "text": plan.text()}
        return site.answer(Packet(header, {})).header

    said = join(replace(plan, message=spec))
    assert (said["status"], said["code"]) == ("error", "plan")
    assert (
        f"method '{method}' cannot train on messages of its form (RuntimeError)" in said["detail"]
    )
    assert join(plan)["status"] == "ok"


def test_what_only_simulations_do_is_refused(tmp_path):
    trial = Trial(tmp_path, "fedavg")
    encoder: Encoder = trial.world.encoder
    config = make_config("pmixfed", {"model": "mlp", "join": "1:1"}, {})
    with pytest.raises(BadInput, match="it is for simulations"):
        make_training_plan(config, encoder, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('method = "fedavg"', "federation is missing: give a table"),
        ("[federation]\nid = 'a'\nsites = 3", "method is missing: give its name"),
        ("method = 'fedavg'\n[federation]\nid = 'a'\nsites = 0", "sites is 0"),
        ("method = 'fedavg'\n[federation]\nid = 'a'\nsites = 3\nspeed = 1", "unknown setting"),
        ("method = 'fedavg'\nspeed = 1\n[federation]\nid = 'a'\nsites = 3", "setting 'speed'"),
        ("method = 'fedavg'\n[federation]\nid = 'a/b'\nsites = 3", "federation id 'a/b'"),
        ("method = 'fedavg'\n[federation]\nsites = 3", "id is missing: give a name"),
        ("method = 'fedavg'\n[federation]\nid='a'\nsites=3\ndeadline=-1", "deadline is -1"),
        ("method = 'fedavg'\n[federation]\nid='a'\nsites=3\npreprocessing='no'", "cannot be read"),
        ("method = 'fedawg'\n[federation]\nid = 'a'\nsites = 3", "did you mean 'fedavg'"),
    ],
)
def test_slips_in_the_coordinators_file_are_named(tmp_path, text, said):
    path = tmp_path / "federation.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=said):
        read_federation(path)


def test_trial_data_need_no_preprocessing_file(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text('method = "fedavg"\ndata = "digits"\n[federation]\nid = "a"\nsites = 3\n')
    found = read_federation(path)
    assert found.plan.clients == 3 and found.plan.settings["model"] == "cnn"
