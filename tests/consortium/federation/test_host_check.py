from __future__ import annotations

import pytest

from fedif_consortium.federation import certificates
from fedif_consortium.federation.certificates import UnreachableError, reach, read_certificate
from fedif_consortium.federation.host_check import check_server
from tests.consortium.federation.serving import https, serving


@pytest.mark.parametrize(("days", "status"), [(100, "ok"), (10, "warning"), (-0.5, "failed")])
def test_a_server_s_certificate_and_clock_are_looked_at(tmp_path, monkeypatch, days, status):
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", days)
    (key := tmp_path / "server.key").write_bytes(certificates.make_key())
    pem = certificates.own_certificate(key, "test", ["127.0.0.1"])
    (certificate := tmp_path / "ca.crt").write_bytes(pem)
    with https(certificate, key) as address:
        found, *clock = check_server(address, certificate)
    assert found.status == status
    assert ("expired" if status == "failed" else "valid until 20") in found.words
    assert [one.status for one in clock] == ([] if status == "failed" else ["ok"])


def test_a_member_reaches_the_server_that_its_invitation_means(folder, tmp_path):
    with serving(folder, status=403) as settings:  # As a proxy answers other hosts.
        folder.configuration.write_text(settings)
        address = folder.settings().address
        assert reach(address, folder.authority)[0] == read_certificate(folder.certificate)
        other = tmp_path / "other.crt"
        other.write_bytes(certificates.own_certificate(folder.server_key, "other"))
        with pytest.raises(UnreachableError, match=r"known by .*other\.crt answers"):
            reach(address, other)
    with pytest.raises(UnreachableError, match=f"answers at {address}"):
        reach(address, folder.authority)
    with (
        https(folder.certificate, folder.server_key, 500) as address,
        pytest.raises(UnreachableError, match="is not well: status 500"),
    ):
        reach(address, folder.authority)
