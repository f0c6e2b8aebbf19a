"""Certificates of a federation: its authority, its server, and pairs that know each other."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedif_consortium.evidence.keys import content_fingerprint
from fedif_flower.errors import ConfigError

AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
_BEFORE = timedelta(days=1)  # A member's clock may be slow.
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey  # RSA: of an authority made by openssl.
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*")


def make_key() -> bytes:
    """Return a new private key of the curve P-256, as PEM.

    A handshake costs the server a signature: a hundredth of what it costs with RSA.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def authority_certificate(key: Path, federation: str) -> bytes:
    """Return the certificate of a federation's authority, as PEM, under its private key."""
    name = _named(f"{federation} CA")
    private = _read_key(key)
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = (
        _builder(name, name, private, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
    )
    return _signed(builder, private)


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
    private = _read_key(key)
    builder = (
        _builder(_named(hosts[0]), issuer.subject, private, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=False)
        .add_extension(_usage(digital_signature=True), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
    )
    return _signed(builder, signer)


def pinned_certificate(key: Path, name: str, hosts: Sequence[str] = ()) -> bytes:
    """Return a certificate, as PEM, signed by its own key: its one peer has a copy of it."""
    private = _read_key(key)
    builder = (
        _builder(_named(name), _named(name), private, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_alternative_names(hosts), critical=False)
    )
    return _signed(builder, private)


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


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Return the names and addresses that a certificate is good for."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def require_handshake(certificate: Path, key: Path, authority: Path, host: str) -> None:
    """Raise ConfigError unless a member that knows the authority trusts the server at ``host``."""
    try:
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(certificate, key)
        asking = ssl.create_default_context(cafile=authority)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = serving.wrap_bio(to_server, to_client, server_side=True)
        client = asking.wrap_bio(to_client, to_server, server_hostname=host)
        for _ in range(2):  # Hello and answer; certificate's check and the end.
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        client.do_handshake()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{certificate} does not work for {host}: {error}") from error


def _read_key(path: Path) -> _Key:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} is no unencrypted private key in PEM: {error}") from error
    if not isinstance(key, _Key):
        raise ConfigError(f"{path} is no key of an elliptic curve, and no RSA key")
    return key


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: _Key, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys([*LOOPBACK, *hosts]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if len(host) > 253 or not _HOST_NAME.fullmatch(host):
                raise ConfigError(f"{host!r} is neither a host's name nor an address") from None
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


def _signed(builder: x509.CertificateBuilder, signer: _Key) -> bytes:
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)
