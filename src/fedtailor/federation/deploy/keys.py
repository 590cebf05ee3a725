"""Certificates and node keys for a trial; those of a real authority can take their place."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.errors import BadInput
from fedtailor.federation.protocol.certificates import certificate_end
from fedtailor.federation.protocol.ipc import write_private

DAYS, AUTHORITY_DAYS = 365, 3650
AUTHORITY_KEY = "authority.key"  # beside the authority's certificate; signs renewals
_NAME = "FedTailor trial authority"


class Certificates(NamedTuple):
    """Files for TLS."""

    authority: Path  # certificate that sites trust
    certificate: Path  # of the coordinator
    key: Path  # of the coordinator; nobody else may read it


def certificates_in(folder: Path) -> Certificates:
    """The files that `make_certificates` writes."""
    return Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _begun(subject: str, issuer: Any, key: Any, days: int) -> Any:
    """A certificate's first half: whose it is, who vouches, and for how long."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
    )


def _plain(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    encoding, secret = serialization.Encoding.PEM, serialization.NoEncryption()
    return bytes(key.private_bytes(encoding, form, secret))


def _write_leaf(made: Certificates, root: Any, above: Any, names: Sequence[Any], days: int) -> None:
    """A new certificate and key for the coordinator, in the place of those that are there."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    own = ec.generate_private_key(ec.SECP256R1())
    from_above = x509.AuthorityKeyIdentifier.from_issuer_public_key(above.public_key())
    leaf = (
        _begun(str(names[0].value), root.subject, own, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(from_above, critical=False)
        .sign(above, hashes.SHA256())
    )
    texts = {made.key: _plain(own), made.certificate: leaf.public_bytes(serialization.Encoding.PEM)}
    new = {path: path.with_name(f".{path.name}.new") for path in texts}
    for path, text in texts.items():
        write_private(new[path], text)
    new[made.certificate].chmod(0o644)
    for path, written in new.items():
        written.replace(path)


def make_certificates(folder: Path, hosts: Sequence[str], *, days: int = DAYS) -> Certificates:
    """A new authority, whose key is kept beside it, and a certificate for the coordinator.

    `hosts` are the names and addresses under which sites reach the coordinator.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    above = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    root = (
        _begun(_NAME, issuer, above, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(above.public_key()), False)
        .sign(above, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    made = certificates_in(folder)
    write_private(folder / AUTHORITY_KEY, _plain(above))
    made.authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    _write_leaf(made, root, above, [_general_name(host) for host in hosts], days)
    return made


def renew_authority(made: Certificates, hosts: Sequence[str]) -> datetime:
    """A new authority in the place of the old one; every site needs the new `ca.crt` then."""
    folder = made.authority.parent
    if made != certificates_in(folder):
        raise BadInput(
            f"'{made.authority}', '{made.certificate}', '{made.key}': not made by FedTailor: renew "
            "them where they come from"
        )
    make_certificates(folder, hosts)
    return certificate_end(made.certificate)


def renew_certificate(made: Certificates) -> datetime:
    """A new certificate and key for the coordinator, for the same names; returns when it ends.

    The authority stays, so sites need nothing new.

    Raises:
      BadInput: the authority's key is not there, or is another's.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    path = made.authority.with_name(AUTHORITY_KEY)
    if not path.is_file():
        raise BadInput(
            f"'{path}' is not there, which would sign a new certificate (FedTailor 0.2 kept none, "
            "an authority of your own has its own): put a signed one into "
            f"'{made.certificate}' and '{made.key}', or say --new-authority"
        )
    try:
        above = serialization.load_pem_private_key(path.read_bytes(), None)
        root = x509.load_pem_x509_certificate(made.authority.read_bytes())
        old = x509.load_pem_x509_certificate(made.certificate.read_bytes())
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise BadInput(f"certificates beside '{path}' cannot be renewed: {error}") from None
    if above.public_key() != root.public_key():
        raise BadInput(f"'{path}' is not the key of '{made.authority}': put the right one there")
    _write_leaf(made, root, above, list(names), DAYS)
    return certificate_end(made.certificate)


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
