"""Checking the chain of a run's records, and members' receipts against it and each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedif_consortium.evidence.check_signatures import Signatures
from fedif_consortium.evidence.part import read_chain, run_id
from fedif_consortium.evidence.receipts import RoundChain, ToldRound, read_leaf, round_leaves
from fedif_consortium.evidence.signed import SignedUpdate
from fedif_flower.errors import ConfigError, EvidenceError, StatementError
from fedif_flower.foreign import parse_json, read_whole
from fedif_flower.run.folder import RunFolder


@dataclass(frozen=True)
class HeldReceipts:
    """What a member kept of a run: what the server signed, and digests of what it sent, by round.

    ``name`` is what its folder is called.
    """

    name: str
    rounds: Sequence[ToldRound]
    sent: Mapping[int, set[str]]

    @property
    def lines(self) -> list[tuple[int, str]]:
        """Its leaves, in their order, with their numbers."""
        return sorted(line for told in self.rounds for line in told.numbered())


def last_head(run: RunFolder) -> str:
    """Return size and root of the last head, for a manifest; empty: there are no receipts."""
    return _end(read_chain(run, run_id(run)))


def _end(chain: RoundChain) -> str:
    last = chain.rounds[-1:]
    return f"{last[0].size} {last[0].root.hex()}" if last else ""


def check_receipts(
    run: RunFolder, told: str, signed: Signatures, folders: Sequence[Path]
) -> tuple[tuple[HeldReceipts, ...], tuple[int, ...]]:
    """Check the chain of a run, and compare members' receipts with it and with each other.

    Parameters
    ----------
    run : RunFolder
        The run.
    told : str
        The last head, as the manifest has it.
    signed : mapping
        What members signed.
    folders : sequence of Path
        Members' ``receipts-dir``.

    Returns
    -------
    (tuple of HeldReceipts, tuple of int)
        What members kept, and the rounds that were done again after the run was resumed.

    Raises
    ------
    ConfigError
        If a folder holds nothing of this run.
    StatementError
        Naming the first round that is not as members were told, or the members who were told
        different things.
    """
    chain = read_chain(run, run_id(run))
    if _end(chain) != told:
        raise StatementError(f"{run.round_heads.path.name} is not what the manifest says")
    for one in chain.rounds:
        try:
            one.check()
        except EvidenceError as error:
            raise StatementError(f"round {one.number} of receipts.csv: {error}") from error
    if chain.rounds:
        _check_leaves(run, chain, signed)
    held = [read_held(folder, run_id(run)) for folder in folders]
    _compare(held)
    for member in held:  # A line says more than a head does.
        _check_lines(member, chain, signed)
    for member in held:
        _check_heads(member, chain)
    for (number, client_id), update in sorted(signed.items()):
        if update.head and update.head not in chain.sizes:
            raise StatementError(
                f"before round {number}, history was rewritten: client {client_id} signed that it "
                "was told of other rounds than the records have"
            )
    times = Counter(one.number for one in chain.rounds)
    return tuple(held), tuple(sorted(number for number, count in times.items() if count > 1))


def _check_leaves(run: RunFolder, chain: RoundChain, signed: Signatures) -> None:
    """Raise StatementError unless each round's last leaves say what records and members say."""
    lines, attributed = _by_round(run.clients.read()), _by_round(run.attribution.read())
    told = {one.number: list(one.own.values()) for one in chain.rounds}
    for number in sorted({*told, *(int(row["round"]) for row in run.attributed_rounds.read())}):
        updates = defaultdict[int, str](str)  # By the leaf's place.
        for place, leaf in enumerate(map(read_leaf, told.get(number, ()))):
            own = signed.get((number, int(leaf["client_id"])))
            updates[place] = own.sent.hex() if own and leaf["update"] else leaf["update"]
        members = [
            (line["client_id"], updates[place], line["weight"], line["status"])
            for place, line in enumerate(lines[number])
        ]
        due = {
            line["client_id"]: (line["contribution"], line["credited"])
            for line in attributed[number]
        }
        if round_leaves(number, members, due) != told.get(number, []):
            raise StatementError(f"round {number}: receipts.csv does not say what the records say")


