"""A reply that came late counts once, in time, and for the round that its member signed."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord

from client_app import app as client_app
from fedif_consortium.evidence.check_signatures import SignedMember
from fedif_consortium.evidence.keys import VerifyingKey, read_key_file
from fedif_consortium.evidence.signed import SignedUpdate
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import StatementError
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.provenance import RUN_ID
from tests.clocked_grid import ClockedGrid
from tests.consortium.statement import receipted_runs as receipted
from tests.consortium.statement import signed_runs as of
from tests.consortium.statement.runs import come_late, make_run
from tests.run.resuming import Killed, killed_at

NAMES = {0: "hospital-a", 1: "hospital-b"}
KEYS = {name: Ed25519PrivateKey.generate() for name in NAMES.values()}
PUBLIC = {name: key.public_key() for name, key in KEYS.items()}
ID = 32 * "a"
ONCE = {0: 0.5}
BOTH = {0: 0.5, 1: 0.5}


def signed_in(asked_in: int, client_id: int) -> SignedUpdate:
    """Return the one update that a member signed for a round."""
    return SignedUpdate.by(
        KEYS[NAMES[client_id]],
        run=ID,
        asked_in=asked_in,
        node_id=client_id,
        examples=100.0 + client_id,
        received=bytes([asked_in]) * 32,
        sent=bytes([asked_in, client_id]) * 16,
    )


def sign_replies(run_dir: Path, instead: dict[int, int] | None = None) -> None:
    """Write the signature of each reply that counts; ``instead``: hospital-b's of other rounds."""
    run = RunFolder(run_dir)
    rows = []
    for line in run.clients.read():
        number = int(line["round"])
        client_id = int(line["client_id"])
        if line["status"] != "accepted":
            continue
        asked_in = int(line["asked_in"] or number)
        if client_id == 1:
            asked_in = (instead or {}).get(number, asked_in)
        cells = signed_in(asked_in, client_id).cells()
        row = {"round": number, "client_id": client_id, **cells}
        rows.append({column: row[column] for column in run.signatures.columns})
    run.signatures.replace(rows)


def late_run(tmp_path: Path, rounds, asked_in, **settings) -> Path:
    """Return a run in which hospital-b's replies came late."""
    run_dir = make_run(tmp_path / "run", rounds, names=NAMES, provenance={RUN_ID: ID})
    come_late(run_dir, 1, asked_in)
    config = RunFolder(run_dir).config
    config.write({**config.read(), **settings})
    return run_dir


TWO_LATE = {"pace.late-rounds": 2}


@pytest.mark.parametrize("settings", [TWO_LATE, {}, {"pace.rounds": "buffered"}])
def test_a_signed_reply_may_count_later_than_its_round(tmp_path, key, settings):
    rounds = [ONCE, ONCE, BOTH, ONCE, ONCE, BOTH]
    run_dir = late_run(tmp_path, rounds, {3: 1, 6: 4}, **settings)
    sign_replies(run_dir)
    make_statement(run_dir, key)
    expected = (SignedMember("hospital-a", 6, 6), SignedMember("hospital-b", 2, 2))
    assert verify(run_dir, members=PUBLIC).members == expected


def test_a_signed_reply_counts_in_one_round(tmp_path, key):
    """The server counts the reply of round 1 again in round 3, as if it had come late."""
    run_dir = late_run(tmp_path, [BOTH, ONCE, BOTH, ONCE, ONCE, ONCE], {3: 1}, **TWO_LATE)
    sign_replies(run_dir)
    make_statement(run_dir, key)
    words = r"round 3: .* hospital-b .* signed for round 1, and counts in round 1 already"
    for members in (PUBLIC, None):
        with pytest.raises(StatementError, match=words):
            verify(run_dir, members=members)


def test_a_signed_reply_counts_once_among_late_ones(tmp_path, key):
    run_dir = late_run(tmp_path, [ONCE, BOTH, BOTH, ONCE, ONCE, ONCE], {2: 1, 3: 1}, **TWO_LATE)
    sign_replies(run_dir)
    make_statement(run_dir, key)
    with pytest.raises(StatementError, match=r"round 3: .* and counts in round 2 already"):
        verify(run_dir, members=PUBLIC)


@pytest.mark.parametrize("settings", [TWO_LATE, {"pace.late-rounds": 0}])
def test_a_reply_that_came_too_late_does_not_count(tmp_path, key, settings):
    run_dir = late_run(tmp_path, [ONCE, ONCE, ONCE, BOTH, ONCE, ONCE], {4: 1}, **settings)
    sign_replies(run_dir)
    make_statement(run_dir, key)
    most = settings["pace.late-rounds"]
    words = rf"round 4: .* signed for round 1, and in this run .* at most {most} rounds late"
    with pytest.raises(StatementError, match=words):
        verify(run_dir, members=PUBLIC)


