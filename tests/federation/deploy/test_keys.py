"""Certificates: they end, somebody is told, and they are renewed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs flwr: pip install 'fedtailor[flower]'")

from cryptography import x509

from fedtailor.core.errors import BadInput
from fedtailor.federation.deploy.keys import (
    AUTHORITY_KEY,
    make_certificates,
    renew_authority,
    renew_certificate,
)
from fedtailor.federation.deploy.project import Project, certificate_lines
from fedtailor.federation.protocol.certificates import certificate_end, expiry_line

HOSTS = ["hub.example.org", "127.0.0.1", "::1"]


def names(path: Path) -> list[str]:
    made = x509.load_pem_x509_certificate(path.read_bytes())
    san = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in san]


def test_a_renewed_certificate_is_the_old_ones_heir(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, HOSTS, days=3)
    assert (tmp_path / AUTHORITY_KEY).stat().st_mode & 0o077 == 0
    before = [path.read_bytes() for path in made]
    end = renew_certificate(made)
    after = [path.read_bytes() for path in made]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False]
    assert names(made.certificate) == HOSTS and end == certificate_end(made.certificate)
    assert timedelta(days=364) < end - datetime.now(UTC) <= timedelta(days=365)
    root, leaf = (x509.load_pem_x509_certificate(path.read_bytes()) for path in made[:2])
    leaf.verify_directly_issued_by(root)
    assert made.key.stat().st_mode & 0o077 == 0
    assert not list(tmp_path.glob(".*"))


def test_without_the_authoritys_key_the_way_out_is_said(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, HOSTS)
    kept = (tmp_path / AUTHORITY_KEY).read_bytes()
    (tmp_path / AUTHORITY_KEY).unlink()
    with pytest.raises(BadInput, match="--new-authority"):
        renew_certificate(made)
    before = made.authority.read_bytes()
    renew_authority(made, HOSTS)
    assert made.authority.read_bytes() != before and names(made.certificate) == HOSTS
    (tmp_path / AUTHORITY_KEY).write_bytes(kept)
    with pytest.raises(BadInput, match="not the key of"):
        renew_certificate(made)
    with pytest.raises(BadInput, match="not made by FedTailor"):
        renew_authority(made._replace(key=tmp_path / "own.key"), HOSTS)


@pytest.mark.parametrize(("days", "said"), [(31, ""), (29, "in 29 days: renew"), (-1, "ended on")])
def test_thirty_days_before_its_end_it_is_said(tmp_path: Path, days: int, said: str) -> None:
    made = make_certificates(tmp_path, HOSTS)
    end = certificate_end(made.certificate)
    line = expiry_line(made.certificate, "renew", now=end - timedelta(days=days))
    assert bool(line) == bool(said) and said in line
    assert not said or f"{end:%Y-%m-%d}" in line
    assert "cannot be read" in expiry_line(tmp_path / "none.pem", "renew")


def test_the_project_says_which_and_what_to_do(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, HOSTS, days=10)
    project = Project(
        folder=tmp_path,
        authority=made.authority,
        certificate=made.certificate,
        key=made.key,
    )
    (line,) = certificate_lines(project)
    assert "server.pem" in line and f"federation renew {tmp_path}" in line
    renew_certificate(made)
    assert certificate_lines(project) == []
