from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from fedif_consortium.federation.certificates import (
    make_key,
    own_certificate,
    read_certificate,
    server_certificate,
)
from fedif_flower.errors import ConfigError


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An authority, and a server at two hosts."""
    for name in ("ca", "server"):
        (tmp_path / f"{name}.key").write_bytes(make_key())
    (tmp_path / "ca.crt").write_bytes(own_certificate(tmp_path / "ca.key", "consortium CA"))
    write_server(tmp_path, ["fl.example.org", "192.0.2.7", "2001:db8::7"])
    return tmp_path


def write_server(files: Path, hosts: list[str]) -> None:
    pem = server_certificate(files / "server.key", files / "ca.key", files / "ca.crt", hosts)
    (files / "server.crt").write_bytes(pem)


def shake(files: Path, host: str) -> None:
    """Connect as a member does, with the strictest check: newer Pythons have it by default."""
    asking = ssl.create_default_context(cafile=files / "ca.crt")
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(files / "server.crt", files / "server.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    client = asking.wrap_bio(to_client, to_server, server_hostname=host)
    for side in (client, server):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    client.do_handshake()


@pytest.mark.parametrize("host", ["fl.example.org", "192.0.2.7", "2001:db8::7", "localhost", "::1"])
def test_a_member_trusts_the_server_at_each_of_its_hosts(files, host):
    shake(files, host)


def test_a_member_does_not_trust_it_elsewhere_or_under_another_authority(files):
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(files, "other.example.org")
    (files / "ca.key").write_bytes(make_key())
    (files / "ca.crt").write_bytes(own_certificate(files / "ca.key", "consortium CA"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(files, "localhost")


def test_a_server_s_certificate_signs_no_other_and_ends_before_its_authority(files):
    authority, server = (read_certificate(files / f"{name}.crt") for name in ("ca", "server"))
    is_ca = [
        c.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        for c in (authority, server)
    ]
    assert is_ca == [True, False]
    now = datetime.now(UTC)
    days = [(c.not_valid_after_utc - now) / timedelta(days=1) for c in (authority, server)]
    assert days == pytest.approx([3650, 365], abs=0.1)
    assert server.not_valid_before_utc < now - timedelta(hours=1)


def test_what_does_not_belong_together_is_refused(files):
    with pytest.raises(ConfigError, match="'a b' is neither a host's name nor an address"):
        write_server(files, ["a b"])
    (files / "ca.key").write_bytes(make_key())
    with pytest.raises(ConfigError, match=r"ca\.crt is not the certificate of .*ca\.key"):
        write_server(files, ["localhost"])