def _by_round(rows: Sequence[Mapping[str, str]]) -> dict[int, list[Mapping[str, str]]]:
    found = defaultdict[int, list[Mapping[str, str]]](list)
    for row in rows:
        found[int(row["round"])].append(row)
    return found


def read_held(folder: Path, run: str) -> HeldReceipts:
    """Read what a member kept of a run in its ``receipts-dir``.

    Raises
    ------
    ConfigError
        If it kept nothing of this run.
    StatementError
        Naming a file that is damaged, or says what nobody signed.
    """
    own = folder if folder.name == run else folder / run
    paths = sorted(own.glob("*.json"))
    if not paths:
        raise ConfigError(f"receipts = {str(folder)!r} holds none of run {run}")
    whole = own.absolute().parent
    # Of `fedif node join`: receipts/ in the folder of a node.
    name = (whole.parent if whole.name == "receipts" else whole).name
    rounds, sent = [], defaultdict[int, set[str]](set)
    for path in paths:
        try:
            content = parse_json(read_whole(path))
            if path.name.startswith("round-"):
                rounds.append(ToldRound.read(run, content))
                rounds[-1].check()
            else:
                if "signature" in content:  # It may have signed nothing.
                    SignedUpdate.read(run, content).check()
                sent[int(content["round"])].add(content["sent"])
        except (OSError, KeyError, TypeError, ValueError, EvidenceError) as error:
            raise StatementError(f"{path} was changed: {error!r:.120}") from error
    return HeldReceipts(name, sorted(rounds, key=lambda told: told.size), sent)


def _compare(held: Sequence[HeldReceipts]) -> None:
    """Raise StatementError where two members were told different histories."""
    roots: dict[int, tuple[str, bytes]] = {}
    for member in held:
        for told in member.rounds:
            name, root = roots.setdefault(told.size, (member.name, told.root))
            if root != told.root:
                raise StatementError(
                    f"the server told {name} and {member.name} different histories: both have a "
                    f"signed head of {told.size} lines, and they differ"
                )


def _check_lines(member: HeldReceipts, chain: RoundChain, signed: Signatures) -> None:
    """Raise StatementError where the records say other things than a member was told, or sent."""
    leaves = dict(line for one in chain.rounds for line in one.numbered())
    for index, line in member.lines:
        leaf = read_leaf(line)
        number, update = int(leaf["round"]), leaf["update"]
        if (there := leaves.get(index, "nothing")) != line:
            raise StatementError(
                f"round {number}: history was rewritten: {member.name} has a receipt for "
                f"'{line}'; the records have '{there}'"
            )
        sent, own = member.sent.get(number), signed.get((number, int(leaf["client_id"])))
        if sent and update and update not in sent:
            is_own = own is not None and own.sent.hex() == update
            raise StatementError(
                f"round {number}: {member.name} says that it sent another update than "
                f"{update[:16]}, which "
                + ("it signed" if is_own else "the records have without its signature")
            )
        if sent and leaf["status"] in ("away", "failed"):
            raise StatementError(
                f"round {number}: {member.name} sent an update, and the records say "
                f"{leaf['status']!r}"
            )


def _check_heads(member: HeldReceipts, chain: RoundChain) -> None:
    """Raise StatementError unless the records lead to every head that a member holds."""
    keys = {one.key for one in chain.rounds}
    for told in member.rounds:
        if keys and told.key not in keys:
            raise StatementError(f"{member.name} holds a head that is signed with another key")
        if chain.sizes.get(told.root) != told.size:
            later = (one.number for one in chain.rounds if one.size > told.start)
            raise StatementError(
                f"from round {next(later, '?')} on, history was rewritten: {member.name} holds a "
                f"signed head of {told.size} lines that the records do not lead to"
            )
