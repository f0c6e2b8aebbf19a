"""Checks of the chain of a run's records, and of members' receipts against it and each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedif_consortium.evidence.attempts import Attempts
from fedif_consortium.evidence.bound_rows import agreed_settings, origin_of, rows_by_round, state_of
from fedif_consortium.evidence.held_receipts import HeldReceipts, read_held
from fedif_consortium.evidence.names import name_of
from fedif_consortium.evidence.part import read_chain, run_id
from fedif_consortium.evidence.receipts import (
    RoundChain,
    ToldRound,
    read_leaf,
    round_leaves,
    why_it_cannot_follow,
)
from fedif_consortium.evidence.redone_rounds import counted_rounds, not_told, redone_rounds
from fedif_consortium.evidence.signed import Signatures
from fedif_flower.errors import EvidenceError, StatementError
from fedif_flower.foreign import refused_as
from fedif_flower.messages.text import printable
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.record_files import Table
from fedif_flower.words import enumerated

Names = Sequence[Mapping[int, str]]  # Tables of members' names by client id; the first one counts.


class LostUpdate(NamedTuple):
    """An update that a member says it sent, and of which the records say that no reply came."""

    member: str
    round: int


class CheckedReceipts(NamedTuple):
    """Members' receipts, and what they tell about the run.

    Attributes
    ----------
    held : tuple of HeldReceipts
        The receipts, by member.
    redone : tuple of int
        The numbers of the rounds that a resumed run did again or gave up.
    lost : tuple of LostUpdate
        What members sent in vain, if the records are right.
    """

    held: tuple[HeldReceipts, ...]
    redone: tuple[int, ...]
    lost: tuple[LostUpdate, ...] = ()


def last_head(run: RunFolder) -> str:
    """Return size and hash of the last head, as a manifest has them; empty without receipts."""
    return _last_head(read_chain(run, run_id(run)))


def _last_head(chain: RoundChain) -> str:
    if not chain.rounds:
        return ""
    last = chain.rounds[-1]
    return f"{last.size} {last.root.hex()}"


def check_receipts(
    run: RunFolder,
    manifest_head: str,
    signed: Signatures,
    folders: Sequence[Path],
    *,
    declared: Attempts | None = None,
    names: Names = (),
    trusted: bool = False,
) -> CheckedReceipts:
    """Check the chain of a run, and compare members' receipts with it and with each other.

    Parameters
    ----------
    run : RunFolder
        The run's folder.
    manifest_head : str
        The last head by the manifest, see :func:`last_head`.
    signed : mapping of (int, int) to SignedUpdate
        What members signed, by round and client id.
    folders : sequence of Path
        The members' folders of receipts (``receipts-dir``).
    declared : Attempts, optional
        The attempts at the run that the manifest declares.
    names : sequence of mapping of int to str
        Members' names by client id, in the statement and in the records.
    trusted : bool
        Whether ``signed`` was checked with keys that do not come from the run itself. Only then
        signatures count as proof that members knew of rounds that were done again.

    Raises
    ------
    ConfigError
        If a folder holds nothing of this run.
    StatementError
        If the records contradict themselves, the manifest, a receipt or a signature; if a round
        was done again without the knowledge of its members; if members were told different
        histories, or saw another attempt than the declared ones.
    """
    chain = read_chain(run, run_id(run))
    if _last_head(chain) != manifest_head:
        raise StatementError(f"{run.round_heads.path.name} is not what the manifest says")
    # First the records by themselves.
    settings = agreed_settings(run)
    _check_has_heads(run, chain, settings)
    _check_order(chain)
    _check_runs(chain, declared)
    if chain.rounds:
        _check_leaves(run, chain, signed)
        _check_rows(run, chain)
    # Then what members hold: with each other, and with the records.
    name = ""
    if declared is not None:
        name = declared.name
    held = [read_held(folder, run_id(run), name) for folder in folders]
    _require_one_history(held)
    may_be_late = _may_be_late(settings)
    for member in held:  # Before heads, since an error about a line names what was changed.
        _check_lines(member, chain, signed)
        _check_not_left_out(member, chain, may_be_late=may_be_late)
    for member in held:
        _check_heads(member, chain)
        _check_end(member, chain)
        _check_asked_once(member)
        _check_attempts(member, declared)
    # At last the heads that members signed, and the rounds that were done again.
    _check_signed_heads(chain, signed)
    redone = redone_rounds(chain)
    trusted_signatures: Signatures = {}
    if trusted:
        trusted_signatures = signed
    missing = not_told(redone, chain, held, trusted_signatures)
    if missing:
        raise StatementError(_never_told(missing, names))
    _check_signed_attempts(chain, signed, names)
    lost: list[LostUpdate] = []
    for member in held:
        lost += _lost_updates(member, chain)
    redone_numbers = tuple(again.number for again in redone)
    return CheckedReceipts(tuple(held), redone_numbers, tuple(lost))


def _check_has_heads(run: RunFolder, chain: RoundChain, settings: Mapping[str, Any]) -> None:
    """Raise StatementError if members were to get receipts, and the records have no heads.

    Otherwise an operator could rewrite the records, and take away what shows it.
    """
    if settings.get("evidence.receipts") and not chain.rounds:
        raise StatementError(
            f"{run.round_heads.path.name} has no head, and the run has evidence.receipts = True"
        )


def _check_order(chain: RoundChain) -> None:
    """Raise StatementError unless each head is signed and can come next after the one before."""
    before: ToldRound | None = None
    for told_round in chain.rounds:
        try:
            told_round.check()
        except EvidenceError as error:
            raise StatementError(f"round {told_round.number} of receipts.csv: {error}") from error
        reason = why_it_cannot_follow(before, told_round)
        if reason:
            raise StatementError(f"receipts.csv: history was rewritten: {reason}")
        before = told_round


def _check_runs(chain: RoundChain, declared: Attempts | None) -> None:
    """Raise StatementError if a round's attempt is declared as one at another run."""
    for told_round in chain.rounds:
        if declared is None:
            return
        of_attempt = declared.attempts[told_round.attempt - 1].run
        if of_attempt != told_round.run:
            raise StatementError(
                f"round {told_round.number} of receipts.csv is of run {told_round.run[:8]}, and "
                f"attempt {told_round.attempt} is declared as one of run {of_attempt[:8]}"
            )


