"""A registered member that speaks the protocol itself does its worst; two honest ones learn on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Message

from fedif_flower.run.rows import read_rows
from tests.integration.deployed import Deployment, marks, wait_for
from tests.integration.played import Played, peak_of
from tests.integration.protocol import Member
from tests.integration.protocol_attacks import ATTACKS, GUESSES, mount

pytestmark = [*marks, pytest.mark.all]

NAMES = ("honest", "victim", "hostile")
# An attack may take half of it; only the last one, after which nothing comes, takes all.
TIMEOUT = 45.0
# What the last sweep, aggregation and evaluation may need beyond it on a busy machine.
GRACE = 30.0
MOST_BYTES = 1.5e9


class Arena(Played):
    """In each round the victim waits, at most for some time, until it was attacked."""

    def __init__(self, directory: Path) -> None:
        run = {
            "pace.timeout": TIMEOUT,
            # The hostile one is to have a turn in every round, whatever it did before.
            "max-paused-turns": 0,
            "least-participation": 0.0,
        }
        answers = {"victim": self._wait, "hostile": self._attack}
        super().__init__(Deployment(directory), NAMES, answers, **run)
        self._asked: Message | None = None  # What the victim received last.
        self._attacked = 0  # The last round in which the attack is over.
        self.left, self.done = list(ATTACKS), set[str]()
        self.leaked: set[str] = set()

    def _wait(self, member: Member, message: Message) -> None:
        self._asked = message
        until = time.monotonic() + TIMEOUT / 2
        while self._attacked < round_of(message) and time.monotonic() < until:
            time.sleep(0.05)
        self.honest(member, message)

    def _attack(self, member: Member, message: Message) -> None:
        until = time.monotonic() + TIMEOUT / 4
        while self._asked is None or round_of(self._asked) < round_of(message):
            if time.monotonic() > until:
                return
            time.sleep(0.05)
        if not self.left:
            self.honest(member, message)
            return
        others = [name for name in NAMES[:2] if _mentions(member.received, self.members[name])]
        self.leaked.update(others)
        mount(self.left[0], member, message, self._asked)
        self.done.add(self.left.pop(0))
        self._attacked = round_of(message)


def round_of(message: Message) -> int:
    return int(message.content.config_records["config"]["server-round"])


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
        wait_for("every attack", lambda: not arena.left, timeout=600.0)
        over = len(arena.seconds()) + 2
        wait_for("two more rounds", lambda: len(arena.seconds()) >= over, timeout=300.0)
        yield arena


def test_every_attack_was_mounted(arena: Arena) -> None:
    assert arena.done == set(ATTACKS)


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
