"""What is wrong with a certificate, or soon will be, and what to do about it."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

NOTICE = 30  # days


def certificate_end(path: Path, *, trusted: bool = False) -> datetime:
    """When a certificate's file is of no more use: a chain's first end, but a trusted one's last.

    Raises:
      ValueError, OSError: it is no certificate, or cannot be read.
    """
    from cryptography import x509

    ends = [
        found.not_valid_after_utc for found in x509.load_pem_x509_certificates(path.read_bytes())
    ]
    return max(ends) if trusted else min(ends)


def expiry_line(
    path: Path, cure: str, *, trusted: bool = False, now: datetime | None = None
) -> str:
    """A line about a certificate that ends soon or cannot be read; empty if all is well."""
    try:
        end = certificate_end(path, trusted=trusted)
    except (OSError, ValueError) as error:
        return f"certificate '{path}' cannot be read ({error}): {cure}"
    days = (end - (now or datetime.now(UTC))).total_seconds() / 86400
    if days > NOTICE:
        return ""
    when = f"ends on {end:%Y-%m-%d}, in {days:.0f} days" if days > 0 else f"ended on {end:%Y-%m-%d}"
    return f"certificate '{path}' {when}: {cure}"


# what OpenSSL numbers so
_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64


def tls_trouble(address: str, authority: Path, name: str = "") -> str:
    """A line about the certificate that is shown at `HOST:PORT`; empty if it holds, or none is.

    `name` is what it should be for, if that is another than the host's.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=authority)
        with socket.create_connection((host, int(port)), timeout=5.0) as plain:
            context.wrap_socket(plain, server_hostname=name or host).close()
    except ssl.SSLCertVerificationError as error:
        renew = "at the coordinator, make a new one with fedtailor federation renew"
        why = {
            _EXPIRED: f"has expired: {renew}, or set this machine's clock",
            _NOT_YET: f"is not valid yet: set the clock of this machine, or {renew}",
        }.get(error.verify_code, f"is not of the authority in '{authority}': ask for its ca.crt")
        if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
            why = (
                f"is not for '{name or host}': reach the coordinator under a name that is in it, "
                "or have one made with this name"
            )
        return f"the certificate that is shown at {address} {why}"
    except (OSError, ValueError):  # nobody is there, or it is no TLS: others say so
        return ""
    return ""