def test_a_reply_to_a_later_round_does_not_count_before_it(tmp_path, key):
    run_dir = late_run(tmp_path, [BOTH, ONCE, BOTH, ONCE, ONCE, BOTH], {6: 5}, **TWO_LATE)
    sign_replies(run_dir, {3: 5, 6: 6})
    make_statement(run_dir, key)
    with pytest.raises(StatementError, match=r"round 3: .* the one that it signed for round 5"):
        verify(run_dir, members=PUBLIC)


def test_the_records_say_of_a_late_reply_which_round_it_answers(tmp_path, key):
    """Means per draw rest on it: a reply that counts in round 4 is of the draw in round 3."""
    run_dir = late_run(tmp_path, [BOTH, ONCE, ONCE, BOTH, ONCE, ONCE], {4: 3}, **TWO_LATE)
    sign_replies(run_dir)
    clients = RunFolder(run_dir).clients
    lines = clients.read()
    clients.replace({**line, "asked_in": ""} for line in lines)
    make_statement(run_dir, key)
    words = r"round 4: .* signed for round 3, and clients\.csv has .* asked in round 4"
    with pytest.raises(StatementError, match=words):
        verify(run_dir, members=PUBLIC)


class NamedClockedGrid(ClockedGrid):
    """Members with names, each of which trains for its own time."""

    get_nodes = of.NamedGrid.get_nodes

    def push_messages(self, messages):
        """Send messages as they are now: the strategy writes the next round's into the same."""
        sent = list(messages)
        for message in sent:
            for name, record in message.content.config_records.items():
                message.content[name] = ConfigRecord(dict(record))
        return super().push_messages(sent)


def clocked(folder: Path) -> tuple[NamedClockedGrid, dict[str, VerifyingKey]]:
    """Return members that sign, and their keys: Cyd trains for 2.5 s, the others for 1 s."""
    keys = folder / "keys"
    if not keys.exists():
        of.write_keys(keys)
    own = {i: read_key_file(keys / name, name) for i, name in enumerate(of.NAMES)}
    client = of.guarded(client_app, own)
    grid = NamedClockedGrid(client, 3, lambda partition: 2.5 if partition == 2 else 1.0)
    return grid, {name: own[i].public_key() for i, name in enumerate(of.NAMES)}


def replies_of_cyd(run_dir: Path) -> list[tuple[str, str, str]]:
    """Return round, status and the round asked in of its lines."""
    lines = RunFolder(run_dir).clients.read()
    return [(r["round"], r["status"], r["asked_in"]) for r in lines if r["client_id"] == "1002"]


def test_a_buffered_run_takes_signed_replies_however_late_they_are(tmp_path, key):
    """Cyd's replies of rounds 1 and 4 come two rounds later."""
    grid, members = clocked(tmp_path)
    buffered = {"pace.rounds": "buffered", "pace.buffer-size": 2, "num_server_rounds": 6}
    run_dir = of.run(grid, tmp_path / "runs", **buffered)
    late = [("1", "late", ""), ("3", "accepted", "1"), ("4", "late", ""), ("6", "accepted", "4")]
    assert replies_of_cyd(run_dir) == late
    make_statement(run_dir, key)
    # Ada and Bob answer at the same moment, in each of six rounds.
    expected = [SignedMember("ada", 6, 6), SignedMember("bob", 6, 6), SignedMember("cyd", 2, 2)]
    assert verify(run_dir, members=members).members == tuple(expected)


def test_a_late_reply_covers_the_round_done_again_in_which_it_was_asked(tmp_path, key):
    """The server is killed in round 5, and does it again; Cyd's reply to it counts in round 7."""
    paced = {"pace.quorum": 2, "pace.late-rounds": 3, "num_server_rounds": 7}
    paced |= {"checkpoint_every": 1, "resume": "auto"}
    with pytest.raises(Killed):
        receipted.run(clocked(tmp_path)[0], tmp_path, key, killed_at(5), **paced)
    grid, members = clocked(tmp_path)
    run_dir = receipted.run(grid, tmp_path, key, **paced)
    assert replies_of_cyd(run_dir)[-2:] == [("5", "late", ""), ("7", "accepted", "5")]
    make_statement(run_dir, key)
    assert verify(run_dir, members=members).redone == (5,)
