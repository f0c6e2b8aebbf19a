from __future__ import annotations

import pytest

from fedif_consortium.federation import certificates
from fedif_consortium.federation.host_check import check_key, check_server
from fedif_flower.client.preflight import tried
from tests.consortium.federation.serving import https
from tests.consortium.member.bundles import node_key


def test_the_key_that_the_guard_signs_with_is_read(tmp_path):
    path = tmp_path / "node.key"

    def found():
        return tried("signing-key", lambda: check_key(path))

    assert "No such file" in found().words
    path.write_text("no key")
    assert "is no private key" in found().words
    path.write_bytes(node_key())
    path.chmod(0o644)
    assert (found().status, "chmod 600" in found().words) == ("warning", True)
    path.chmod(0o600)
    assert found().status == "ok"


@pytest.mark.parametrize(("days", "status"), [(100, "ok"), (10, "warning"), (-0.5, "failed")])
def test_a_server_s_certificate_and_clock_are_looked_at(tmp_path, monkeypatch, days, status):
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", days)
    (key := tmp_path / "server.key").write_bytes(certificates.make_key())
    pem = certificates.own_certificate(key, "test", ["127.0.0.1"])
    (certificate := tmp_path / "ca.crt").write_bytes(pem)
    with https(certificate, key, 404) as address:
        found, clock = check_server(address, certificate)
    assert found.status == status
    if status == "failed":
        assert "expired" in found.words
        assert (clock.status, clock.words) == ("warning", "the server told no time")
    else:
        assert found.words.startswith("valid until 20")
        assert clock.status == "ok"
