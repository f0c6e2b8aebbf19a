"""A federation of real processes over TLS: what its operator and four unlike members come to see.

Three runs, one after the other. In ``credit`` the members' contributions are told; a member's host
is killed, then the server, and the run is resumed. ``changed`` is an app that steals: one member
has not approved it, another's guard catches it. In ``masked`` a keeper sums up what nobody may see.
All of it happens once; each test looks at one thing that came of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.cli.build import build_fab_from_disk

from client_app import app as client_app
from fedif_consortium.evidence.chained_log import Entry, last_hash, read_log
from fedif_consortium.evidence.keys import read_members
from fedif_consortium.federation.records import make_node_key
from fedif_consortium.member.apps import bundle_digest
from fedif_consortium.member.node_log import FILE
from fedif_consortium.member.outgoing import LeavesSettings
from fedif_consortium.parts import server_parts
from fedif_consortium.statement.verify import verify
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from tests.consortium.masking.parties import write_certificate
from tests.integration.deployed import (
    NAME,
    Deployment,
    free_port,
    kill_group,
    marks,
    wait_for,
    write_app,
)

pytestmark = marks

# Names in another order than partitions. Ada and cyd have no policy, and so no guard that signs.
# Bob approved the first app alone, dan both. Cyd's updates are noise.
PARTITIONS = {"ada": 0, "bob": 1, "cyd": 2, "dan": 3}
GUARDED = ("bob", "dan")
# Looking for work five times a second would be a third of all seconds of the processor.
ENVIRONMENT = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1"}
COMMON = {
    "num-clients": 4,
    "fraction-train": 1.0,
    "local-epochs": 1,
    "gradient-noise.std": 1.0,
    "pace.timeout": 300.0,
    "least-participation": 0.0,  # Who is killed, refuses or sends nonsense misses rounds.
    "device": "cpu",
}
CREDIT = COMMON | {
    "run-name": "credit",
    "num-server-rounds": 3,
    "checkpoint-every": 2,
    "resume": "auto",
    "attribution": "simpson",
    "statement.budget": "100",
    "evidence.receipts": True,
}
CHANGED = COMMON | {
    "run-name": "changed",
    "num-server-rounds": 4,
    "start-without": "unfit",
    "max-paused-turns": 0,  # Who refuses is asked again.
}
MASKED = COMMON | {
    "run-name": "masked",
    "num-clients": 3,
    "num-server-rounds": 2,
    "attribution": "simpson",
    "masking.mode": "keeper",
}
# On dan's host it adds its training data to the model in the first round, and never answers in the
# third, in which the operator ends dan's registration.
THIEF = f"""
import time

import numpy as np
from flwr.app import Array

from fedif_consortium.parts import client_parts
from fedif_flower.client.app import task_app


def steal(message, context, call_next):
    reply = call_next(message, context)
    arrays = reply.content.array_records.get("arrays")
    if not arrays or context.node_config["partition-id"] != {PARTITIONS["dan"]}:
        return reply
    if message.content["config"]["server-round"] == 1:
        arrays["patients"] = Array(np.zeros((90, 64), np.float32))
    if message.content["config"]["server-round"] == 3:
        time.sleep(3600)
    return reply


