"""Real processes over TLS with node authentication: one run with several faults, and strangers."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedif_flower.federation.certificates import hosts_of, read_certificate
from fedif_flower.run.rows import read_rows
from fedif_flower.statement.verify import verify
from tests.integration.damage import damage_partitions
from tests.integration.deployed import (
    NAME,
    REPOSITORY,
    Deployment,
    free_port,
    kill_group,
    marks,
    wait_for,
)

pytestmark = marks

# Names in another order than partitions; the last one's updates are noise.
PARTITIONS = {"ada": 2, "bob": 0, "cyd": 1}
ROUNDS = 8
KILLED_IN = 3
RUN_CONFIG = {
    "num-clients": 3,
    "fraction-train": 1.0,
    "num-server-rounds": ROUNDS,
    "local-epochs": 1,
    "gradient-noise.std": 1.0,
    "checkpoint-every": 2,
    "resume": "auto",
    "round-timeout": 300.0,
    "attribution": "simpson",
    "statement-budget": "100",
    "run-name": "story",
    "least-participation": 0.0,  # Who is killed misses as many rounds as it takes to come back.
    "device": "cpu",
}


def node_config(deployed: Deployment, name: str) -> str:
    """Return what a node says of itself; all but one keep their statements."""
    config = f"partition-id={PARTITIONS[name]} num-partitions=3"
    if name == "cyd":
        return f"{config} attack='gradient-noise' statement-dir=''"
    return f"{config} statement-dir='{deployed.directory / 'statements' / name}'"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("deployment")) as deployed:
        deployed.start_superlink()
        damaged = damage_partitions(deployed.directory / "cache-of-bob", 3)
        for name in PARTITIONS:
            deployed.start_node(
                name,
                node_config(deployed, name),
                environment={"XDG_CACHE_HOME": str(damaged)} if name == "bob" else None,
            )
        yield deployed


@dataclass(frozen=True)
class Story:
    """A run in which a SuperNode is killed and comes back, and then the SuperLink is."""

    run_dir: Path
    checkpoint: int
    completed: int
    interrupted: str
    outcome: tuple[str, str]
    log: str


@pytest.fixture(scope="module")
def story(deployment: Deployment) -> Story:
    run_dir = deployment.server / "runs" / "story"
    first = deployment.submit(REPOSITORY, RUN_CONFIG)

    def completed() -> int:
        return len(read_rows(run_dir / "rounds.csv")) - 1

    def messages_to(name: str) -> int:
        return deployment.log(name).count("Receiving: train message")

    def has_ada_back() -> bool:
        # As a service manager does: the SuperLink lets it in once it has missed its heartbeats.
        if deployment.nodes["ada"].poll() is not None:
            deployment.start_node("ada", node_config(deployment, "ada"))
        rows = [r for r in read_rows(run_dir / "clients.csv") if r["client_id"] == ada]
        return any(int(row["round"]) > KILLED_IN and row["weight_score"] for row in rows)

    ada = str(deployment.node_ids["ada"])
    wait_for("round 2", lambda: completed() == KILLED_IN - 1, timeout=300)
    wait_for("ada in round 3", lambda: messages_to("ada") == KILLED_IN, timeout=300)
    kill_group(deployment.nodes["ada"])
    wait_for("ada to be back", has_ada_back, timeout=300, pause=1.0)

    wait_for("a round after a checkpoint", lambda: completed() % 2 == 1, timeout=300)
    deployment.kill_superlink()
    done = completed()
    checkpoint = max(p.name for p in (run_dir / "checkpoints").glob("*.pt"))
    deployment.start_superlink()
    interrupted, _ = deployment.outcome(first)
    second = deployment.submit(REPOSITORY, RUN_CONFIG)
    outcome = deployment.outcome(second)
    saved = int(checkpoint.removeprefix("round-").removesuffix(".pt"))
    return Story(run_dir, saved, done, interrupted, outcome, deployment.run_log(second))


def test_what_a_client_warns_of_is_in_its_supernode_s_log(
    deployment: Deployment, story: Story
) -> None:
    warned = [line for line in deployment.log("bob").splitlines() if "fedif WARNING" in line]
    assert len(warned) == 1
    assert warned[0].endswith("drawing the partitions again")


def test_the_run_completes_with_the_report_of_a_simulation(story: Story) -> None:
    assert story.outcome[0] == "finished:completed"
    assert json.loads((story.run_dir / "summary.json").read_text())["rounds"] == ROUNDS
    assert {"report.md", "model.pt", "accuracy.png"} <= {p.name for p in story.run_dir.iterdir()}


def test_scores_belong_to_the_right_nodes(deployment: Deployment, story: Story) -> None:
    rows = read_rows(story.run_dir / "clients.csv")
    partitions = {(int(row["client_id"]), int(row["partition_id"])) for row in rows}
    assert partitions == {(deployment.node_ids[name], p) for name, p in PARTITIONS.items()}
    marked = {int(row["client_id"]) for row in rows if row["malicious"] == "1"}
    assert marked == {deployment.node_ids["cyd"]}
    last = {row["client_id"]: float(row["weight_score"]) for row in rows if row["weight_score"]}
    assert min(last, key=last.__getitem__) == str(deployment.node_ids["cyd"])


def test_nodes_are_called_what_they_were_registered_as(
    deployment: Deployment, story: Story
) -> None:
    names = {int(r["client_id"]): r["name"] for r in read_rows(story.run_dir / "names.csv")}
    assert names == {deployment.node_ids[name]: name for name in PARTITIONS}
    assert f"| ada | {PARTITIONS['ada']} |" in (story.run_dir / "report.md").read_text()
    assert "cyd did not keep its statement: this node has no statement-dir" in story.log


def test_each_node_gets_its_own_page_which_is_signed(deployment: Deployment, story: Story) -> None:
    assert verify(story.run_dir).not_here == ()
    fingerprints = set()
    for name, other in (("ada", "bob"), ("bob", "ada")):
        (kept,) = (deployment.directory / "statements" / name).iterdir()
        page = kept / "statement.html"
        assert f"{name}: your contribution" in page.read_text()
        assert not re.search(rf"\b{other}\b", page.read_text())
        fingerprints.add(verify(page).key)
    assert len(fingerprints) == 1
    assert not (deployment.directory / "statements" / "cyd").exists()
    assert not (story.run_dir / "undelivered.json").exists()
    keys = list(deployment.directory.rglob("statement-key.pem"))
    assert [path.stat().st_mode & 0o777 for path in keys] == [0o600]


def test_a_killed_supernode_costs_its_reply_and_is_remembered(
    deployment: Deployment, story: Story
) -> None:
    ada = str(deployment.node_ids["ada"])
    every = read_rows(story.run_dir / "clients.csv")
    rows = {int(row["round"]): row for row in every if row["client_id"] == ada}
    assert rows[KILLED_IN]["rejection"]
    counts = {int(r["round"]): r for r in read_rows(story.run_dir / "rounds.csv")}[KILLED_IN]
    assert (counts["accepted"], counts["failed"], counts["round_failed"]) == ("2", "1", "0")
    back = min(r for r, row in rows.items() if r > KILLED_IN and row["weight_score"])
    omega = 0.7 * float(rows[2]["weight_score"]) + 0.3 * float(rows[back]["normalized"])
    assert float(rows[back]["weight_score"]) == pytest.approx(omega)


def test_a_killed_superlink_costs_no_more_than_since_the_last_checkpoint(story: Story) -> None:
    assert story.interrupted == "finished:failed"
    assert story.completed - story.checkpoint in (0, 1)
    assert f"Resumed: round {story.checkpoint + 1} of {ROUNDS} is next" in story.log
    rounds = [int(row["round"]) for row in read_rows(story.run_dir / "rounds.csv")]
    assert rounds == list(range(ROUNDS + 1))
    clients = [(r["round"], r["client_id"]) for r in read_rows(story.run_dir / "clients.csv")]
    assert len(set(clients)) == len(clients)


def test_private_keys_are_private_and_never_overwritten(deployment: Deployment) -> None:
    key = deployment.key("ada")
    secrets = [key, deployment.server / "ca.key", deployment.server / "server.key"]
    assert [path.stat().st_mode & 0o777 for path in secrets] == [0o600] * 3
    before = [path.read_bytes() for path in secrets]
    deployment.fedif("node", "key", key)
    again = ("--listen", f"{deployment.bind}:{deployment.port}")
    assert "made" not in deployment.federation("init", NAME, deployment.host, *again).stdout
    # A certificate can be renewed, for more names, under the same key.
    served = deployment.server / "server.crt"
    old = served.read_bytes()
    deployment.federation("rotate-certificate", "fl.example.org")
    assert [path.read_bytes() for path in secrets] == before
    assert "fl.example.org" in hosts_of(read_certificate(served))
    # The SuperLink has to be started again first.
    early = deployment.federation("rotate-certificate", "--confirm", check=False)
    assert early.returncode == 1
    assert "does not serve" in early.stderr
    deployment.federation("rotate-certificate", "--back")
    assert served.read_bytes() == old


def test_an_operator_sees_members_runs_and_what_is_wrong(
    deployment: Deployment, story: Story
) -> None:
    seen = json.loads(deployment.federation("status", "--json", check=False).stdout)
    members = {member["name"]: member for member in seen["members"]}
    assert {name: int(members[name]["node_id"]) for name in PARTITIONS} == deployment.node_ids
    assert {name: members[name]["number"] for name in PARTITIONS} == PARTITIONS
    assert all(members[name]["last_seen"] == "now" for name in PARTITIONS)
    assert seen["runs"][0]["status"] == "finished:completed"
    assert (seen["superlink"], seen["warnings"]) == ("", [])
    assert "ada" in deployment.federation("status", check=False).stdout


def test_a_backup_of_a_running_federation_has_its_nodes(
    deployment: Deployment, story: Story, tmp_path: Path
) -> None:
    archive, restored = tmp_path / "backup.tar.gz", tmp_path / "restored"
    deployment.federation("backup", archive)
    assert archive.stat().st_mode & 0o777 == 0o600
    deployment.fedif("federation", "restore", archive, "--in", restored)
    for name in ("ca.key", "server.key", "statement-key.pem", "members/ada.toml"):
        assert (restored / name).read_bytes() == (deployment.server / name).read_bytes()
    assert (restored / "runs" / "story" / "report.md").exists()
    again = deployment.start(
        *("restored", "fedif", "federation", "superlink", "--in", restored),
        *("--", "--port", port := free_port()),
    )
    wait_for("the SuperLink restored", lambda: "Uvicorn running" in deployment.log("restored"))
    address, authority = f"127.0.0.1:{port}", restored / "ca.crt"
    deployment.fedif("federation", "connect", "restored", address, authority)
    listed = json.loads(deployment.flwr("supernode", "list", "restored", "--format", "json"))
    known = {int(node["node-id"]) for node in listed["nodes"]}
    assert known >= set(deployment.node_ids.values())
    kill_group(again)


def refused(deployment: Deployment, log: str, *options: object) -> subprocess.Popen[bytes]:
    """Start a SuperNode that has no business here."""
    return deployment.start(
        log,
        *("flower-supernode", "--superlink", deployment.address, "--port", free_port()),
        *("--node-config", "partition-id=0 num-partitions=3", *options),
    )


def test_strangers_are_refused(deployment: Deployment, story: Story) -> None:
    before = sorted(deployment.node_ids.values())
    ours = deployment.server / "ca.crt"
    other = deployment.directory / "other"
    deployment.fedif("federation", "init", "other", deployment.host, "--in", other)
    eve, ada = deployment.key("eve"), deployment.key("ada")
    deployment.fedif("node", "key", eve)
    authentic = ("--auth-supernode-private-key",)
    unknown_key = refused(deployment, "unknown-key", "--root-certificates", ours, *authentic, eve)
    no_key = refused(deployment, "no-key", "--root-certificates", ours)
    wrong_ca = refused(
        deployment, "wrong-ca", "--root-certificates", other / "ca.crt", *authentic, ada
    )
    plain = refused(deployment, "plain", "--insecure")
    for process, log in ((unknown_key, "unknown-key"), (no_key, "no-key")):
        assert process.wait(timeout=60) != 0
        assert "SuperNode ID" not in deployment.log(log)
    wait_for("TLS failure", lambda: "certificate verify failed" in deployment.log("wrong-ca"))
    wait_for("plain refused", lambda: _tried(deployment.log("plain")))
    kill_group(wrong_ca)
    kill_group(plain)
    for log in ("wrong-ca", "plain"):
        assert "SuperNode ID" not in deployment.log(log)
    assert sorted(set(deployment.online())) == before


def _tried(log: str) -> bool:
    return "Connection attempt failed" in log or "exit code" in log or "Error" in log


def test_plain_text_gets_no_answer_on_the_tls_port(deployment: Deployment, story: Story) -> None:
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://127.0.0.1:{deployment.port}/health", timeout=10)
    context = ssl.create_default_context(cafile=deployment.server / "ca.crt")
    url = f"https://127.0.0.1:{deployment.port}/health"
    with urllib.request.urlopen(url, timeout=10, context=context) as answer:
        assert answer.status == 200


def test_the_command_s_run_is_honest_about_the_outcome(
    deployment: Deployment, story: Story
) -> None:
    config = ['num-clients=3 num-server-rounds=1 run-name="bad"', 'data-dir="nowhere"']
    failed = deployment.federation("run", *config, 'dataset="image-folder"', check=False)
    assert failed.returncode == 1
    assert "finished:failed" in failed.stderr
    assert "nowhere" in failed.stderr
    unknown = deployment.federation("run", "no-such-key=1", check=False)
    assert unknown.returncode == 1
    assert not (deployment.server / "runs" / "bad").exists()


def test_the_end_of_a_registration_is_told_apart_from_a_crash(deployment: Deployment) -> None:
    """Stopped, ada cannot answer: its round waits until the operator ends its registration."""
    run_dir = deployment.server / "runs" / "revoked"
    config = {"run-name": "revoked", "num-clients": 2, "num-server-rounds": 3, "resume": ""}
    deployment.wait_online(3)
    sent = deployment.log("ada").count("Receiving: train message")
    run = deployment.submit(REPOSITORY, RUN_CONFIG | config)
    wait_for(
        "ada to be asked", lambda: deployment.log("ada").count("Receiving: train message") > sent
    )
    os.killpg(deployment.nodes["ada"].pid, signal.SIGSTOP)
    deployment.federation("remove-member", "ada")
    assert deployment.outcome(run)[0] == "finished:completed"
    rows = read_rows(run_dir / "clients.csv")
    ended = [row for row in rows if row["client_id"] == str(deployment.node_ids["ada"])][-1]
    assert ended["status"] == "revoked"
    assert ended["rejection"] == "the operator ended its registration"
    assert "registration ended" in (run_dir / "report.md").read_text()
    page = (run_dir / "statement" / "statement.html").read_text()
    assert f"revoked in round {ended['round']}" in page
    kill_group(deployment.nodes["ada"])
