from __future__ import annotations

import pytest

import fedif_consortium.federation.certificates as certificates
from fedif_consortium.federation.certificates import UnreachableError, reach, read_certificate
from fedif_consortium.federation.members import add, invite, remove
from fedif_consortium.federation.status import look
from tests.consortium.federation.folders import Registry, answer_of
from tests.consortium.federation.serving import serving


@pytest.fixture
def registry():
    return Registry()


def seen_while_serving(folder, registry, status=200):
    with serving(folder, status) as settings:
        folder.configuration.write_text(settings)
        return look(folder, registry)


def test_members_are_as_the_superlink_knows_them(folder, tmp_path, registry, monkeypatch):
    for name in ("ada", "bob", "cyd", "dan"):
        add(folder, answer_of(folder, name, tmp_path / name), registry)
    invite(folder, "eve")
    remove(folder, "dan", registry)
    nodes = registry.nodes()
    nodes["1001"] |= {"status": "offline", "offline-at": "2026-10-01 12:00:00Z"}
    nodes["1002"] |= {"status": "registered"}
    monkeypatch.setattr(registry, "nodes", lambda: nodes)
    seen = seen_while_serving(folder, registry)
    assert [
        tuple(m[k] for k in ("name", "state", "online", "last_seen")) for m in seen["members"]
    ] == [
        ("ada", "registered", True, "now"),
        ("bob", "registered", False, "2026-10-01 12:00:00Z"),
        ("cyd", "registered", False, "never"),
        ("dan", "removed", False, "never"),
        ("eve", "invited", None, None),
    ]
    assert (seen["superlink"], seen["warnings"]) == ("", ["1 of 3 members are online"])
    assert seen["runs"][0]["run-id"] == "7"


def test_a_member_reaches_the_server_that_its_invitation_means(folder, tmp_path, monkeypatch):
    with serving(folder, status=403) as settings:  # As a proxy answers other hosts.
        folder.configuration.write_text(settings)
        address = folder.settings().address
        assert reach(address, folder.authority) == read_certificate(folder.certificate)
        monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 5)
        other = tmp_path / "other.crt"
        other.write_bytes(certificates.own_certificate(folder.server_key, "other"))
        with pytest.raises(UnreachableError, match=r"known by .*other\.crt answers"):
            reach(address, other)
    with pytest.raises(UnreachableError, match=f"answers at {address}"):
        reach(address, folder.authority)
