"""A federation of processes over TLS whose server sees no update: server, keeper, four members."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from client_app import app as client_app
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.keeper_store import read_log
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.statement.own_updates import check_own
from fedif_flower.statement.verify import verify
from tests.integration.deployed import (
    REPOSITORY,
    Deployment,
    free_port,
    kill_group,
    marks,
    wait_for,
)
from tests.runtime.keeping import write_certificate

pytestmark = marks

NAMES = ("ada", "bob", "cyd", "dan")  # Partitions 0 to 3; the last one poisons labels.
ROUNDS = 3
POLICY = """
[policy]
least-members = 3
largest-share = 0.8
least-effective-members = 1.2
"""
RUN_CONFIG = {
    "num-clients": len(NAMES),
    "fraction-train": 1.0,
    "num-server-rounds": ROUNDS,
    "local-epochs": 1,
    "round-timeout": 120.0,
    "attribution": "simpson",
    "statement-budget": "100",
    "run-name": "masked",
    "device": "cpu",
}


@dataclass(frozen=True)
class Masked:
    """A deployed federation with a keeper, and a masked run of it."""

    deployed: Deployment
    keeper: Path
    run_dir: Path
    outcome: tuple[str, str]
    plain: tuple[str, str]
    plain_log: str


def start_keeper(deployed: Deployment, folder: Path) -> subprocess.Popen[bytes]:
    before = deployed.log("keeper").count("listens on")
    started = deployed.start("keeper", "fedif", "keeper", "--policy", folder / "keeper.toml")
    wait_for("the keeper", lambda: deployed.log("keeper").count("listens on") > before)
    return started


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Masked]:
    with Deployment(tmp_path_factory.mktemp("masked")) as deployed:
        folder, port = deployed.directory / "keeper", free_port()
        folder.mkdir()
        for name in ("keeper", "keeper-client"):
            write_certificate(folder, name)
        for name in NAMES:  # The keeper has to know them before it starts.
            deployed.fedif("node", "key", deployed.key(name))
        members = "".join(f'{name} = "{deployed.key(name)}.pub"\n' for name in NAMES)
        toml = f'address = "127.0.0.1:{port}"\n[members]\n{members}{POLICY}'
        (folder / "keeper.toml").write_text(toml)
        keeper = start_keeper(deployed, folder)
        keeper_key = (folder / "keeper-state" / "box-key.pub").read_text().strip()
        deployed.start_superlink()
        for partition_id, name in enumerate(NAMES):
            own = deployed.directory / "own" / name
            attack = " attack='label-noise'" if name == "dan" else ""
            deployed.start_node(
                name,
                f"partition-id={partition_id} num-partitions=4 keeper-key='{keeper_key}' "
                f"signing-key='{deployed.key(name)}' own-updates-dir='{own}'{attack}",
            )
        deployed.wait_online(len(NAMES))
        of_keeper = {
            "masking": "keeper",
            "keep-vectors": True,
            "keeper-url": f"https://127.0.0.1:{port}",
            "keeper-certificate": str(folder / "keeper.crt"),
            "keeper-client-certificate": str(folder / "keeper-client.crt"),
            "keeper-client-key": str(folder / "keeper-client.key"),
        }
        run_id = deployed.submit(REPOSITORY, RUN_CONFIG | of_keeper)
        clients = deployed.server / "runs" / "masked" / "clients.csv"
        wait_for("round 2", lambda: len(read_rows(clients)) >= 2 * len(NAMES), timeout=300)
        kill_group(keeper)  # The server asks again until it is back, with its seeds.
        start_keeper(deployed, folder)
        outcome = deployed.outcome(run_id)
        # The server would like to see updates after all.
        other = {**RUN_CONFIG, "run-name": "plain", "num-server-rounds": 1}
        plain_id = deployed.submit(REPOSITORY, other)
        plain = deployed.outcome(plain_id)
        runs = deployed.server / "runs"
        yield Masked(deployed, folder, runs / "masked", outcome, plain, deployed.run_log(plain_id))


def test_it_trains_to_where_a_plain_run_does(masked: Masked, tmp_path: Path) -> None:
    assert masked.outcome[0] == "finished:completed", masked.outcome
    settings = {**default_run_config(), **RUN_CONFIG, "output-dir": str(tmp_path)}
    nodes = {3: {"attack": "label-noise"}}
    config = RunConfig.from_run_config(settings)
    plain = run_federation(LocalGrid(client_app, len(NAMES), node_configs=nodes), config)
    for name, column, tolerance in (
        ("clients.csv", "weight", 1e-4),
        ("attribution.csv", "contribution", 1e-3),
        ("rounds.csv", "test_accuracy", 0.02),
    ):
        ours, theirs = read_rows(masked.run_dir / name), read_rows(plain / name)
        assert len(ours) == len(theirs) > ROUNDS
        found = [float(row[column] or 0) for row in ours]
        assert found == pytest.approx([float(row[column] or 0) for row in theirs], abs=tolerance)


def test_the_statement_verifies_and_so_do_each_members_own_lines(masked: Masked) -> None:
    assert "masking.json" in verify(masked.run_dir).manifest.files
    for name in NAMES:
        assert check_own(masked.run_dir, masked.deployed.directory / "own" / name).rounds == ROUNDS


def test_the_keepers_log_has_what_was_asked_and_its_last_hash_is_in_the_records(
    masked: Masked,
) -> None:
    entries, head = read_log(masked.keeper / "keeper-state" / "log.txt")
    asked = [entry["asked"] for entry in entries if entry["round"] == 1]
    assert asked == ["open", "sketches", "products", "sum", "products"]
    said = json.loads((masked.run_dir / "masking.json").read_text())
    assert said["log"] == head
    told = read_rows(masked.run_dir / "vectors" / "vectors.csv")
    heard = [digest for entry in entries for digest in entry.get("vectors", ())]
    # What was asked as the keeper was killed is asked again.
    assert [line["sha256"] for line in told] == list(dict.fromkeys(heard))


def test_members_that_name_a_keeper_take_no_part_in_a_plain_run(masked: Masked) -> None:
    assert masked.plain[0] == "finished:failed"
    assert "this node names a keeper" in masked.plain_log


def test_no_file_of_the_servers_holds_a_piece_of_an_update(masked: Masked) -> None:
    """Nor the SuperLink's database, through which every reply went."""
    files = [path for path in masked.deployed.server.rglob("*") if path.is_file()]
    written = b"".join(path.read_bytes() for path in files)
    for path in sorted((masked.deployed.directory / "own").rglob("round-*.npz")):
        with np.load(path) as content:
            update = content["update"]
        start = next(i for i in range(len(update) - 8) if (update[i : i + 8] != 0).all())
        for kind in ("<f4", "<f8"):
            assert update[start : start + 8].astype(kind).tobytes() not in written


def test_the_keeper_has_forgotten_every_seed(masked: Masked) -> None:
    state = json.loads((masked.keeper / "keeper-state" / "state.json").read_text())
    assert state["rounds"] == {}
