"""Certificates of a federation: of its authority, of its server, and of pairs of peers."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedif_consortium.evidence.keys import SigningKey, content_fingerprint, read_key_file
from fedif_flower.errors import ConfigError, FedIFError, require
from fedif_flower.foreign import refused_as

AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
SOON = timedelta(days=30)  # A certificate that ends within this time is worth a warning.
SECONDS = 10.0  # How long to wait for a server's answer.
_BEFORE = timedelta(days=1)  # Certificates begin a day early, since a member's clock may be slow.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*")
# The key usage of certificates that sign other certificates.
_SIGNS = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


class UnreachableError(FedIFError):
    """No server answers at an address, or another one than was expected."""


def make_key() -> bytes:
    """Return a new private key on the curve P-256, as PEM.

    Each TLS handshake costs the server a signature, which is a hundred times cheaper than with RSA.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def own_certificate(key: Path, name: str, hosts: Sequence[str] | None = None) -> bytes:
    """Return a certificate as PEM that is signed with its own key.

    Parameters
    ----------
    key : Path
        The file of the private key.
    name : str
        The holder's name.
    hosts : sequence of str, optional
        ``None``: the certificate is for a federation's authority. Otherwise it is for a peer with
        these names or addresses, which may be none, and the other peer trusts a copy of it.

    Raises
    ------
    ConfigError
        If the file holds no key, or a host is neither a name nor an address.
    """
    private_key = read_key_file(key, "key")
    builder = _builder(name, private_key, AUTHORITY_DAYS).issuer_name(_common_name(name))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(_SIGNS, critical=True)
    if hosts is not None:
        builder = builder.add_extension(_alternative_names(hosts), critical=False)
    return builder.sign(private_key, hashes.SHA256()).public_bytes(Encoding.PEM)


def server_certificate(
    key: Path, authority_key: Path, authority: Path, hosts: Sequence[str]
) -> bytes:
    """Return a server's certificate as PEM, signed by the federation's authority.

    Parameters
    ----------
    key : Path
        The file of the server's private key.
    authority_key, authority : Path
        The files of the authority's private key and of its certificate.
    hosts : sequence of str
        The server's names or addresses, at least one. ``localhost`` and its addresses are added.

    Raises
    ------
    ConfigError
        If a file holds no key or certificate, or a host is neither a name nor an address.
    """
    signer = read_key_file(authority_key, "key")
    builder = _builder(hosts[0], read_key_file(key, "key"), SERVER_DAYS)
    builder = builder.issuer_name(read_certificate(authority).subject)
    for extension in (
        x509.BasicConstraints(ca=False, path_length=None),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        _alternative_names(hosts),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    ):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


def read_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate in a file.

    Raises
    ------
    ConfigError
        If the file cannot be read, or holds no certificate.
    """
    return read_authorities(path)[0]


def read_authorities(path: Path) -> list[x509.Certificate]:
    """Return all certificates in a file; a member may trust several authorities.

    Raises
    ------
    ConfigError
        If the file cannot be read, or holds no certificate.
    """
    with refused_as(ConfigError, f"{path} is no certificate in PEM"):
        return x509.load_pem_x509_certificates(path.read_bytes())


def require_for_supernode(path: Path) -> None:
    """Raise ConfigError unless Flower's SuperNode can read the certificates in a file."""
    read_authorities(path)
    if not path.read_bytes().isascii():
        raise ConfigError(
            f"{path} has letters beyond ASCII, at which Flower's SuperNode stops: remove the "
            "comments beside its certificates"
        )


