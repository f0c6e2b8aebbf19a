from __future__ import annotations

from typer.testing import CliRunner

from fedif_consortium.commands.node import node_cli
from fedif_consortium.federation.files import read_document
from fedif_consortium.federation.invitation import Invitation
from fedif_consortium.federation.members import invite
from tests.consortium.federation.folders import join_as, make_federation


def test_what_to_do_is_beside_what_is_not_well_and_the_status_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    data, node = tmp_path / "data", tmp_path / "node"
    for name in ("cat", "dog"):
        (data / "train" / name).mkdir(parents=True)
    policy = tmp_path / "member-policy.toml"
    policy.write_text("")
    invitation = read_document(
        invite(make_federation(tmp_path / "server"), "hospital-a"), Invitation
    )
    given = {"config": {"data-dir": str(data)}, "policy": str(policy)}
    join_as(node, invitation.replace(address="localhost:1"), **given)

    words = ["check", "--in", str(node), "-c", 'device="cpu"']
    result = CliRunner(env={"COLUMNS": "300"}).invoke(node_cli, words, catch_exceptions=False)
    assert result.exit_code == 1
    rows = [line for line in result.output.splitlines() if "│" in line]
    for name, status, said in (
        ("data", "failed", "put the data where data-dir"),
        ("app", "warning", "fedif app approve"),
        ("signing-key", "ok", ""),
        ("certificate", "failed", ""),
    ):
        (row,) = [row for row in rows if row.startswith(f"│ {name} ")]
        assert f" {status} " in row
        assert said in row