app = task_app(mods=[steal], parts=client_parts())
"""
# What a guard lets out in a masked run, as docs/member-policy.md has it.
MASK = ("mask.box bytes[400] with-updates", "mask.length number[9] with-updates")
LEAVES = f"""
[leaves]
arrays = ["arrays.masked-update uint64"]
config = {json.dumps([*LeavesSettings().config, *MASK])}
"""
KEEPER = """
[policy]
least-members = 2  # FedIF gives the lowest no weight.
largest-share = 1.0
least-effective-members = 1.0
"""


class Story(Deployment):
    """The federation, and what was seen on the way that nothing keeps."""

    def __init__(self, here: Path) -> None:
        super().__init__(here, quick=True)
        self.apps = {"first": write_app(here / "first"), "thief": write_app(here / "thief", THIEF)}
        self.keeper = here / "keeper"
        self.logs: dict[str, str] = {}
        self.node_bytes: dict[str, int] = {}

    @property
    def names(self) -> dict[str, str]:
        """Members by what records call them."""
        return {str(node_id): name for name, node_id in self.node_ids.items()}

    def run(self, name: str) -> RunFolder:
        return RunFolder(self.server / "runs" / name)

    def rows(self, run: str, name: str) -> list[dict[str, str]]:
        """Return a member's lines of a run."""
        lines = read_rows(self.run(run).clients.path)
        return [row for row in lines if self.names[row["client_id"]] == name]

    def node_log(self, name: str) -> Sequence[Entry]:
        return read_log(self.node_folder(name) / "member-state" / "node-log" / FILE)

    # What happens, in this order.

    def begin(self) -> None:
        self.start_superlink(ENVIRONMENT)
        own = {"cyd": " attack='gradient-noise' statement-dir=''"}
        configs = {
            name: f"partition-id={partition} num-partitions=4{own.get(name, '')}"
            for name, partition in PARTITIONS.items()
        }
        self.join(**configs)
        for name in GUARDED:
            self.policy(name).write_text("[runs]\nunknown-keys = true\n")
        self.approve("first", "bob")
        self.approve("first", "dan")
        self.approve("thief", "dan")
        for name in PARTITIONS:
            self.go(name)

    def policy(self, name: str) -> Path:
        return self.node_folder(name) / "member-policy.toml"

    def approve(self, app: str, name: str) -> None:
        self.call("fedif", "app", "approve", self.apps[app], "--policy", self.policy(name))

    def go(self, name: str) -> None:
        """Start a member's SuperNode."""
        options = ("--policy", self.policy(name)) if name in GUARDED else ()
        command = ("fedif", "node", "start", "--in", self.node_folder(name), *options)
        given = {"PATH": self.path, **ENVIRONMENT}
        self.nodes[name] = self.start(
            name, *command, "--", "--port", free_port(), environment=given
        )

    def credit(self) -> None:
        """Kill dan's host in round 2 and the server in round 3; then go on."""
        run = self.run("credit")
        self.submit(self.apps["first"], CREDIT)
        self.wait_for_round("credit", 1)
        for name in ("ada", "bob"):
            self.node_bytes[name] = psutil.Process(self.nodes[name].pid).memory_info().rss
        kill_group(self.nodes["dan"])
        self.wait_for_round("credit", 2)  # The server waits for dan's heartbeat for a minute.
        wait_for("its checkpoint", lambda: list(run.checkpoints.glob("*2.pt")))
        self.kill_superlink()
        self.start_superlink(ENVIRONMENT)
        self.go("dan")
        run_id = self.submit(self.apps["first"], CREDIT)
        self.strangers()
        self.follow("credit", run_id)

    def wait_for_round(self, name: str, number: int) -> None:
        """Wait for a round's end."""
        path = self.run(name).rounds.path
        wait_for(f"round {number}", lambda: len(read_rows(path)) > number, timeout=300)

    def follow(self, name: str, run_id: int) -> None:
        status, details = self.outcome(run_id)
        self.logs[name] = self.flwr("log", run_id, NAME, "--show")
        assert status == "finished:completed", f"{name}: {details}\n{self.logs[name][-3000:]}"

    def strangers(self) -> None:
        """Start SuperNodes that have no business here."""
        eve = self.key("eve")
        eve.parent.mkdir(parents=True)
        eve.write_bytes(make_node_key())
        eve.chmod(0o600)
        ours = ("--root-certificates", self.server / "ca.crt")
        key = ("--auth-supernode-private-key", eve)
        found = {
            name: self.start(
                *(name, "flower-supernode", "--superlink", self.address, *ours, *options),
                *("--port", free_port()),
            )
            for name, options in {"unknown-key": key, "no-key": ()}.items()
        }
        self.refused = {name: stranger.wait(300) for name, stranger in found.items()}

    def changed(self) -> None:
        """End dan's registration in round 3."""
        run_id = self.submit(self.apps["thief"], CHANGED)
        self.wait_for_round("changed", 2)
        self.federation("remove-member", "dan")
        self.follow("changed", run_id)
        kill_group(self.nodes.pop("dan"))

    def masked(self) -> None:
        """Start a keeper, and the three other nodes again, which name it."""
        folder, port = self.keeper, free_port()
        folder.mkdir()
        for name in ("keeper", "keeper-client"):
            write_certificate(folder, name)
        lines = "".join(f'{name} = "{self.key(name)}.pub"\n' for name in self.nodes)
        toml = f'address = "127.0.0.1:{port}"\n[members]\n{lines}{KEEPER}'
        (folder / "keeper.toml").write_text(toml)
        self.start("keeper", "fedif", "keeper", "--policy", folder / "keeper.toml")
        wait_for("the keeper", lambda: "listens on" in self.log("keeper"))
        key = (folder / "keeper-state" / "box-key.pub").read_text().strip()
        for name, node in self.nodes.items():
            node.terminate()
            with (self.node_folder(name) / "node.toml").open("a") as file:
                file.write(f'keeper-key = "{key}"\nsigning-key = "{self.key(name)}"\n')
        with self.policy("bob").open("a") as file:
            file.write(LEAVES)
        for name in list(self.nodes):
            self.nodes[name].wait(300)
            self.go(name)
        of_keeper = {
            "masking.keeper-url": f"https://127.0.0.1:{port}",
            "masking.keeper-certificate": str(folder / "keeper.crt"),
            "masking.client-certificate": str(folder / "keeper-client.crt"),
            "masking.client-key": str(folder / "keeper-client.key"),
        }
        self.follow("masked", self.submit(self.apps["first"], MASKED | of_keeper))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with Story(tmp_path_factory.mktemp("federation")) as story:
        story.begin()
        story.credit()
        story.changed()
        story.masked()
        yield story


