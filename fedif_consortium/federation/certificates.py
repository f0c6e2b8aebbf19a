"""Certificates of a federation: its authority, its server, and pairs that know each other."""

from __future__ import annotations

import http.client
import ipaddress
import re
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedif_consortium.evidence.keys import content_fingerprint
from fedif_consortium.federation.documents import split_address
from fedif_flower.errors import ConfigError, FedIFError

AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
SECONDS = 10.0  # For an answer.
_BEFORE = timedelta(days=1)  # A member's clock may be slow.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*")
_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class UnreachableError(FedIFError):
    """No server answers at an address, or it is not the one that was meant."""


def make_key() -> bytes:
    """Return a new private key of the curve P-256, as PEM.

    A handshake costs the server a signature: a hundredth of what it costs with RSA.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def own_certificate(key: Path, name: str, hosts: Sequence[str] | None = None) -> bytes:
    """Return a certificate, as PEM, that a key signs for itself.

    Of a federation's authority; or with hosts, even none, of one whose only peer has a copy of it.
    """
    private, named = _read_key(key), _named(name)
    uses = {**dict.fromkeys(_USES, False), "key_cert_sign": True, "digital_signature": True}
    extensions = [
        (x509.BasicConstraints(ca=True, path_length=None), True),
        (x509.KeyUsage(**uses), True),
        *([(_alternative_names(hosts), False)] if hosts is not None else []),
    ]
    return _certificate(named, private, AUTHORITY_DAYS, extensions, named, private)


def server_certificate(
    key: Path, authority_key: Path, authority: Path, hosts: Sequence[str]
) -> bytes:
    """Return a server's certificate, as PEM, for names or addresses, and for this host's own.

    Raises
    ------
    ConfigError
        If a file is no key or certificate, the two of the authority do not belong together, or a
        host is neither a name nor an address.
    """
    issuer, signer = read_certificate(authority), _read_key(authority_key)
    names = _alternative_names(hosts)
    if signer.public_key() != issuer.public_key():
        raise ConfigError(f"{authority} is not the certificate of {authority_key}")
    extensions = [
        (x509.BasicConstraints(ca=False, path_length=None), False),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (names, False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ]
    own = _named(hosts[0])
    return _certificate(own, _read_key(key), SERVER_DAYS, extensions, issuer.subject, signer)


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate's file.

    Raises
    ------
    ConfigError
        If it cannot be read, or is none.
    """
    try:
        return load_certificate(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def load_certificate(pem: bytes, name: str) -> x509.Certificate:
    """Return a certificate; ``name`` is what an error calls it."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise ConfigError(f"{name} is no certificate in PEM") from error


def certificate_fingerprint(certificate: x509.Certificate) -> str:
    """Return what people compare of a certificate: 16 bytes of its SHA-256, in groups of four."""
    return content_fingerprint(certificate.public_bytes(Encoding.DER))


def reach(address: str, authority: Path) -> x509.Certificate:
    """Return the certificate of a SuperLink that is well, reached as a member reaches it.

    Raises
    ------
    UnreachableError
        Naming the address, and what is wrong.
    """
    host, port = split_address(address)
    try:
        context = ssl.create_default_context(cafile=authority)
        connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
        try:
            connection.connect()
            shown = connection.sock.getpeercert(binary_form=True) or b""
            connection.request("GET", "/health")
            # A proxy tells other hosts only that it is there.
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
    return x509.load_der_x509_certificate(shown)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} is no unencrypted private key in PEM: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is no key of an elliptic curve")
    return key


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
) -> bytes:
    """Return a certificate with extensions, each of which may be critical."""
    now, public = datetime.now(UTC), key.public_key()
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=public,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _BEFORE,
        not_valid_after=now + timedelta(days),
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    for extension, critical in [*extensions, (identifier, False)]:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


def _alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys([*_LOOPBACK, *hosts]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if len(host) > 253 or not _HOST_NAME.fullmatch(host):
                raise ConfigError(f"{host!r} is neither a host's name nor an address") from None
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)
