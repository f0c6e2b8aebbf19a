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

HOSTS = ["fl.example.org", "192.0.2.7", "2001:db8::7"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An authority, and a server at three hosts."""
    for name in ("ca", "server"):
        (tmp_path / f"{name}.key").write_bytes(make_key())
    (tmp_path / "ca.crt").write_bytes(own_certificate(tmp_path / "ca.key", "consortium CA"))
    (tmp_path / "server.crt").write_bytes(of_server(tmp_path, HOSTS))
    return tmp_path


def of_server(files: Path, hosts: list[str]) -> bytes:
    return server_certificate(files / "server.key", files / "ca.key", files / "ca.crt", hosts)


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


def test_a_member_trusts_the_server_at_each_of_its_hosts_and_under_its_authority_alone(files):
    for host in (*HOSTS, "localhost", "::1"):
        shake(files, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(files, "other.example.org")
    (files / "ca.key").write_bytes(make_key())
    (files / "ca.crt").write_bytes(own_certificate(files / "ca.key", "consortium CA"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(files, "localhost")


def test_a_server_s_certificate_signs_no_other_and_ends_before_its_authority(files):
    now = datetime.now(UTC)
    for name, is_authority, days in (("ca", True, 3650), ("server", False, 365)):
        found = read_certificate(files / f"{name}.crt")
        constraints = found.extensions.get_extension_for_class(x509.BasicConstraints).value
        assert constraints.ca == is_authority
        left = (found.not_valid_after_utc - now) / timedelta(days=1)
        assert left == pytest.approx(days, abs=0.1)
        assert found.not_valid_before_utc < now - timedelta(hours=1)


def test_a_host_that_is_none_is_refused(files):
    with pytest.raises(ConfigError, match="'a b' is neither a host's name nor an address"):
        of_server(files, ["a b"])
