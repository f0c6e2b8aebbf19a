"""Reads what a member kept in its ``receipts-dir``, of one run and of other attempts at it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedif_consortium.evidence.attempts import AgreedRun, SeenAttempt
from fedif_consortium.evidence.member_receipts import RUN_ID
from fedif_consortium.evidence.receipts import ToldRound, read_leaf
from fedif_consortium.evidence.signed import SignedUpdate, first_error
from fedif_flower.errors import ConfigError, EvidenceError, StatementError
from fedif_flower.foreign import parse_json, read_whole
from fedif_flower.messages.text import printable

# The names of files with what the server told begin so; other files have what the member sent.
_ROUND = "round-"


@dataclass(frozen=True)
class HeldReceipts:
    """What a member kept of a run: rounds that the server signed, and digests of what it sent.

    Attributes
    ----------
    name : str
        The member's name, which is that of its folder.
    rounds : sequence of ToldRound
        The rounds that the server told the member, in the order of the chain.
    sent : mapping of (int, int) to set of str
        The digests in hex of the models that the member sent, by attempt and round.
    client_id : int, optional
        The member's id in its leaves, which the server signed; ``None`` if it has no leaf.
    node_id : int, optional
        The member's id in its notes of what it sent. The member alone vouches for these.
    attempts : tuple of SeenAttempt
        All attempts of which the member has evidence, at this run or at other runs of its name.
    last_sent : mapping of int to int
        The last round in which the member sent something, by attempt.
    elsewhere : tuple of str
        The ids of runs of this name whose heads were signed with other keys: they belong to
        another operator, or to the same operator with another key.
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
        """The member's leaves with their numbers among all leaves of the run, in their order."""
        lines: list[tuple[int, str]] = []
        for told_round in self.rounds:
            lines.extend(told_round.numbered())
        return sorted(lines)

    @property
    def size(self) -> int:
        """The number of leaves in the longest history that the member was told."""
        return max((told_round.size for told_round in self.rounds), default=0)


def read_held(folder: Path, run: str, name: str = "") -> HeldReceipts:
    """Return what a member kept of a run in its ``receipts-dir``.

    Parameters
    ----------
    folder : Path
        The ``receipts-dir``, or the run's folder in it.
    run : str
        The run's id.
    name : str
        The run's name. Other runs of this name are other attempts at it. Empty: attempts are not
        looked for.

    Raises
    ------
    ConfigError
        If the folder holds nothing of this run.
    StatementError
        If a file is damaged, its signature does not fit, or it belongs to another member than the
        files beside it.
    """
    run_folder = folder
    if folder.name != run:
        run_folder = folder / run
    paths = sorted(run_folder.glob("*.json"))
    if not paths:
        raise ConfigError(
            f"receipts = {str(folder)!r} holds no receipts of run {run}{_others(folder)}"
        )
    receipts_dir = run_folder.absolute().parent
    rounds: list[ToldRound] = []
    sent = defaultdict[tuple[int, int], set[str]](set)
    client_id: int | None = None
    node_id: int | None = None
    last_sent: dict[int, int] = {}
    for path in paths:
        content = _read(path, run)
        if path.name.startswith(_ROUND):
            told_round = _read_told(path, run, content)
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
    """Return ``client_id``, the member to which the file at ``path`` belongs.

    Parameters
    ----------
    path : Path
        The file.
    client_id : int
        The member's id by this file.
    *before : int, optional
        The member's id by the files before it; ``None`` if they do not say it.

    Raises
    ------
    StatementError
        If the files name different members: a folder holds the receipts of one member.
    """
    for other in before:
        if other is not None and other != client_id:
            raise StatementError(
                f"{path} is of client {client_id}, and a file beside it of client {other}: the "
                "receipts in a folder are those of one member"
            )
    return client_id


def _holder_of(receipts_dir: Path) -> str:
    """Return a member's name by the folder with its receipts."""
    # `fedif node join` makes receipts/ in the folder of a node, which is named after the member.
    if receipts_dir.name == "receipts":
        return receipts_dir.parent.name
    return receipts_dir.name


def _others(folder: Path) -> str:
    """Return words that say of how many other runs a folder holds something; empty if of none."""
    others = [path for path in _run_folders(folder) if any(path.glob("*.json"))]
    if not others:
        return ""
    return f", but of {len(others)} other runs: is it of another federation?"


def _run_folders(folder: Path) -> list[Path]:
    """Return the folders of runs in a ``receipts-dir``."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if RUN_ID.fullmatch(path.name))


def _read(path: Path, run: str) -> dict[str, Any]:
    """Return the content of a file with receipts, after a check of its form and signature.

    Raises
    ------
    StatementError
        If the file is damaged, its signature does not fit, or an earlier version wrote it, which
        named no attempt.
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
            _read_told(path, run, content)
        else:
            int(content["round"])
            int(content["node_id"])
            bytes.fromhex(content["sent"])
            if "signature" in content:  # A member without a guard does not sign.
                _require_signed(SignedUpdate.read(run, content), int(content["round"]))
    except (OSError, KeyError, TypeError, ValueError, EvidenceError) as error:
        raise StatementError(f"{path} was changed: {printable(first_error(error))}") from error
    return content


def _require_signed(update: SignedUpdate, number: int) -> None:
    """Raise an error unless an update's signature fits, and is for round ``number``."""
    update.check()
    if update.asked_in != number:
        raise ValueError(f"round {number} is not the one that was signed, {update.asked_in}")


def _read_told(path: Path, run: str, content: Mapping[str, Any]) -> ToldRound:
    """Return the round that the server told, or raise StatementError if its check fails."""
    try:
        told_round = ToldRound.read(run, content)
        told_round.check()
    except (TypeError, ValueError, EvidenceError) as error:
        raise StatementError(f"{path} was changed: {printable(first_error(error))}") from error
    return told_round


def _seen_attempts(
    receipts_dir: Path, run_folder: Path, name: str, signers: set[bytes]
) -> tuple[tuple[SeenAttempt, ...], tuple[str, ...]]:
    """Return the attempts at a run of which a ``receipts-dir`` holds something.

    Parameters
    ----------
    receipts_dir, run_folder : Path
        The ``receipts-dir``, and the run's folder in it.
    name : str
        The run's name; empty: there are no attempts to look for.
    signers : set of bytes
        The keys (DER) with which this run's heads are signed.

    Returns
    -------
    tuple of SeenAttempt, tuple of str
        The attempts; then the ids of runs of the same name whose heads are signed with none of
        these keys. They are not attempts at this run.
    """
    if not name:
        return (), ()
    attempts: set[SeenAttempt] = set()
    elsewhere = []
    for folder in {run_folder, *_run_folders(receipts_dir)}:
        paths = sorted(folder.glob("*.json"))
        # A server may name a run in one way in one message, and in another way in the next.
        of_name = [path for path in paths if _name_in(path) == name]
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
    """Return the name that a file gives its run; empty if it gives none or cannot be read."""
    try:
        content = parse_json(read_whole(path))
    except (OSError, ValueError):
        return ""
    if not isinstance(content, dict):
        return ""
    return str(content.get("name", ""))