def require_pair(certificate: Path, key: Path) -> None:
    """Raise ConfigError unless a file holds the private key of a certificate, unencrypted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with refused_as(ConfigError, f"{key} is not the private key of {certificate}"):
        # Without a password, OpenSSL would ask for one in the terminal.
        context.load_cert_chain(certificate, key, password="")


def require_hosts(path: Path, hosts: Sequence[str]) -> None:
    """Raise ConfigError unless a certificate is for all of ``hosts``, names or addresses."""
    extensions = read_certificate(path).extensions
    host_names: list[x509.GeneralName] = []
    with suppress(x509.ExtensionNotFound):
        host_names += extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    missing = [host for host in hosts if not _is_for(host_names, _host_name(host))]
    if missing:
        raise ConfigError(
            f"{path} is there, and is not for {', '.join(missing)}: move it away, and the same "
            "command makes another"
        )


def _is_for(host_names: Sequence[x509.GeneralName], host: x509.GeneralName) -> bool:
    """Return whether a host is among those of a certificate, by the rules of TLS.

    Names are compared without their case, and ``*.`` stands for one label.
    """
    if not isinstance(host, x509.DNSName):
        return host in host_names
    names = {name.value.lower() for name in host_names if isinstance(name, x509.DNSName)}
    host_name = host.value.lower()
    _, _, domain = host_name.partition(".")
    return host_name in names or f"*.{domain}" in names


def authority_of(certificate: x509.Certificate, path: Path) -> x509.Certificate:
    """Return the certificate in a file whose holder issued ``certificate``.

    Raises
    ------
    ConfigError
        If no certificate in the file did, or the file cannot be read.
    """
    for authority in read_authorities(path):
        with suppress(ValueError, TypeError, InvalidSignature):
            certificate.verify_directly_issued_by(authority)
            return authority
    raise ConfigError(f"no certificate in {path} has issued the server's")


def certificate_fingerprint(pem: str) -> str:
    """Return the fingerprint of a certificate in PEM, for people to compare.

    It is the first 16 bytes of the SHA-256 of its DER, as hex digits in groups of four.

    Raises
    ------
    ConfigError
        If the text is no certificate.
    """
    with refused_as(ConfigError, "certificate is no certificate in PEM"):
        certificate = x509.load_pem_x509_certificate(pem.encode())
    return fingerprint_of(certificate)


def single_certificate(pem: str) -> str:
    """Return the only certificate in a text, as PEM without anything around it.

    A fingerprint is that of one certificate. A second one in an invitation would be trusted though
    nobody compared it.

    Raises
    ------
    ConfigError
        If the text holds no certificate, or several.
    """
    with refused_as(ConfigError, "certificate is no certificate in PEM"):
        certificates = x509.load_pem_x509_certificates(pem.encode())
    require(len(certificates) == 1, "certificate", f"{len(certificates)} of them", "one")
    return certificates[0].public_bytes(Encoding.PEM).decode()


def fingerprint_of(certificate: x509.Certificate) -> str:
    """Return the fingerprint of a certificate object, see :func:`certificate_fingerprint`."""
    return content_fingerprint(certificate.public_bytes(Encoding.DER))


def reach(address: str, authority: Path) -> tuple[x509.Certificate, str]:
    """Connect to a SuperLink as a member does; return its certificate and its date.

    The date is the HTTP header, by the server's clock; empty if there is none.

    Raises
    ------
    UnreachableError
        If no server with a certificate of the authority answers, or it answers with an error.
    """
    try:
        context = ssl.create_default_context(cafile=authority)
        url = f"https://{address}/health"
        with httpx.stream("GET", url, verify=context, timeout=SECONDS, trust_env=False) as answer:
            connection = answer.extensions["network_stream"].get_extra_info("socket")
            certificate = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True))
            status = answer.status_code
            date = answer.headers.get("date", "")
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreachableError(
            f"no server that is known by {authority} answers at {address}: {error}"
        ) from error
    if status not in (200, 403):  # A proxy answers /health with 403 to other hosts.
        raise UnreachableError(f"the server at {address} is not well: status {status}")
    return certificate, date


def _common_name(name: str) -> x509.Name:
    # X.509 allows no more than 64 characters.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(name: str, key: SigningKey, days: int) -> x509.CertificateBuilder:
    """Return a builder with what every certificate has: holder, key, serial number and dates."""
    now = datetime.now(UTC)
    public_key = key.public_key()
    builder = x509.CertificateBuilder(
        subject_name=_common_name(name),
        public_key=public_key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _BEFORE,
        not_valid_after=now + timedelta(days),
    )
    key_identifier = x509.SubjectKeyIdentifier.from_public_key(public_key)
    return builder.add_extension(key_identifier, critical=False)


def _alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    """Return the names and addresses for a certificate: those of localhost, and ``hosts``."""
    names = dict.fromkeys([*_LOOPBACK, *hosts])
    return x509.SubjectAlternativeName([_host_name(name) for name in names])


def _host_name(host: str) -> x509.GeneralName:
    """Return a host's name or address in the form of a certificate; raise ConfigError if neither.

    ``host`` is a name or an IP address.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if len(host) > 253 or not _HOST_NAME.fullmatch(host):
            raise ConfigError(f"{host!r} is neither a host's name nor an address") from None
        return x509.DNSName(host)
