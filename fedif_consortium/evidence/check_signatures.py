"""Checks of what members signed: no update in the records was invented, changed or left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fedif_consortium.evidence.attempts import NOT_COUNTED, Attempts, read_attempts
from fedif_consortium.evidence.bound_rows import agreed_settings
from fedif_consortium.evidence.check_kept_replies import check_kept_replies
from fedif_consortium.evidence.keys import VerifyingKey, public_der
from fedif_consortium.evidence.names import as_read, holder_of, name_of
from fedif_consortium.evidence.part import run_id
from fedif_consortium.evidence.signed import Signatures, SignedUpdate
from fedif_flower.errors import EvidenceError, StatementError
from fedif_flower.foreign import refused_as
from fedif_flower.run.folder import RunFolder


class SignedMember(NamedTuple):
    """How many of its accepted updates a client signed.

    Attributes
    ----------
    name : str
        The name of its key's holder, or its own name if it has no known key.
    signed, accepted : int
        How many of its updates were signed, and how many were accepted.
    earlier_ids : tuple of int
        Other client ids for which the same holder signed earlier rounds: a member gets another id
        if it is registered anew while the run stands still.
    """

    name: str
    signed: int
    accepted: int
    earlier_ids: tuple[int, ...] = ()


def read_signatures(run: RunFolder) -> Signatures:
    """Return what members signed, by a run's ``signatures.csv``; no signature is checked yet.

    Raises
    ------
    StatementError
        If a line is malformed, or a round has two lines of one client.
    EvidenceError
        If a line, or ``provenance.json``, names attempts that were not declared.
    """
    signatures: dict[tuple[int, int], SignedUpdate] = {}
    table = run.signatures
    signed_run = run_id(run)
    attempts = read_attempts(run.provenance.read())
    for line, row in enumerate(table.read(), start=2):
        with refused_as(StatementError, f"{table.path.name}, line {line}"):
            place = _place(row)
            if place in signatures:
                raise ValueError("it is there twice")
            cells = {**row, **_terms(row, attempts)}
            signatures[place] = SignedUpdate.read(signed_run, cells)
    return signatures


def _terms(row: Mapping[str, str], attempts: Attempts | None) -> dict[str, Any]:
    """Return what a line's signature says of the attempt, by the fields of ``AgreedRun``.

    Raises
    ------
    StatementError
        If the line has no attempt, as in an earlier version.
    EvidenceError
        If the run does not declare the attempt.
    ValueError
        If the line has an attempt, and the run counts none.
    """
    if "attempt" not in row:
        raise StatementError(
            "signatures.csv was written by an earlier version of fedif-flower, in which members "
            "signed no attempt at a run: check it with that version"
        )
    number = int(row["attempt"])
    if attempts is not None:
        return attempts.agreed(number).terms()
    if number != 0:
        raise ValueError(f"attempt {number} at a run without attempts")
    return NOT_COUNTED.terms()


def check_signatures(
    run: RunFolder,
    signed: Signatures,
    names: Sequence[Mapping[int, str]],
    members: Mapping[str, VerifyingKey] | None = None,
) -> tuple[SignedMember, ...]:
    """Check all signatures of a run, and that members with a key signed all accepted updates.

    With ``updates.keep``, also check that the kept updates follow from the signed ones.

    Parameters
    ----------
    run : RunFolder
        The run's folder.
    signed : mapping of (int, int) to SignedUpdate
        Its signatures by round and client id, see :func:`read_signatures`.
    names : sequence of mapping of int to str
        Members' names by client id, in the statement and in the records.
    members : mapping of str to public key, optional
        Members' public keys by name, which do not come from the run itself. Without them,
        signatures are checked with the keys in ``signatures.csv``.

    Returns
    -------
    tuple of SignedMember
        For each client, how many of its accepted updates were signed; empty if nothing was signed
        and no ``members`` are given.

    Raises
    ------
    StatementError
        If an update was invented, changed, left out or counted twice, or one holder's keys sign
        for two clients by turns. The message names round and member.
    """
    check = _SignatureCheck(run, names, members)
    for place, update in signed.items():
        check.require_genuine(place, update)
    check.require_one_signer_each(signed)
    check_kept_replies(run, signed)
    return check.count(signed)


class _SignatureCheck:
    """One check of a run's signatures: what the records say, and the keys seen so far."""

    def __init__(
        self,
        run: RunFolder,
        names: Sequence[Mapping[int, str]],
        members: Mapping[str, VerifyingKey] | None,
    ) -> None:
        lines = run.clients.read()
        self._names = names
        self._members = members
        self._holders: dict[bytes, str] = {}  # Members' names by their public keys (DER).
        for name, key in (members or {}).items():
            self._holders[public_der(key)] = holder_of(name)
        self._replies = _accepted_or_refused(lines)
        self._late = {_place(row) for row in lines if row["status"] == "late"}
        settings = agreed_settings(run)
        self._most_rounds_late = _most_rounds_late(settings)
        self._must_be_signed = bool(settings.get("evidence.require-signatures"))
        # The round in which a reply counts, by the round in which it was asked for and client id.
        self._counted: dict[tuple[int, int], int] = {}
        self._keys: dict[int, bytes] = {}  # The first key of each client id.
        # For each client id, the ids under which the same holder signed before.
        self._earlier_ids: dict[int, tuple[int, ...]] = {}
        # The digest of the model that members received, by the round in which it was sent.
        self._received: dict[int, bytes] = {}

    def require_genuine(self, place: tuple[int, int], update: SignedUpdate) -> None:
        """Raise StatementError unless an update was signed by its member and for its round.

        ``place`` is the round and the client id under which the records have it.
        """
        _, client_id = place
        where = self._update(place)
        try:
            update.check()
        except EvidenceError as error:
            raise StatementError(f"{where} is not the one that was signed: {error}") from error
        asked_in = update.asked_in
        received = self._received.setdefault(asked_in, update.received)
        if received != update.received:
            raise StatementError(f"round {asked_in}: members were sent different models")
        self._require_own_key(where, client_id, update)
        self._require_in_time(where, place, asked_in)
        self._require_same_reply(where, place, update)
        self._require_counted_once(where, place, asked_in)

    def _require_own_key(self, where: str, client_id: int, update: SignedUpdate) -> None:
        """Raise StatementError unless an update is signed with the key of the member it counts for.

        ``where`` names the update in the error.
        """
        if self._members is not None and update.key not in self._holders:
            raise StatementError(f"{where} is signed with a key that is no member's")
        if update.node_id != client_id:
            raise StatementError(f"{where} is the one that {self._name_of(update.node_id)} signed")
        before = self._keys.setdefault(client_id, update.key)
        if self._members is None:
            if before != update.key:
                raise StatementError(
                    f"{where} is signed with another key than before; if the member got another "
                    "one, --members needs both"
                )
            return
        # A member may have got another key while the run stood still; ``members`` has both then.
        if self._holders[before] != self._holders[update.key]:
            raise StatementError(f"{where} is signed with another key than before")
        holder = self._holders[update.key]
        for names in self._names:
            name = names.get(client_id, holder)
            if as_read(name) != as_read(holder):
                raise StatementError(f"{where} is signed with the key of {holder}")

    def require_one_signer_each(self, signed: Signatures) -> None:
        """Raise StatementError if the keys of one holder sign for two clients by turns.

        A member that is registered anew signs for another client id from some round on. This is
        allowed, since it signs for the earlier id no more.
        """
        # By holder (its name, or its key if there is no name) and client id: rounds asked in.
        rounds = defaultdict[str | bytes, dict[int, list[int]]](dict)
        for (_, client_id), update in signed.items():
            holder = self._holders.get(update.key, update.key)
            rounds[holder].setdefault(client_id, []).append(update.asked_in)
        for holder, rounds_by_id in rounds.items():
            client_ids = sorted(rounds_by_id, key=lambda client_id: min(rounds_by_id[client_id]))
            for earlier, later in pairwise(client_ids):
                last = max(rounds_by_id[earlier])
                if min(rounds_by_id[later]) <= last:
                    key = "one key"
                    if isinstance(holder, str):  # Otherwise it is not known whose key it is.
                        key = f"the key of {holder}"
                    raise StatementError(
                        f"{self._name_with_id(earlier)} and {self._name_with_id(later)} are "
                        f"both signed for with {key}, as late as round {last}; allowed: one of them"
                    )
            for index, client_id in enumerate(client_ids):
                self._earlier_ids[client_id] = tuple(client_ids[:index])

    def _require_in_time(self, where: str, place: tuple[int, int], asked_in: int) -> None:
        """Raise StatementError unless a reply came in the round in which it was asked for.

        It may also be late by as many rounds as the run allows, if ``clients.csv`` says so.
        """
        number, client_id = place
        if asked_in == number:
            return
        if asked_in > number or (asked_in, client_id) not in self._late:
            raise StatementError(f"{where} is the one that it signed for round {asked_in}")
        most = self._most_rounds_late
        if most is not None and number - asked_in > most:
            raise StatementError(
                f"{where} is the one that it signed for round {asked_in}, and in this run a reply "
                f"may come at most {most} rounds late"
            )

    def _require_counted_once(self, where: str, place: tuple[int, int], asked_in: int) -> None:
        """Raise StatementError if the reply to one request counts in two rounds."""
        if self._replies[place]["status"] != "accepted":
            return
        number, client_id = place
        counted_in = self._counted.setdefault((asked_in, client_id), number)
        if counted_in != number:
            raise StatementError(
                f"{where} is the one that it signed for round {asked_in}, and counts in round "
                f"{counted_in} already"
            )

    def _require_same_reply(self, where: str, place: tuple[int, int], update: SignedUpdate) -> None:
        """Raise StatementError unless clients.csv has the reply that the member signed.

        It has to answer the same request, and to claim the same number of examples.
        """
        row = self._replies.get(place)
        if row is None:
            raise StatementError(f"{where} was signed, and clients.csv has no such reply")
        if row["status"] != "accepted":
            return
        number, _ = place
        asked_in = int(row.get("asked_in") or number)
        if asked_in != update.asked_in:
            raise StatementError(
                f"{where} was signed for round {update.asked_in}, and clients.csv has that it was "
                f"asked in round {asked_in}"
            )
        with refused_as(StatementError, f"{where}: clients.csv does not say of how many examples"):
            recorded = float(row.get("claimed_examples") or row.get("num_examples") or "nan")
        if recorded != update.examples:
            raise StatementError(
                f"{where} was signed with {update.examples:g} examples, and clients.csv has "
                f"{recorded:g}"
            )

    def count(self, signed: Signatures) -> tuple[SignedMember, ...]:
        """Return how many of its accepted updates each client signed.

        Raises
        ------
        StatementError
            If an accepted update is not signed, though its member's key is known, or the run
            refuses updates without a signature.
        """
        with_key = self._with_key()
        # For each client id, whether each of its accepted updates is signed.
        signed_or_not: dict[int, list[bool]] = {}
        for place, row in sorted(self._replies.items()):
            if row["status"] != "accepted":
                continue
            _, client_id = place
            is_signed = place in signed
            if client_id in with_key and not is_signed:
                where = self._update(place)
                raise StatementError(f"{where} is not signed, though this member has a key")
            if self._must_be_signed and not is_signed:
                where = self._update(place)
                raise StatementError(
                    f"{where} is not signed, and the run has evidence.require-signatures = True"
                )
            signed_or_not.setdefault(client_id, []).append(is_signed)
        if not signed and not self._members:
            return ()
        members = []
        for client_id, updates in sorted(signed_or_not.items()):
            name = self._signer(client_id)
            earlier_ids = self._earlier_ids.get(client_id, ())
            members.append(SignedMember(name, updates.count(True), len(updates), earlier_ids))
        return tuple(members)

    def _with_key(self) -> set[int]:
        """Return the client ids whose keys are known, by their name or by a signature of theirs."""
        if not self._members:
            return set()
        holders = {as_read(name) for name in self._holders.values()}
        with_key = set(self._keys)
        for names in self._names:
            for client_id, name in names.items():
                if as_read(name) in holders:
                    with_key.add(client_id)
        return with_key

    def _signer(self, client_id: int) -> str:
        """Return the name of the holder of a client's key; the client's name if that is unknown."""
        key = self._keys.get(client_id, b"")
        return self._holders.get(key) or self._name_of(client_id)

    def _update(self, place: tuple[int, int]) -> str:
        number, client_id = place
        return f"round {number}: the update of {self._name_of(client_id)}"

    def _name_of(self, client_id: int) -> str:
        return name_of(client_id, self._names)

    def _name_with_id(self, client_id: int) -> str:
        """Return a client's name with its id, since two clients may have the same name."""
        name = self._name_of(client_id)
        id_in_words = f"client {client_id}"
        if name == id_in_words:
            return name
        return f"{name} ({id_in_words})"


def _most_rounds_late(settings: Mapping[str, Any]) -> int | None:
    """Return how many rounds late a reply may come; ``None`` if any number, or it is not known."""
    late_rounds = settings.get("pace.late-rounds")
    if late_rounds is None:
        return None
    if settings.get("pace.rounds") == "buffered" and not late_rounds:
        return None
    return int(late_rounds)


def _place(row: Mapping[str, str]) -> tuple[int, int]:
    return int(row["round"]), int(row["client_id"])


def _accepted_or_refused(lines: Iterable[dict[str, str]]) -> dict[tuple[int, int], dict[str, str]]:
    """Return the lines of accepted and refused replies in ``clients.csv``, by round and client."""
    replies: dict[tuple[int, int], dict[str, str]] = {}
    for row in lines:
        place = _place(row)
        if row["status"] == "accepted":
            replies[place] = row
        elif row["status"] == "refused":
            # A node's second reply is refused: it does not replace the first one.
            replies.setdefault(place, row)
    return replies
