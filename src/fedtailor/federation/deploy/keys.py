"""Certificates and node keys for a trial; those of a real authority can take their place."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from fedtailor.federation.protocol.ipc import write_private

DAYS = 365


class Certificates(NamedTuple):
    """Files for TLS."""

    authority: Path  # certificate that sites trust
    certificate: Path  # of the coordinator
    key: Path  # of the coordinator; nobody else may read it


def make_certificates(folder: Path, hosts: Sequence[str]) -> Certificates:
    """A new authority and a certificate for the coordinator; the authority's key is not kept.

    `hosts` are the names and addresses under which sites reach the coordinator.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def san(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    now = datetime.now(UTC)
    above, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def begun(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("FedTailor trial authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=DAYS))
        )

    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    from_above = x509.AuthorityKeyIdentifier.from_issuer_public_key(above.public_key())
    root = (
        begun("FedTailor trial authority", above)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(above.public_key()), False)
        .sign(above, hashes.SHA256())
    )
    leaf = (
        begun(hosts[0], own)
        .add_extension(x509.SubjectAlternativeName([san(h) for h in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(from_above, critical=False)
        .sign(above, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    made.authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    made.certificate.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    plain = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(made.key, plain)
    return made


def make_node_key(path: Path) -> Path:
    """A new key by which the coordinator knows a site; the public half is `PATH.pub`."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    write_private(path, private)
    public = path.with_name(path.name + ".pub")
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        + b"\n"
    )
    return public