def _check_leaves(run: RunFolder, chain: RoundChain, signed: Signatures) -> None:
    """Raise StatementError unless each round's leaves agree with the tables and the signatures.

    Of a round that was done again, the leaves of the last version count.
    """
    lines_of = _by_round(run.clients)
    attributed_of = _by_round(run.attribution)
    leaves_of: dict[int, list[str]] = defaultdict(list)
    for number, told_round in counted_rounds(chain).items():
        leaves_of[number] = list(told_round.own.values())
    rounds = {int(row["round"]) for row in run.attributed_rounds.read()}
    for number in sorted(rounds | leaves_of.keys()):
        updates = _updates(number, leaves_of[number], signed)
        members = []
        for place, line in enumerate(lines_of[number]):
            update = updates.get(place, "")
            members.append((line["client_id"], update, line["weight"], line["status"]))
        attributed = {}
        for line in attributed_of[number]:
            attributed[line["client_id"]] = (line["contribution"], line["credited"])
        if round_leaves(number, members, attributed) != leaves_of[number]:
            raise StatementError(f"round {number}: receipts.csv does not say what the records say")


def _updates(number: int, leaves: Sequence[str], signed: Signatures) -> dict[int, str]:
    """Return the digest of the update that each of a round's leaves should have, by its place.

    It is the digest that the member signed. Without a signature there is nothing to compare with,
    so it is what the leaf says itself.
    """
    updates = {}
    for place, leaf in enumerate(map(read_leaf, leaves)):
        if not leaf["client_id"]:  # The leaf of a round in which nobody was asked.
            continue
        updates[place] = leaf["update"]
        update = signed.get((number, int(leaf["client_id"])))
        if update is not None and leaf["update"]:
            updates[place] = update.sent.hex()
    return updates


def _check_rows(run: RunFolder, chain: RoundChain) -> None:
    """Raise StatementError unless the heads bind the rows and the state of the run's folder."""
    counted = counted_rounds(chain)
    try:
        rows = rows_by_round(run, max(counted))
    except EvidenceError as error:
        raise StatementError(str(error)) from error
    for number, told_round in sorted(counted.items()):
        if rows[number] != told_round.rows:
            raise StatementError(
                f"round {number}: a table was changed: its rows are not those that the head of "
                "this round binds"
            )
    last = chain.rounds[-1]
    if origin_of(run) != last.origin:
        raise StatementError(
            f"{run.config.path.name} or {run.provenance.path.name} was changed: the last head "
            "binds another one"
        )
    if state_of(run) != last.state:
        raise StatementError(
            f"{run.names.path.name} or {run.own_parts.path.name} was changed: the last head binds "
            "another one"
        )


