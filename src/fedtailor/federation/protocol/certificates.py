"""When a certificate ends, said in time to do something about it."""

from __future__ import annotations

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
