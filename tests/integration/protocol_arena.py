"""A SuperLink behind TLS, a real ServerApp, and three members that the test itself plays."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import httpx
from flwr.app import Message

from client_app import app
from tests.integration.deployed import REPOSITORY, Deployment
from tests.integration.protocol import Member, join
from tests.integration.protocol_attacks import Attack

HONEST = ("honest", "victim")
NAMES = (*HONEST, "hostile")
# A round takes as long as some 70 calls, one after the other. What a call takes is measured, so
# that a busy machine gets longer rounds.
CALLS = 300
MIN_TIMEOUT, MAX_TIMEOUT = 20.0, 60.0
PROCESSES = ("guarded_superlink", "flwr-serverapp")


@dataclass
class Played:
    """What became of a run: its directory, who answered when, and what its server held."""

    run_dir: Path
    timeout: float
    # Seconds from a message to the end of its answer's upload, by round and honest member.
    answered: dict[tuple[int, str], float] = field(default_factory=dict)
    attacks: int = 0
    guesses: int = 0
    hits: int = 0
    leaked: set[str] = field(default_factory=set)
    peaks: dict[str, int] = field(default_factory=dict)


class Arena:
    """A context manager: one registered member answers with an attack, two honestly."""

    def __init__(self, directory: Path) -> None:
        self.deployment = Deployment(directory)
        self.members: dict[str, Member] = {}
        self.timeout = MIN_TIMEOUT

    def __enter__(self) -> Arena:
        self.deployment.__enter__()
        try:
            # Attacks come as fast as they can be sent: test_siege.py is about the rate.
            self.deployment.start_superlink()
            self.members = {name: join(self.deployment, name) for name in NAMES}
            started, tries = time.monotonic(), 20
            for _ in range(tries):
                self.members["honest"].next_message()
        except BaseException:
            self.__exit__()
            raise
        measured = CALLS * (time.monotonic() - started) / tries
        self.timeout = min(max(MIN_TIMEOUT, measured), MAX_TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            member.close()
        self.deployment.__exit__()

    def play(self, name: str, rounds: int, attack_of: Callable[[int], Attack]) -> Played:
        """Play a run to its end; ``attack_of`` gives the attack of each turn, from 0."""
        config = {
            "num-clients": len(NAMES),
            "fraction-train": 1.0,
            "num-server-rounds": rounds,
            "local-epochs": 1,
            "pace.timeout": self.timeout,
            "run-name": name,
            "device": "cpu",
            "checkpoint-every": 0,
            # The hostile one is to have a turn in every round, whatever it did before.
            "max-paused-turns": 0,
            "least-participation": 0.0,
        }
        run_id = self.deployment.submit(REPOSITORY, config)
        played = Played(self.deployment.server / "runs" / name, self.timeout)
        turns = _Turns(self.members, played, attack_of)
        with (self.deployment.directory / f"{name}-memory.csv").open("w", buffering=1) as memory:
            print("time", *PROCESSES, sep=",", file=memory)
            looked, started = time.monotonic(), False
            while True:
                turns.look()
                time.sleep(0.05)  # Each look costs the SuperLink some 10 ms.
                if time.monotonic() - looked < 2.0:
                    continue
                looked = time.monotonic()
                running = self._measure(played.peaks)
                peaks = (played.peaks.get(kind, 0) for kind in PROCESSES)
                print(time.time(), *peaks, sep=",", file=memory)
                if started and not running:
                    break
                started |= running
        status, details = self.deployment.outcome(run_id)
        assert status == "finished:completed", details + self.deployment.run_log(run_id)
        return played

    def _measure(self, peaks: dict[str, int]) -> bool:
        """Note the most that the server's processes have held; return whether the app runs."""
        running = False
        for pid in self.deployment.marked.alive():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_text()
                status = Path(f"/proc/{pid}/status").read_text()
                for kind in PROCESSES:
                    if kind in command and (found := re.search(r"VmHWM:\s+(\d+) kB", status)):
                        peaks[kind] = max(peaks.get(kind, 0), int(found[1]) * 1024)
                        running |= kind == PROCESSES[1]
        return running


class _Turns:
    """What the members do, look by look."""

    def __init__(
        self, members: dict[str, Member], played: Played, attack_of: Callable[[int], Attack]
    ) -> None:
        self.members = members
        self.played = played
        self._attack_of = attack_of
        self._attack: Thread | None = None
        self._last: Message | None = None  # What the victim received last.

    def look(self) -> None:
        """Look for a message to each; the hostile one is ahead of the victim."""
        honest, victim = (self._next(name) for name in HONEST)
        self._last = victim or self._last
        if self._attack is None or not self._attack.is_alive():
            self._begin_attack()
        # Beside the attack, as it would be: what that costs the others is what is measured.
        if honest is not None:
            self._answer("honest", honest)
        if victim is not None:
            if self._attack is not None:
                self._attack.join(self.played.timeout / 3)
            self._answer("victim", victim)

    def _begin_attack(self) -> None:
        hostile = self.members["hostile"]
        self.played.guesses, self.played.hits = hostile.guesses, hostile.hits
        message = self._next("hostile")
        if message is None or self._last is None:
            return
        for name in HONEST:
            if _mentions(hostile.received, self.members[name].node_id):
                self.played.leaked.add(name)
        attack = self._attack_of(self.played.attacks)
        self.played.attacks += 1
        self._attack = Thread(target=attack, args=(hostile, message, self._last), daemon=True)
        self._attack.start()

    def _next(self, name: str) -> Message | None:
        """Return the next message that is not the question who somebody is: that is answered."""
        try:
            message = self.members[name].next_message()
        except httpx.HTTPStatusError:
            return None  # The run that the message belongs to has ended.
        if message is not None and message.metadata.message_type == "query":
            self._answer(name, message)
            return None
        return message

    def _answer(self, name: str, message: Message) -> None:
        member = self.members[name]
        config = {"partition-id": NAMES.index(name), "num-partitions": len(NAMES)}
        try:
            sent = member.send(app(message, member.context(message, config)))
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 403:  # The run has ended.
                raise
            return
        if sent and message.metadata.message_type == "train":
            server_round = int(message.content.config_records["config"]["server-round"])
            took = time.time() - message.metadata.created_at
            self.played.answered[server_round, name] = took


def _mentions(received: bytes, node_id: int) -> bool:
    """Return whether bytes hold a node's id: in decimal, as eight bytes, or as protobuf has it."""
    varint, rest = b"", node_id
    while rest > 127:
        varint, rest = varint + bytes([rest & 127 | 128]), rest >> 7
    forms = (
        str(node_id).encode(),
        node_id.to_bytes(8, "little"),
        node_id.to_bytes(8, "big"),
        varint + bytes([rest]),
    )
    return any(form in received for form in forms)
