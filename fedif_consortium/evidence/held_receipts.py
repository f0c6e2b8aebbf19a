"""What a member kept in its ``receipts-dir``: of one run, and of other attempts at it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedif_consortium.evidence.attempts import AgreedRun, SeenAttempt
from fedif_consortium.evidence.member_receipts import RUN_ID
from fedif_consortium.evidence.receipts import ToldRound, read_leaf
from fedif_consortium.evidence.signed import SignedUpdate
from fedif_flower.errors import ConfigError, EvidenceError, StatementError
from fedif_flower.foreign import parse_json, read_whole

_ROUND = "round-"  # Files of what the server told; others are of what the member sent.


@dataclass(frozen=True)
class HeldReceipts:
    """What a member kept of a run: what the server signed, and digests of what it sent, by round.

    Attributes
    ----------
    name : str
        What its folder is called.
    rounds : sequence of ToldRound
        What it was told, in the order of the chain.
    sent : mapping of (int, int) to set of str
        Digests of what it sent, by attempt and round.
    client_id : int, optional
        Whose they are, by its lines, which the server signed; ``None``: it has no line.
    node_id : int, optional
        Whose they are, as what it sent says; nobody but the member itself may have signed that.
    attempts : tuple of SeenAttempt
        Every attempt that it has something of, at this run or another one of its name.
    last_sent : mapping of int to int
        The last round for which it sent something, by attempt.
    elsewhere : tuple of str
        Ids of runs of this name that another server signed: others' runs, or the same operator's
        with another key.
    """

    name: str
    rounds: Sequence[ToldRound]
    sent: Mapping[tuple[int, int], set[str]]
    client_id: int | None = None
    node_id: int | None = None
    attempts: tuple[SeenAttempt, ...] = ()
    last_sent: Mapping[int, int] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()

    @property
    def lines(self) -> list[tuple[int, str]]:
        """Its leaves, in their order, with their numbers."""
        lines: list[tuple[int, str]] = []
        for told_round in self.rounds:
            lines.extend(told_round.numbered())
        return sorted(lines)

    @property
    def size(self) -> int:
        """How many leaves there are in the longest history that it was told."""
        return max((told_round.size for told_round in self.rounds), default=0)


def read_held(folder: Path, run: str, name: str = "") -> HeldReceipts:
    """Read what a member kept of a run in its ``receipts-dir``.

    Parameters
    ----------
    folder : Path
        The ``receipts-dir``, or the run's folder in it.
    run : str
        The run's id.
    name : str
        What the run is called: other runs of this name are other attempts.

    Raises
    ------
    ConfigError
        If it kept nothing of this run.
    StatementError
        Naming a file that is damaged, says what nobody signed, or is another member's than those
        beside it.
    """
    run_folder = folder
    if folder.name != run:
        run_folder = folder / run
    paths = sorted(run_folder.glob("*.json"))
    if not paths:
        raise ConfigError(f"receipts = {str(folder)!r} holds none of run {run}{_others(folder)}")
    receipts_dir = run_folder.absolute().parent
    rounds: list[ToldRound] = []
    sent = defaultdict[tuple[int, int], set[str]](set)
    client_id: int | None = None
    node_id: int | None = None
    last_sent: dict[int, int] = {}
    for path in paths:
        content = _read(path, run)
        if path.name.startswith(_ROUND):
            told_round = _told(path, run, content)
            rounds.append(told_round)
            for leaf in told_round.own.values():
                client_id = _same_member(
                    path, int(read_leaf(leaf)["client_id"]), client_id, node_id
                )
        else:
            number = int(content["round"])
            attempt = int(content["attempt"])
            sent[attempt, number].add(content["sent"])
            last_sent[attempt] = max(number, last_sent.get(attempt, 0))
            node_id = _same_member(path, int(content["node_id"]), client_id, node_id)
    signers = {told_round.key for told_round in rounds}
    attempts, elsewhere = _seen_attempts(receipts_dir, run_folder, name, signers)
    return HeldReceipts(
        name=_holder_of(receipts_dir),
        rounds=sorted(rounds, key=lambda told_round: told_round.size),
        sent=sent,
        client_id=client_id,
        node_id=node_id,
        attempts=attempts,
        last_sent=last_sent,
        elsewhere=elsewhere,
    )


def _same_member(path: Path, client_id: int, *before: int | None) -> int:
    """Return whose a file is: that of the files before it.

    Raises
    ------
    StatementError
        If it is another member's: a folder speaks for one.
    """
    for other in before:
        if other is not None and other != client_id:
            raise StatementError(
                f"{path} is of client {client_id}, and a file beside it of client {other}: the "
                "receipts in a folder are those of one member"
            )
    return client_id


def _holder_of(receipts_dir: Path) -> str:
    """Return what a member is called by its folder."""
    # `fedif node join` makes receipts/ in the folder of a node.
    if receipts_dir.name == "receipts":
        return receipts_dir.parent.name
    return receipts_dir.name


def _others(folder: Path) -> str:
    """Return how many other runs a folder holds something of, in words."""
    others = [path for path in _run_folders(folder) if any(path.glob("*.json"))]
    if not others:
        return ""
    return f"; it holds {len(others)} others"


def _run_folders(folder: Path) -> list[Path]:
    """Return the folders of runs in a ``receipts-dir``."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if RUN_ID.fullmatch(path.name))


