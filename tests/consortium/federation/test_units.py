from __future__ import annotations

from pathlib import Path

import pytest

from fedif_consortium.federation.units import keeper_unit, node_unit, superlink_unit

FOLDER = Path("/var/lib/fedif node")


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/opt/fedif-flower/.venv/bin")


def lines(unit: str) -> list[str]:
    return unit.splitlines()


@pytest.mark.parametrize(
    ("unit", "command"),
    [
        (superlink_unit(FOLDER), 'federation superlink --in "/var/lib/fedif node" -- --log-file'),
        (node_unit(FOLDER, "a:1", "", ""), 'node start --in "/var/lib/fedif node"'),
        (keeper_unit(FOLDER), 'keeper --policy "/var/lib/fedif node/keeper.toml"'),
    ],
)
def test_a_unit_starts_a_command_and_writes_into_one_folder(unit, command):
    (start,) = [line for line in lines(unit) if line.startswith("ExecStart=")]
    assert f"fedif {command}" in start
    assert 'ReadWritePaths="/var/lib/fedif node"' in lines(unit)
    assert {"NoNewPrivileges=true", "ProtectSystem=strict"} <= set(lines(unit))


def test_a_node_connects_to_its_server_alone():
    found = lines(node_unit(FOLDER, "[2001:db8::7]:9092", "", ""))
    assert {"IPAddressDeny=any", "IPAddressAllow=localhost 2001:db8::7"} <= set(found)
    by_name = lines(node_unit(FOLDER, "fl.example.org:9092", "", ""))
    assert "# IPAddressAllow=localhost ADDRESS-OF-fl.example.org" in by_name
    assert not any(line.startswith("IPAddress") for line in by_name)


def test_what_a_node_reads_is_not_for_writing():
    folder = Path("/var/lib/fedif")
    found = lines(node_unit(folder, "a:1", "/data/x-rays", "/etc/fedif/member-policy.toml"))
    files = " ".join(f"/var/lib/fedif/{name}" for name in ("node.toml", "node.key", "ca.crt"))
    assert f"ReadOnlyPaths={files} /etc/fedif/member-policy.toml /data/x-rays" in found
    found = lines(node_unit(folder, "a:1", "/srv/x-rays", ""))
    assert {"TemporaryFileSystem=/srv", "BindReadOnlyPaths=/srv/x-rays"} <= set(found)
    # What the node itself needs is not hidden.
    found = lines(node_unit(Path("/srv/fedif"), "a:1", "/srv/x-rays", ""))
    assert "TemporaryFileSystem=/srv" not in found
