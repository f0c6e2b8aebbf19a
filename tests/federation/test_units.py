from __future__ import annotations

from pathlib import Path

from fedif_flower.federation.units import node_unit

FOLDER = Path("/var/lib/fedif-node")


def test_a_guarded_node_s_unit_bounds_what_an_app_can_do_besides_its_replies():
    plain = node_unit(FOLDER, "/srv/data")
    assert "ReadOnlyPaths=/srv/data" in plain
    assert "SystemCallFilter" not in plain
    guarded = node_unit(FOLDER, "/srv/data", "192.0.2.7")
    assert "SystemCallFilter=@system-service" in guarded
    assert "IPAddressDeny=any\nIPAddressAllow=localhost 192.0.2.7\n" in guarded


def test_a_server_that_is_a_name_is_to_be_named_by_its_address():
    lines = node_unit(FOLDER, "", "fl.example.org").splitlines()
    assert "#IPAddressDeny=any" in lines
    assert not any(line.startswith("IPAddress") for line in lines)
