from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from fedif_consortium.federation import certificates
from fedif_consortium.federation.certificates import UnreachableError, reach, read_certificate
from fedif_consortium.federation.host_check import check_server
from fedif_flower.errors import ConfigError
from tests.consortium.federation.folders import https, serving

HOSTS = ["fl.example.org", "192.0.2.7", "2001:db8::7"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An authority, and a server at three hosts."""
    (tmp_path / "server.key").write_bytes(certificates.make_key())
    make_authority(tmp_path)
    (tmp_path / "server.crt").write_bytes(of_server(tmp_path, HOSTS))
    return tmp_path


def make_authority(files: Path) -> None:
    key = files / "ca.key"
    key.write_bytes(certificates.make_key())
    (files / "ca.crt").write_bytes(certificates.own_certificate(key, "consortium CA"))


def of_server(files: Path, hosts: list[str]) -> bytes:
    own, signing, authority = (files / name for name in ("server.key", "ca.key", "ca.crt"))
    return certificates.server_certificate(own, signing, authority, hosts)


def shake(files: Path, host: str) -> None:
    """Connect as a member does, with the strictest check: newer Pythons have it by default."""
    asking = ssl.create_default_context(cafile=files / "ca.crt")
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    answering = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    answering.load_cert_chain(files / "server.crt", files / "server.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = answering.wrap_bio(to_server, to_client, server_side=True)
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
    make_authority(files)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(files, "localhost")
    with pytest.raises(ConfigError, match="'a b' is neither a host's name nor an address"):
        of_server(files, ["a b"])


@pytest.mark.parametrize(
    ("known", "host", "is_for"),
    [
        ("Keeper.example.org", "keeper.EXAMPLE.org", True),
        ("*.example.org", "keeper.example.org", True),
        ("*.example.org", "a.keeper.example.org", False),
        ("*.example.org", "example.org", False),
        ("*.example.org", "org", False),
        ("192.0.2.7", "192.0.2.7", True),
        ("192.0.2.7", "192.0.2.8", False),
    ],
)
def test_a_host_is_one_of_a_certificate_s_as_tls_compares_them(
    files, monkeypatch, known, host, is_for
):
    monkeypatch.setattr(certificates, "_HOST_NAME", re.compile(r"[\w.*-]+"))  # Others make these.
    path = files / "server.crt"
    path.write_bytes(certificates.own_certificate(files / "server.key", "keeper", [known]))
    if is_for:
        certificates.require_hosts(path, [host])
        return
    with pytest.raises(ConfigError, match=f"is not for {host}:"):
        certificates.require_hosts(path, [host])


def test_a_server_s_certificate_signs_no_other_and_ends_before_its_authority(files):
    now = datetime.now(UTC)
    for name, is_authority, days in (("ca", True, 3650), ("server", False, 365)):
        found = read_certificate(files / f"{name}.crt")
        constraints = found.extensions.get_extension_for_class(x509.BasicConstraints).value
        assert constraints.ca == is_authority
        left = (found.not_valid_after_utc - now) / timedelta(days=1)
        assert left == pytest.approx(days, abs=0.1)
        assert found.not_valid_before_utc < now - timedelta(hours=1)


@pytest.mark.parametrize(("days", "status"), [(100, "ok"), (10, "warning"), (-0.5, "failed")])
def test_a_server_s_certificate_and_clock_are_looked_at(files, monkeypatch, days, status):
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", days)
    key, certificate = files / "server.key", files / "ca.crt"
    certificate.write_bytes(certificates.own_certificate(key, "test", ["127.0.0.1"]))
    with https(certificate, key) as address:
        found, *clock = check_server(address, certificate)
    assert found.status == status
    assert ("expired" if status == "failed" else "valid until 20") in found.words
    assert [one.status for one in clock] == ([] if status == "failed" else ["ok"])


@pytest.mark.parametrize(
    ("server_ahead", "status", "words"),
    [
        (0.5, "ok", "in step with the server's"),  # A date has no fractions.
        (-30.0, "failed", r"\d+ s ahead of .* lets in no member that is 5 s ahead"),
        (3600.0, "failed", r"\d+ s behind .* lets in no member that is 305 s behind"),
        (100.0, "warning", r"\d+ s behind the server's"),
        (30.0, "ok", r"\d+ s behind the server's"),
    ],
)
def test_a_clock_that_the_superlink_refuses_is_found(files, server_ahead, status, words):
    """Flower lets no registered member in that is 5 s ahead, or 305 s behind."""
    key, certificate = files / "server.key", files / "ca.crt"
    certificate.write_bytes(certificates.own_certificate(key, "test", ["127.0.0.1"]))
    with https(certificate, key, seconds_ahead=server_ahead) as address:
        _, clock = check_server(address, certificate)
    assert (clock.check, clock.status) == ("clock", status)
    assert re.fullmatch(words, clock.words)


def test_a_member_reaches_the_server_that_its_invitation_means(folder, files):
    with serving(folder, status=403) as settings:  # As a proxy answers other hosts.
        folder.configuration.write_text(settings)
        address = folder.settings().address
        assert reach(address, folder.authority)[0] == read_certificate(folder.certificate)
        with pytest.raises(UnreachableError, match=r"known by .*ca\.crt answers"):
            reach(address, files / "ca.crt")
    with pytest.raises(UnreachableError, match=f"answers at {address}"):
        reach(address, folder.authority)
    with (
        https(folder.certificate, folder.server_key, 500) as address,
        pytest.raises(UnreachableError, match="is not well: status 500"),
    ):
        reach(address, folder.authority)


def test_a_member_that_knows_two_authorities_reaches_the_server_before_and_after(tmp_path):
    """`cat ca.crt next/ca.crt`: from one authority to the next, without a day of silence."""
    for name in ("now", "next"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "server.key").write_bytes(certificates.make_key())
        make_authority(tmp_path / name)
        own = of_server(tmp_path / name, ["localhost", "127.0.0.1"])
        (tmp_path / name / "server.crt").write_bytes(own)
    both = tmp_path / "both.crt"
    both.write_bytes(b"".join((tmp_path / n / "ca.crt").read_bytes() for n in ("now", "next")))
    for name in ("now", "next"):
        folder = tmp_path / name
        with https(folder / "server.crt", folder / "server.key") as address:
            assert reach(address, both)[0] == read_certificate(folder / "server.crt")
            other = tmp_path / ("next" if name == "now" else "now") / "ca.crt"
            with pytest.raises(UnreachableError):
                reach(address, other)


def test_of_two_authorities_the_one_that_issued_says_how_long_the_server_is_known(
    tmp_path, monkeypatch
):
    """The old authority ends in ten days; the server has a certificate of the next one."""
    (tmp_path / "server.key").write_bytes(certificates.make_key())
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 10)
    make_authority(tmp_path)
    old = (tmp_path / "ca.crt").read_bytes()
    monkeypatch.undo()
    for name in ("ca.key", "ca.crt"):
        (tmp_path / name).unlink()
    make_authority(tmp_path)
    (tmp_path / "server.crt").write_bytes(of_server(tmp_path, ["localhost", "127.0.0.1"]))
    both = tmp_path / "both.crt"
    both.write_bytes(old + (tmp_path / "ca.crt").read_bytes())
    with https(tmp_path / "server.crt", tmp_path / "server.key") as address:
        validity, _ = check_server(address, both)
    assert validity.status == "ok"
