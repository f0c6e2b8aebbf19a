from __future__ import annotations

from fedif_consortium.federation.members import add, invite, remove
from fedif_consortium.federation.server import look
from tests.consortium.federation.folders import Registry, answer_of
from tests.consortium.federation.serving import serving


def test_members_are_as_the_superlink_knows_them(folder, tmp_path, monkeypatch):
    registry = Registry()
    for name in ("ada", "bob", "cyd", "dan"):
        add(folder, answer_of(folder, name, tmp_path / name), registry)
    invite(folder, "eve")
    remove(folder, "dan", registry)
    nodes = registry.nodes()
    nodes["1001"] |= {"status": "offline", "offline-at": "2026-10-01 12:00:00Z"}
    nodes["1002"] |= {"status": "registered"}
    monkeypatch.setattr(registry, "nodes", lambda: nodes)
    with serving(folder) as settings:
        folder.configuration.write_text(settings)
        seen = look(folder, registry)
    members = [[m[k] for k in ("name", "state", "online", "last_seen")] for m in seen["members"]]
    assert members == [
        ["ada", "registered", True, "now"],
        ["bob", "registered", False, "2026-10-01 12:00:00Z"],
        ["cyd", "registered", False, "never"],
        ["dan", "removed", False, "never"],
        ["eve", "invited", None, None],
    ]
    assert (seen["superlink"], seen["warnings"]) == ("", ["1 of 3 members are online"])
    assert seen["runs"][0]["run-id"] == "7"