def _check_attempts(member: HeldReceipts, declared: Attempts | None) -> None:
    """Raise StatementError if a member saw an attempt that differs from the declared one."""
    for seen in member.attempts:
        if declared is None or seen.number > declared.number:
            continue  # A later attempt began after the statement; ``fedif verify`` says so.
        if seen.number < 1 or seen.end != declared.end(seen.number):
            raise StatementError(
                f"{member.name} holds receipts of another attempt {seen.number} at run "
                f"{printable(declared.name)!r} than the statement declares: id {seen.run[:8]}"
            )


def _check_signed_heads(chain: RoundChain, signed: Signatures) -> None:
    """Raise StatementError if a member signed a head that the records never had."""
    for (number, client_id), update in sorted(signed.items()):
        if update.head and update.head not in chain.sizes:
            raise StatementError(
                f"before round {number}, history was rewritten: client {client_id} signed that it "
                "was told of other rounds than the records have"
            )


def _check_signed_attempts(chain: RoundChain, signed: Signatures, names: Names) -> None:
    """Raise StatementError if an update was signed in another attempt than its round's.

    Also raise it if a round is of an earlier attempt than a round before it.
    """
    attempts = {number: told_round.attempt for number, told_round in counted_rounds(chain).items()}
    last = 0
    for (number, client_id), update in sorted(signed.items()):
        # Without receipts, the first signature in a round decides which attempt the round is of.
        attempt = attempts.setdefault(number, update.attempt)
        if update.attempt != attempt:
            raise StatementError(
                f"round {number}: {name_of(client_id, names)} signed its update in attempt "
                f"{update.attempt}, and the round is of attempt {attempt}"
            )
        if attempt < last:
            raise StatementError(
                f"round {number} is of attempt {attempt}, and a round before it of attempt {last}"
            )
        last = attempt


def _never_told(missing: Mapping[int, set[int]], names: Names) -> str:
    """Return a sentence that names the rounds done again, and the members who did not know.

    ``missing`` has their client ids by round.
    """
    rounds = ", ".join(map(str, sorted(missing)))
    client_ids = set().union(*missing.values())
    members = enumerated(name_of(client_id, names) for client_id in client_ids)
    return (
        f"rounds {rounds} were done again after the run was resumed, and nothing that these "
        f"members hold covers it: {members}; it takes their receipts, or their keys and updates "
        "that they signed in that attempt"
    )


def _by_round(table: Table) -> dict[int, list[Mapping[str, str]]]:
    """Return the lines of a table by round; raise StatementError for a line without a round."""
    rows_of = defaultdict[int, list[Mapping[str, str]]](list)
    for line, row in enumerate(table.read(), start=2):
        with refused_as(StatementError, f"{table.path.name}, line {line}"):
            rows_of[int(row["round"])].append(row)
    return rows_of


def _require_one_history(held: Sequence[HeldReceipts]) -> None:
    """Raise StatementError if two members hold different heads after the same number of leaves."""
    roots: dict[int, tuple[str, bytes]] = {}
    for member in held:
        for told_round in member.rounds:
            name, root = roots.setdefault(told_round.size, (member.name, told_round.root))
            if root != told_round.root:
                raise StatementError(
                    f"the server told {name} and {member.name} different histories: both have a "
                    f"signed head of {told_round.size} lines, and they differ"
                )


def _check_lines(member: HeldReceipts, chain: RoundChain, signed: Signatures) -> None:
    """Raise StatementError if the records contradict a member's receipts, or what it sent."""
    leaves: dict[int, str] = {}  # By their numbers among all leaves of the run.
    for told_round in chain.rounds:
        leaves.update(told_round.numbered())
    for index, line in member.lines:
        recorded = leaves.get(index, "nothing")
        if recorded != line:
            raise StatementError(
                f"round {read_leaf(line)['round']}: history was rewritten: {member.name} has a "
                f"receipt for '{line}'; the records have '{recorded}'"
            )
    for told_round, leaf in _leaves_of(member, chain):
        _check_sent(member, told_round.attempt, leaf, signed)


def _leaves_of(
    member: HeldReceipts, chain: RoundChain
) -> Iterator[tuple[ToldRound, Mapping[str, str]]]:
    """Yield a member's leaves in the records, also those that it has no receipt of yet."""
    for told_round in chain.rounds:
        for line in told_round.own.values():
            leaf = read_leaf(line)
            if leaf["client_id"] and int(leaf["client_id"]) == member.node_id:
                yield told_round, leaf


