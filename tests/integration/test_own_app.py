"""The consortium's page, walked with an app of one's own, as ``fedif new`` writes it."""

from __future__ import annotations

import json

import pytest

from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import read_rows
from tests.integration.deployed import Deployment, free_port, marks, wait_for

pytestmark = [*marks, pytest.mark.all]

POLICY = """
[runs]
names = ["me/my-app"]
unknown-keys = true
[runs.config]
attribution = "simpson"
"evidence.receipts" = true
"pace.timeout" = {most = 600.0}
"""
MEMBERS = ("ada", "bob")
SETTINGS = (
    *("num-clients=2", "num-server-rounds=2", "attribution=simpson", "evidence.receipts=true"),
    *("statement.budget='100'", "pace.timeout=300.0", "run-name=october"),
)


def test_from_a_new_app_to_a_statement(tmp_path):
    app = tmp_path / "my-app"
    with Deployment(tmp_path, quick=True) as up:
        up.call("fedif", "new", app)
        up.start_superlink()
        up.join(ada="num-partitions=2", bob="num-partitions=2")
        for name in MEMBERS:
            policy = up.node_folder(name) / "policy.toml"
            policy.write_text(POLICY)
            up.call("fedif", "app", "approve", app, "--policy", policy)
            begin = ("fedif", "node", "start", "--in", up.node_folder(name), "--policy", policy)
            up.nodes[name] = up.start(
                *(name, *begin, "--", "--port", free_port()), environment={"PATH": up.path}
            )
        up.federation("run", "--app", app, *SETTINGS)
        run = RunFolder(up.server / "runs" / "october")
        assert {row["status"] for row in read_rows(run.clients.path)} == {"accepted"}
        account = json.loads((run.statement / "statement.json").read_text())
        assert {member["name"] for member in account["members"]} == set(MEMBERS)
        assert sum(member["cents"] for member in account["members"]) == 100_00
        told = up.call(
            *("fedif", "verify", run.path, "--members", up.server / "members"),
            *("--receipts", up.node_folder("ada") / "receipts"),
            *("--receipts", up.node_folder("bob") / "receipts"),
        ).stdout
        assert "Signed by ada: 2 of 2 updates" in told
        pages = up.node_folder("ada") / "statements"
        wait_for("ada's page", lambda: list(pages.glob("*/statement.html")))
