"""Members with policies of their own, over TLS: an app that one did not approve, a run config."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedif_flower.member.node_log import read_node_log
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.app_build import build_bundle
from tests.integration.deployed import REPOSITORY, Deployment, copy_app, marks

pytestmark = marks

# Ada approved the changed app, bob the one before; an auditor on cyd's list signed it; dan approved
# it as well, but not of so many epochs.
POLICIES = {
    "ada": "[runs]\nunknown-keys = true",
    "bob": "[runs]\nunknown-keys = true",
    "cyd": "[apps]\nsigners = 'signers'\nsignatures = '../audit'\n[runs]\nunknown-keys = true",
    "dan": "[runs]\nunknown-keys = true\n[runs.config]\nlocal-epochs = {most = 1}",
}
ROUNDS = 2
RUN_CONFIG = {
    "num-clients": len(POLICIES),
    "fraction-train": 1.0,
    "num-server-rounds": ROUNDS,
    "local-epochs": 2,
    "round-timeout": 300.0,
    "start-without": "unfit",
    "run-name": "guarded",
    "least-participation": 0.0,  # Two of four refuse.
    "device": "cpu",
}


@dataclass(frozen=True)
class Guarded:
    """A run that two of four members take part in."""

    deployed: Deployment
    digest: str
    outcome: tuple[str, str]
    run_dir: Path
    log: str

    def fedif(self, *arguments: object) -> str:
        result = self.deployed.call("fedif", *arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Deployment(tmp_path_factory.mktemp("guarded")) as deployed:
        here = deployed.directory
        # One byte of what clients execute.
        code = (REPOSITORY / "client_app.py").read_text().replace("Door 2", "Door 3", 1)
        app = copy_app(here / "changed", code)
        for name, text in POLICIES.items():
            (here / name / "signers").mkdir(parents=True)
            (here / name / "member-policy.toml").write_text(text)
        deployed.call("fedif", "node", "key", here / "audit" / "auditor")
        shutil.copy(here / "audit" / "auditor.pub", here / "cyd" / "signers")
        approved = {"ada": app, "bob": REPOSITORY, "dan": app}
        for name, folder in approved.items():
            policy = here / name / "member-policy.toml"
            shown = deployed.call("fedif", "app", "approve", folder, "--policy", policy)
            assert "fedif/fedif-flower 0.1.0 runs here now" in shown.stdout, shown.stderr
        key = here / "audit" / "auditor"
        deployed.call("fedif", "app", "sign", app, "--key", key, "--to", here / "audit")
        deployed.start_superlink()
        for partition_id, name in enumerate(POLICIES):
            deployed.start_node(
                name,
                f"partition-id={partition_id} num-partitions={len(POLICIES)}",
                options=("--policy", here / name / "member-policy.toml"),
            )
        deployed.wait_online(len(POLICIES))
        run_id = deployed.submit(app, RUN_CONFIG)
        outcome = deployed.outcome(run_id)
        run_dir = deployed.server / "runs" / "guarded"
        log = deployed.run_log(run_id)
        yield Guarded(deployed, build_bundle(app).digest, outcome, run_dir, log)


def test_the_run_goes_on_without_those_that_refuse(guarded: Guarded) -> None:
    assert guarded.outcome[0] == "finished:completed", guarded.log[-3000:]
    names = {guarded.deployed.node_ids[name]: name for name in POLICIES}
    rows = read_rows(guarded.run_dir / "clients.csv")
    by_name = {name: [r for r in rows if names[int(r["client_id"])] == name] for name in POLICIES}
    for name in ("ada", "cyd"):
        assert [row["status"] for row in by_name[name]] == ["accepted"] * ROUNDS
    assert json.loads((guarded.run_dir / "summary.json").read_text())["rounds"] == ROUNDS


def test_the_operator_reads_why_and_what_to_do(guarded: Guarded) -> None:
    digest = guarded.digest
    reasons = {
        "bob": f"refused by the member: this member has not approved app {digest}; there: fedif "
        f"app approve {digest[:12]}",
        "dan": "refused by the member: run config local-epochs = 2; this member accepts at most 1",
    }
    rows = read_rows(guarded.run_dir / "clients.csv")
    for name, reason in reasons.items():
        own = [row for row in rows if int(row["client_id"]) == guarded.deployed.node_ids[name]]
        found = {row["rejection"] for row in own}
        assert found == {f"client error 6: {reason}"}
        assert re.search(rf"{name} .*does not answer: {re.escape(reason)}", guarded.log)


def test_every_message_has_a_line_at_its_member(guarded: Guarded) -> None:
    for name in POLICIES:
        lines = read_node_log(guarded.deployed.directory / name / "member-state" / "node-log").lines
        found = [(line.entry["direction"], line.entry["decision"]) for line in lines]
        takes_part = name in ("ada", "cyd")
        assert set(found) == (
            {("in", "passed"), ("out", "passed")} if takes_part else {("in", "refused")}
        )
        assert len([one for one in found if one[0] == "in"]) > ROUNDS


def test_a_member_looks_at_what_it_refused_and_approves_it(guarded: Guarded) -> None:
    policy = guarded.deployed.directory / "bob" / "member-policy.toml"
    shown = guarded.fedif("app", "show", guarded.digest[:12], "--policy", policy, "--diff")
    assert "not approved: it does not run" in shown
    assert "changed  client_app.py" in shown
    assert '-"""Door 2, the ClientApp' in shown
    assert '+"""Door 3, the ClientApp' in shown
    approved = guarded.fedif("app", "approve", guarded.digest[:12], "--policy", policy)
    assert "runs here now" in approved
    again = guarded.fedif("app", "show", guarded.digest[:12], "--policy", policy)
    assert "here     approved" in again