def _check_sent(
    member: HeldReceipts, attempt: int, leaf: Mapping[str, str], signed: Signatures
) -> None:
    """Raise StatementError if a member's leaf contradicts what it sent in the leaf's attempt.

    Other attempts at the same round do not count: there the member may have sent nothing, or
    another update.
    """
    number = int(leaf["round"])
    update = leaf["update"]
    sent = member.sent.get((attempt, number))
    if not sent:
        return
    if update and update not in sent:
        signed_update = signed.get((number, int(leaf["client_id"])))
        origin = "the records have without its signature"
        if signed_update is not None and signed_update.sent.hex() == update:
            origin = "it signed"
        raise StatementError(
            f"round {number}: {member.name} says that it sent another update than "
            f"{update[:16]}, which {origin}"
        )
    if leaf["status"] == "failed":  # The app raised an error, and so it sent no update.
        raise _left_out(number, member, leaf["status"])


def _lost_updates(member: HeldReceipts, chain: RoundChain) -> Iterator[LostUpdate]:
    """Yield a member's updates in rounds for which the records call it away.

    They refute nothing: an update may come after the round's time is over, or be lost on its way.
    """
    for told_round, leaf in _leaves_of(member, chain):
        is_sent = (told_round.attempt, told_round.number) in member.sent
        if is_sent and leaf["status"] == "away":
            yield LostUpdate(member.name, told_round.number)


def _check_not_left_out(member: HeldReceipts, chain: RoundChain, *, may_be_late: bool) -> None:
    """Raise StatementError if the records leave out an update that a member sent, for no reason.

    The status ``late`` is a reason only where rounds may close before all replies have come
    (``may_be_late``). ``revoked`` is a reason only if the member has no later leaf: otherwise it
    had not been removed.
    """
    rounds = {(told_round.attempt, told_round.number) for told_round in chain.rounds}
    statuses = {}  # The member's, by attempt and round.
    for told_round, leaf in _leaves_of(member, chain):
        statuses[told_round.attempt, told_round.number] = leaf["status"]
    last_line = max(statuses, default=(0, 0))
    for place in sorted(rounds & member.sent.keys()):
        _, number = place
        if place not in statuses:
            raise _left_out(number, member, "nothing")
        status = statuses[place]
        if status == "late" and not may_be_late:
            raise _left_out(number, member, status)
        if status == "revoked" and place < last_line:
            raise _left_out(number, member, status)


def _left_out(number: int, member: HeldReceipts, status: str) -> StatementError:
    return StatementError(
        f"round {number}: {member.name} sent an update, and the records say {status!r}"
    )


def _may_be_late(settings: Mapping[str, Any]) -> bool:
    """Return whether a round may close before all replies have come; yes if nothing says it."""
    if "pace.quorum" not in settings:
        return True
    if settings.get("pace.rounds") == "buffered" or settings.get("pace.late-rounds"):
        return True
    return bool(settings["pace.quorum"])


def _check_end(member: HeldReceipts, chain: RoundChain) -> None:
    """Raise StatementError if a member sent an update in a round after the last recorded one."""
    if not chain.rounds:
        return
    end = chain.rounds[-1]
    last = member.last_sent.get(end.attempt, 0)
    if last > end.number:
        raise StatementError(
            f"{member.name} sent an update in round {last}, and the records end with round "
            f"{end.number}"
        )


def _check_asked_once(member: HeldReceipts) -> None:
    """Raise StatementError if a member sent two updates in one round of one attempt.

    Otherwise a server that has not told members of its records yet could do its rounds again until
    it likes the result, and every version would belong to the declared attempt.
    """
    for (attempt, number), sent in sorted(member.sent.items()):
        if attempt and len(sent) > 1:  # Attempt 0: attempts are not counted.
            raise StatementError(
                f"round {number}: {member.name} says that it sent {len(sent)} updates in attempt "
                f"{attempt}, and a round is done again in another attempt alone"
            )


def _check_heads(member: HeldReceipts, chain: RoundChain) -> None:
    """Raise StatementError unless the records lead to every head that a member holds.

    The head in the records has to be signed with the same key as the member's.
    """
    keys = {recorded.root: recorded.key for recorded in chain.rounds}
    for told_round in member.rounds:
        # A head that the records lack may be signed with any of their keys.
        allowed_keys = set(keys.values())
        if told_round.root in keys:
            allowed_keys = {keys[told_round.root]}
        if allowed_keys and told_round.key not in allowed_keys:
            raise StatementError(f"{member.name} holds a head that is signed with another key")
        if chain.sizes.get(told_round.root) != told_round.size:
            raise StatementError(
                f"{_since(told_round.start, chain)}, history was rewritten: {member.name} holds a "
                f"signed head of {told_round.size} lines that the records do not lead to"
            )


def _since(start: int, chain: RoundChain) -> str:
    """Return words that say since which round the records have more than ``start`` leaves."""
    for recorded in chain.rounds:
        if recorded.size > start:
            return f"from round {recorded.number} on"
    return "after the last recorded round"
