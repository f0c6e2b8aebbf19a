"""A federation of processes over TLS whose members sign, and keep receipts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedif_flower.errors import StatementError
from fedif_flower.evidence.keys import VerifyingKey
from fedif_flower.evidence.members import read_members
from fedif_flower.run.folder import RunFolder
from fedif_flower.statement.bundle import make_statement
from fedif_flower.statement.signing import load_or_make_key
from fedif_flower.statement.verify import verify
from tests.integration.deployed import REPOSITORY, Deployment, marks
from tests.statement.signed_runs import copied, rewrite

pytestmark = marks

NAMES = ("ada", "bob")
ROUNDS = 2
RUN_CONFIG = {
    "num-clients": len(NAMES),
    "fraction-train": 1.0,
    "num-server-rounds": ROUNDS,
    "local-epochs": 1,
    "round-timeout": 300.0,
    "attribution": "trapezoid",
    "receipts": True,
    "require-signatures": True,
    "run-name": "signed",
    "device": "cpu",
}


@dataclass(frozen=True)
class Signed:
    """A deployed federation, and a run of it."""

    folder: Path
    run_dir: Path
    key: Path
    node_ids: dict[str, int]
    logs: str

    @property
    def receipts(self) -> list[Path]:
        return [self.folder / "receipts" / name for name in NAMES]

    @property
    def members(self) -> dict[str, VerifyingKey]:
        return read_members(self.folder / "keys")


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    with Deployment(tmp_path_factory.mktemp("signed")) as deployed:
        deployed.start_superlink()
        for partition_id, name in enumerate(NAMES):
            key = deployed.directory / "keys" / name
            kept = deployed.directory / "receipts" / name
            pages = deployed.directory / "pages" / name
            deployed.start_node(
                name,
                f"partition-id={partition_id} num-partitions={len(NAMES)} signing-key='{key}' "
                f"receipts-dir='{kept}' statement-dir='{pages}'",
            )
        deployed.wait_online(len(NAMES))
        outcome = deployed.outcome(deployed.submit(REPOSITORY, RUN_CONFIG))
        assert outcome[0] == "finished:completed", outcome
        yield Signed(
            deployed.directory,
            deployed.server / "runs" / "signed",
            deployed.directory / ".config" / "fedif-flower" / "statement-key.pem",
            deployed.node_ids,
            "".join(map(deployed.log, NAMES)),
        )


def test_members_keys_and_receipts_fit_the_records(signed: Signed) -> None:
    found = verify(signed.run_dir, members=signed.members, receipts=signed.receipts)
    assert sorted((m.name, m.signed) for m in found.members) == [("ada", 2), ("bob", 2)]
    # With the statement came the last head, and the line of the last round.
    assert [(held.name, held.lines) for held in found.receipts] == [("ada", 2), ("bob", 2)]
    # Each signed with the key that the operator registered it with.
    assert "another key than it is registered with" not in signed.logs
    assert "receipts of run" not in signed.logs


def test_an_update_that_the_server_changed_is_named(signed: Signed, tmp_path: Path) -> None:
    run = RunFolder(copied(signed.run_dir, tmp_path / "run"))
    ada = str(signed.node_ids["ada"])

    def changed(rows):
        return [
            {**r, "sent": "00" * 32} if (r["round"], r["client_id"]) == ("2", ada) else r
            for r in rows
        ]

    rewrite(run.signatures, changed)
    make_statement(run.path, load_or_make_key(signed.key))
    with pytest.raises(StatementError, match="round 2: the update of ada is not the one"):
        verify(run.path, members=signed.members)


def test_a_round_that_the_server_left_out_is_named(signed: Signed, tmp_path: Path) -> None:
    run = RunFolder(copied(signed.run_dir, tmp_path / "run"))
    for table in (
        *(run.clients, run.attribution, run.attributed_rounds, run.signatures),
        *(run.receipts, run.tree_heads),
    ):
        rewrite(table, lambda rows: [row for row in rows if row["round"] != "2"])
    make_statement(run.path, load_or_make_key(signed.key))
    verify(run.path, members=signed.members)  # The server alone is as consistent as before.
    with pytest.raises(StatementError, match="round 2: history was rewritten: ada has a receipt"):
        verify(run.path, receipts=signed.receipts)