# Run credit: a member's host is killed, then the server.


def test_it_completes_and_scores_belong_to_the_right_members(story: Story) -> None:
    run = story.run("credit")
    assert run.summary.read()["rounds"] == CREDIT["num-server-rounds"]
    assert {"report.md", "model.pt", "accuracy.png"} <= {p.name for p in run.path.iterdir()}
    assert all(f"\n| {name}" in run.report.read_text() for name in PARTITIONS)
    rows = read_rows(run.clients.path)
    assert {(story.names[r["client_id"]], int(r["partition_id"])) for r in rows} == set(
        PARTITIONS.items()
    )
    assert {story.names[r["client_id"]] for r in rows if r["malicious"] == "1"} == {"cyd"}
    last = {row["client_id"]: float(row["weight_score"]) for row in rows if row["weight_score"]}
    assert story.names[min(last, key=last.__getitem__)] == "cyd"


def test_a_killed_host_costs_its_reply_and_is_remembered(story: Story) -> None:
    first, killed, back = story.rows("credit", "dan")
    assert killed["rejection"]
    counts = read_rows(story.run("credit").rounds.path)[2]
    assert (counts["accepted"], counts["failed"], counts["round_failed"]) == ("3", "1", "0")
    omega = 0.7 * float(first["weight_score"]) + 0.3 * float(back["normalized"])
    assert float(back["weight_score"]) == pytest.approx(omega)


def test_a_killed_server_costs_what_came_after_its_checkpoint(story: Story) -> None:
    assert "Resumed: round 3 of 3 is next" in story.logs["credit"]
    rounds = [int(row["round"]) for row in read_rows(story.run("credit").rounds.path)]
    assert rounds == [0, 1, 2, 3]
    clients = [(r["round"], r["client_id"]) for r in read_rows(story.run("credit").clients.path)]
    assert len(set(clients)) == len(clients)


def test_each_member_has_a_page_of_its_own_by_one_key(story: Story) -> None:
    fingerprints = {verify(story.run("credit").path).key}
    for name, other in (("ada", "bob"), ("bob", "ada"), ("dan", "ada")):
        folder = story.node_folder(name) / "statements"
        page, *_ = sorted(folder.glob("*/statement.html"))  # The later one is of the masked run.
        assert f"{name}: your contribution" in page.read_text()
        assert not re.search(rf"\b{other}\b", page.read_text())
        fingerprints.add(verify(page).key)
    assert len(fingerprints) == 1
    assert "cyd did not keep its statement" in story.logs["credit"]
    assert not story.run("credit").undelivered.path.exists()


def test_signatures_and_receipts_fit_the_records(story: Story) -> None:
    keys = read_members(story.server / "members")
    found = verify(
        story.run("credit").path,
        members={name: keys[name] for name in GUARDED},
        receipts=[story.node_folder(name) / "receipts" for name in PARTITIONS],
    )
    assert {member.name: member.signed for member in found.members} == {
        **dict.fromkeys(("ada", "cyd"), 0),
        "bob": 3,
        "dan": 2,
    }
    # With the statement came the last head, and the line of the last round.
    lines = {held.name: len(held.lines) for held in found.receipts}
    assert (lines["ada"], lines["bob"]) == (3, 3)


def test_a_guard_costs_a_member_little_memory(story: Story) -> None:
    """It imports no PyTorch, which would be half a gigabyte."""
    assert story.node_bytes["bob"] < story.node_bytes["ada"] + 100 * 2**20


# Strangers, the port, and keys.


def test_strangers_are_refused(story: Story) -> None:
    assert set(story.refused) == {"unknown-key", "no-key"}
    for name, status in story.refused.items():
        assert status != 0
        assert "SuperNode ID" not in story.log(name)


