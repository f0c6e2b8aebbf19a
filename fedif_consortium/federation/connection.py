"""Whether a server answers at an address, and is the one whose authority is known."""

from __future__ import annotations

import http.client
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from fedif_consortium.federation.folder import split_address
from fedif_flower.errors import FedIFError

SECONDS = 10.0


class UnreachableError(FedIFError):
    """No server answers at an address, or it is not the one that was meant."""


@dataclass(frozen=True)
class Reached:
    """A server that answered: the certificate it showed, and how long it took."""

    certificate: x509.Certificate
    seconds: float


def reach(address: str, authority: Path, seconds: float = SECONDS) -> Reached:
    """Connect to a SuperLink as a member does, and ask whether it is well.

    Raises
    ------
    UnreachableError
        Naming the address, and what is wrong.
    """
    host, port = split_address(address)
    begun = time.monotonic()
    try:
        context = ssl.create_default_context(cafile=authority)
        connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
        try:
            connection.connect()
            shown = connection.sock.getpeercert(binary_form=True) or b""
            connection.request("GET", "/health")
            # A guarded SuperLink tells other hosts only that it is there.
            status = connection.getresponse().status
        finally:
            connection.close()
    except ssl.SSLCertVerificationError as error:
        raise UnreachableError(
            f"the server at {address} is not the one of {authority}: {error.verify_message}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise UnreachableError(f"nobody answers at {address}: {reason}") from error
    if status not in (200, 403):
        raise UnreachableError(f"the server at {address} is not well: status {status}")
    return Reached(x509.load_der_x509_certificate(shown), time.monotonic() - begun)
