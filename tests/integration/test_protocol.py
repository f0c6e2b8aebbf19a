"""A registered member that speaks the protocol itself does its worst; two honest ones learn on."""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import httpx
import pytest
from flwr.app import Message

from client_app import app
from fedif_flower.run.recorder import read_rows
from tests.integration.deployed import REPOSITORY, Deployment, marks
from tests.integration.protocol import Member, join
from tests.integration.protocol_attacks import ATTACKS, Attack, refused, several

pytestmark = marks

NAMES = ("honest", "victim", "hostile")
# A round takes over a hundred calls, one after the other, and more than that of training and
# aggregation; how long a call takes is measured.
CALLS = 500
MIN_TIMEOUT = 4.0
# What a busy machine may need beyond the deadline: the last sweep, aggregation, evaluation.
GRACE = 12.0
# In the first rounds, programs and data are read for the first time.
WARM_UP = 2
MAX_RESIDENT_BYTES = 1.5e9


class Arena:
    """A SuperLink behind TLS, and three members that this process plays."""

    def __init__(self, directory: Path) -> None:
        self.deployment = Deployment(directory)
        self.members: dict[str, Member] = {}
        self.peak: dict[str, int] = {}
        self.timeout = MIN_TIMEOUT

    def __enter__(self) -> Arena:
        self.deployment.__enter__()
        self.deployment.start_superlink()
        self.members = {name: join(self.deployment, name) for name in NAMES}
        started, tries = time.monotonic(), 20
        for _ in range(tries):
            self.members["honest"].next_message()
        self.timeout = max(MIN_TIMEOUT, CALLS * (time.monotonic() - started) / tries)
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            member.close()
        self.deployment.__exit__()

    def play(self, name: str, rounds: int, attack_of: Callable[[int], Attack]) -> Path:
        """Play a run to its end, and return the directory of its results."""
        config = {
            "num-clients": len(NAMES),
            "fraction-train": 1.0,
            "num-server-rounds": rounds,
            "local-epochs": 1,
            "round-timeout": self.timeout,
            "run-name": name,
            "device": "cpu",
            "checkpoint-every": 0,
            # On a busy machine the first ones may take longer: programs and data are read.
            "max-failed-rounds": 10,
            "max-paused-turns": 0,
        }
        run_id = self.deployment.submit(REPOSITORY, config)
        run_dir = self.deployment.server / "runs" / name
        waiting: dict[str, Message] = {}
        attacks, attacking = 0, None
        since = looked = time.monotonic()
        while True:
            for who, member in self.members.items():
                if who == "hostile" and attacking is not None and attacking.is_alive():
                    continue
                if who in waiting or (message := _next(member)) is None:
                    continue
                if message.metadata.message_type == "query":
                    self._answer(who, message)
                else:
                    waiting[who], since = message, time.monotonic()
            # Honest members give the hostile one a start.
            if {"victim", "hostile"} <= waiting.keys():
                attacks += 1
                given = self.members["hostile"], waiting.pop("hostile"), waiting["victim"]
                # Beside the others, as it would: what it costs them is what is measured.
                attacking = Thread(target=attack_of(attacks), args=given, daemon=True)
                attacking.start()
                attacking.join(self.timeout / 20)
            if "hostile" not in waiting or time.monotonic() - since > self.timeout / 3:
                for who in ("honest", "victim"):
                    if who in waiting:
                        self._answer(who, waiting.pop(who))
            if time.monotonic() - looked > 2.0:
                looked = time.monotonic()
                self._measure()
                if (run_dir / "rounds.csv").exists() and not self._is_running():
                    break
            time.sleep(0.05)  # Each look costs the SuperLink some 10 ms.
        status, details = self.deployment.outcome(run_id)
        assert status == "finished:completed", details + self.deployment.run_log(run_id)
        return run_dir

    def _answer(self, who: str, message: Message) -> None:
        member, partition = self.members[who], NAMES.index(who)
        config = {"partition-id": partition, "num-partitions": len(NAMES)}
        context = member.context(message, config)
        try:
            member.send(app(message, context))
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 403:  # The run has ended.
                raise

    def _is_running(self) -> bool:
        return any("flwr-serverapp" in command for _, command in self._processes())

    def _processes(self) -> list[tuple[int, str]]:
        found = []
        for pid in self.deployment.marked.alive():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                found.append((pid, command))
        return found

    def _measure(self) -> None:
        """Note the most memory that each process of the server has ever held."""
        for pid, command in self._processes():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                for kind in ("guarded_superlink", "flwr-serverapp"):
                    if kind in command and (found := re.search(r"VmHWM:\s+(\d+) kB", status)):
                        self.peak[kind] = max(self.peak.get(kind, 0), int(found[1]) * 1024)


def _next(member: Member) -> Message | None:
    try:
        return member.next_message()
    except httpx.HTTPStatusError:
        return None  # The run that the message belongs to has ended.


def check(arena: Arena, run_dir: Path, rounds: int) -> None:
    """Both honest members counted in every round, which kept its timeout; the model learned."""
    rows = read_rows(run_dir / "rounds.csv")
    assert [int(row["round"]) for row in rows] == list(range(rounds + 1))
    late = {row["round"]: row["round_seconds"] for row in rows[1 + WARM_UP :]}
    assert all(float(seconds) < arena.timeout + GRACE for seconds in late.values()), late
    clients = read_rows(run_dir / "clients.csv")
    honest = [r for r in clients if r["partition_id"] in ("0", "1") and int(r["round"]) > WARM_UP]
    missed = [row for row in honest if row["rejection"]]
    # A busy machine may let one come too late now and then; no attack may.
    assert len(missed) <= max(2, 0.02 * len(honest)), [(r["round"], r["rejection"]) for r in missed]
    first, last = float(rows[0]["test_accuracy"]), float(rows[-1]["test_accuracy"])
    assert last > first + 0.3, (first, last)
    assert arena.peak.keys() == {"guarded_superlink", "flwr-serverapp"}
    assert max(arena.peak.values()) < MAX_RESIDENT_BYTES, arena.peak


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with Arena(tmp_path_factory.mktemp("protocol")) as arena:
        yield arena


def test_every_attack(arena: Arena) -> None:
    """Several a time: a member whose replies are of no use is asked ever less often."""
    left = dict(ATTACKS)

    def attack(member: Member, message: Message, victim: Message) -> None:
        for name in list(left)[:5]:
            with refused():
                left.pop(name)(member, message, victim)

    run_dir = arena.play("every", 16, lambda _: attack)
    check(arena, run_dir, 16)
    assert left == {}


@pytest.mark.parametrize(
    "rounds", [6, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(7200)])]
)
def test_random_attacks(arena: Arena, rounds: int) -> None:
    generator = random.Random(rounds)
    run_dir = arena.play(f"random-{rounds}", rounds, lambda _: several(generator))
    check(arena, run_dir, rounds)