def _read(path: Path, run: str) -> dict[str, Any]:
    """Return what a file holds, checked.

    Raises
    ------
    StatementError
        If it is damaged, says what nobody signed, or is of a version that names no attempt.
    """
    try:
        content = parse_json(read_whole(path))
        if not isinstance(content, dict) or content["run"] != run:
            raise ValueError("it is of another run")
        if "attempt" not in content:
            raise StatementError(
                f"{path} was kept by an earlier version of fedif-flower, whose receipts name no "
                "attempt at a run: compare it with that version"
            )
        if path.name.startswith(_ROUND):
            _told(path, run, content)
        else:
            int(content["round"])
            int(content["node_id"])
            bytes.fromhex(content["sent"])
            if "signature" in content:  # It may have signed nothing.
                _require_signed(SignedUpdate.read(run, content), int(content["round"]))
    except (OSError, KeyError, TypeError, ValueError, EvidenceError) as error:
        raise StatementError(f"{path} was changed: {error!r:.120}") from error
    return content


def _require_signed(update: SignedUpdate, number: int) -> None:
    """Raise an error unless a member signed what it keeps of an update, of that round."""
    update.check()
    if update.asked_in != number:
        raise ValueError(f"round {number} is not the one that was signed, {update.asked_in}")


def _told(path: Path, run: str, content: Mapping[str, Any]) -> ToldRound:
    """Return what the server told, checked."""
    try:
        told_round = ToldRound.read(run, content)
        told_round.check()
    except (TypeError, ValueError, EvidenceError) as error:
        raise StatementError(f"{path} was changed: {error!r:.120}") from error
    return told_round


def _seen_attempts(
    receipts_dir: Path, run_folder: Path, name: str, signers: set[bytes]
) -> tuple[tuple[SeenAttempt, ...], tuple[str, ...]]:
    """Return the attempts at a run that a ``receipts-dir`` holds something of.

    Runs of the same name that another server signed are others' runs: their ids come second.
    """
    attempts: set[SeenAttempt] = set()
    elsewhere = []
    for folder in {run_folder, *_run_folders(receipts_dir)}:
        paths = sorted(folder.glob("*.json"))
        # A server may call a run otherwise in one message than in the next.
        of_name = [path for path in paths if name and _name_in(path) == name]
        if not of_name:
            continue
        contents = [_read(path, folder.name) for path in of_name]
        keys = set()
        for path, content in zip(of_name, contents, strict=True):
            if path.name.startswith(_ROUND):
                keys.add(bytes.fromhex(content["key"]))
        if keys and signers and keys.isdisjoint(signers):
            elsewhere.append(folder.name)
            continue
        for content in contents:
            agreed = AgreedRun.model_validate(content)
            end = agreed.end(folder.name)
            attempts.add(SeenAttempt(agreed.attempt, folder.name, end))
    return tuple(sorted(attempts)), tuple(sorted(elsewhere))


def _name_in(path: Path) -> str:
    """Return what a file calls its run; empty: nothing that can be read."""
    try:
        content = parse_json(read_whole(path))
    except (OSError, ValueError):
        return ""
    if not isinstance(content, dict):
        return ""
    return str(content.get("name", ""))
