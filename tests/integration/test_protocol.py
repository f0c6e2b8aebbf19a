"""A registered member that speaks the protocol itself does its worst; two honest ones learn on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Message

from fedif_flower.run.rows import read_rows
from tests.integration.deployed import marks, wait_for
from tests.integration.played import PAUSE, Played, peak_of
from tests.integration.protocol import Member
from tests.integration.protocol_attacks import ATTACKS, GUESSES, mount

pytestmark = [*marks, pytest.mark.all]

NAMES = ("honest", "victim", "hostile")
# Only the last attack, after which nothing comes, takes all of it.
TIMEOUT = 45.0
# What the last sweep, aggregation and evaluation may need beyond it on a busy machine.
GRACE = 30.0
MOST_BYTES = 1.5e9


class Arena(Played):
    """In each round the victim answers once it was attacked."""

    def __init__(self, directory: Path) -> None:
        # The hostile one is to have a turn in every round, whatever it did before.
        run = {"pace.timeout": TIMEOUT, "max-paused-turns": 0, "least-participation": 0.0}
        super().__init__(directory, NAMES, **run)
        self.leaked: set[str] = set()

    def round(self, attack: str | None = None) -> None:
        """Play a round, once everybody has been asked."""
        asked: dict[str, Message] = {}

        def everybody() -> bool:
            for name in NAMES:
                if name not in asked and (message := self.asked(self.members[name])):
                    asked[name] = message
            return len(asked) == len(NAMES)

        wait_for("a round", everybody, pause=PAUSE)
        hostile = self.members["hostile"]
        self.leaked |= {n for n in NAMES[:2] if _mentions(hostile.received, self.members[n])}
        if attack is not None:
            mount(attack, hostile, asked.pop("hostile"), asked["victim"])
        for name, message in asked.items():
            self.honest(self.members[name], message)


def _mentions(received: bytes, member: Member) -> bool:
    """Return whether bytes hold a node's id: in decimal, as eight bytes, or as protobuf has it."""
    node_id = rest = member.node_id
    varint = b""
    while rest > 127:
        varint, rest = varint + bytes([rest & 127 | 128]), rest >> 7
    fixed = (node_id.to_bytes(8, order) for order in ("little", "big"))
    return any(form in received for form in (str(node_id).encode(), varint + bytes([rest]), *fixed))


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with Arena(tmp_path_factory.mktemp("protocol")) as arena:
        for attack in (*ATTACKS, None, None):
            arena.round(attack)
        played = len(ATTACKS) + 2
        wait_for("the last round", lambda: len(arena.seconds()) >= played, pause=PAUSE)
        yield arena


def test_honest_replies_count_and_the_model_learns(arena: Arena) -> None:
    rows = [r for r in read_rows(arena.run_dir / "clients.csv") if int(r["partition_id"]) < 2]
    accepted = [row for row in rows if row["status"] == "accepted"]
    # Or the machine was too busy to answer in time.
    assert len(accepted) > 0.8 * len(rows)
    assert {row["status"] for row in rows} <= {"accepted", "away"}
    accuracies = [float(r["test_accuracy"]) for r in read_rows(arena.run_dir / "rounds.csv")]
    assert accuracies[-1] > accuracies[0] + 0.3


def test_rounds_keep_their_timeout(arena: Arena) -> None:
    assert max(arena.seconds()) < TIMEOUT + GRACE


def test_nobody_answers_in_anothers_name_whose_id_no_message_holds(arena: Arena) -> None:
    hostile = arena.members["hostile"]
    assert hostile.guesses >= GUESSES
    assert (hostile.hits, arena.leaked) == (0, set())


def test_the_server_stays_small(arena: Arena) -> None:
    peaks = [peak_of(pid) for pid in arena.servers("guarded_superlink", "flwr-serverapp")]
    assert len(peaks) >= 2
    assert max(peaks) < MOST_BYTES