def test_the_operator_sees_members_and_runs(story: Story) -> None:
    seen = json.loads(story.federation("status", "--json", check=False).stdout)
    members = [(m["name"], m["number"], m["state"], m["last_seen"]) for m in seen["members"]]
    *there, (name, number, state, _) = members
    assert there == [(n, i, "registered", "now") for n, i in [*PARTITIONS.items()][:3]]
    assert (name, number, state) == ("dan", 3, "removed")
    ends = [run["status"] for run in seen["runs"]]
    assert ends == [*["finished:completed"] * 3, "finished:failed"]
    assert seen["superlink"] == ""


# Run changed: another app, a thief.


def test_who_has_not_approved_an_app_refuses_and_the_others_go_on(story: Story) -> None:
    digest = bundle_digest(build_fab_from_disk(story.apps["thief"]))
    reason = (
        f"refused by the member: this member has not approved app {digest}; there: fedif app "
        f"approve {digest[:12]} --policy FILE"
    )
    found = {row["rejection"] for row in story.rows("changed", "bob")}
    assert found == {f"client error 6: {reason}"}
    assert re.search(rf"bob .*does not answer: {re.escape(reason)}", story.logs["changed"])
    accepted = [row["status"] for row in story.rows("changed", "ada")]
    assert accepted == ["accepted"] * CHANGED["num-server-rounds"]


def test_a_member_s_own_log_has_every_message_and_what_became_of_it(story: Story) -> None:
    entries = [entry for entry in story.node_log("bob") if entry["kind"] == "train"]
    found = [(entry["direction"], entry["decision"]) for entry in entries]
    assert found.count(("in", "refused")) == CHANGED["num-server-rounds"]
    trained = CREDIT["num-server-rounds"] + MASKED["num-server-rounds"]
    # The killed server may have asked for its last round, too.
    assert trained <= found.count(("out", "passed")) <= found.count(("in", "passed"))
    assert found.count(("in", "passed")) <= trained + 1


def test_training_data_beside_the_model_do_not_leave(story: Story) -> None:
    told = "refused by the member: an array is neither the model's nor on the list"
    assert story.rows("changed", "dan")[0]["rejection"] == f"client error 6: {told}"
    assert "patients" not in story.logs["changed"]
    [refused] = (e for e in story.node_log("dan") if e["decision"] == "refused")
    assert (refused["direction"], refused["kind"]) == ("out", "train")
    assert str(refused["reason"]).endswith("the list: arrays.patients")


def test_the_end_of_a_registration_is_told_apart_from_a_crash(story: Story) -> None:
    *_, ended = story.rows("changed", "dan")
    assert (ended["round"], ended["status"]) == ("3", "revoked")
    assert ended["rejection"] == "the operator ended its registration"
    assert "registration ended" in " ".join(story.run("changed").report.read_text().split())


# Run masked: the server sees no update.


def test_it_trains_to_where_a_plain_run_does(story: Story, tmp_path: Path) -> None:
    plain = {"masking.mode": "off", "output-dir": str(tmp_path)}
    keys = {**RunConfig.defaults(), **MASKED, **plain}
    config = RunConfig.from_run_config(keys, server_parts())
    nodes: dict[int, dict[str, Any]] = {i: {"num-partitions": 4} for i in range(3)}
    nodes[PARTITIONS["cyd"]]["attack"] = "gradient-noise"
    there = run_federation(LocalGrid(client_app, 3, node_configs=nodes), config)
    for name, column, tolerance in (
        ("clients.csv", "weight", 1e-4),
        ("attribution.csv", "contribution", 1e-3),
        ("rounds.csv", "test_accuracy", 0.02),
    ):
        ours, theirs = read_rows(story.run("masked").path / name), read_rows(there / name)
        assert len(ours) == len(theirs) > 2
        found = [float(row[column] or 0) for row in ours]
        assert found == pytest.approx([float(row[column] or 0) for row in theirs], abs=tolerance)


def test_its_statement_verifies_and_its_records_have_the_keeper_s_log(story: Story) -> None:
    assert "masking.json" in verify(story.run("masked").path).manifest.files
    entries = read_log(story.keeper / "keeper-state" / "log.txt")
    asked = [entry["asked"] for entry in entries if entry["round"] == 1]
    assert asked == ["open", "products", "sum", "products"]
    records = json.loads((story.run("masked").path / "masking.json").read_text())
    assert records["log"] == last_hash(entries)
