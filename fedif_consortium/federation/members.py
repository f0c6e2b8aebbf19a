"""The operator invites, registers, rekeys and removes members."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import typer

from fedif_consortium.evidence.keys import read_public_key
from fedif_consortium.evidence.names import require_apart
from fedif_consortium.federation import files
from fedif_consortium.federation.certificates import certificate_fingerprint
from fedif_consortium.federation.flower import Flower, FlowerCommandError, has_ended
from fedif_consortium.federation.node_keys import node_with_key, replace_key
from fedif_consortium.federation.records import (
    Answer,
    FederationFolder,
    Invitation,
    MemberRecord,
    key_fingerprint,
)
from fedif_consortium.federation.removals import (
    Removal,
    note_removal,
    read_removals,
    rekeying_of,
    removal_of,
    removals_of,
)
from fedif_consortium.federation.server import statement_fingerprint, words_of_ended
from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.storage import exclusive_lock, writing

_ABOUT_INVITATION = """\
An invitation to a federation: `fedif node join FILE` on the member's host.
It holds no secret. Compare the fingerprints that it shows with the operator's, aloud."""


def invite(folder: FederationFolder, name: str) -> Path:
    """Write a member's invitation, with a number of its own; return the invitation's file.

    Raises
    ------
    ConfigError
        If a member of this name was removed, or the name reads like another member's.
    """
    settings = folder.settings()
    path = folder.invitation(name)
    with exclusive_lock(folder.lock):
        members = folder.members()
        last_number = max((member.number for member in members.values()), default=-1)
        fresh = MemberRecord(name=name, number=last_number + 1, invited=_now())
        member = members.get(name, fresh)
        if name not in members:
            # No statement could be made of a run with two names that read alike. Removed members
            # count too, since they stay in their runs' statements.
            for other in members:
                require_apart([other, name], "members:")
            # The backup of a folder may be older than the member's record.
            for removal in removals_of(name, [], read_removals(folder.removals)):
                if removal.is_of_member:
                    raise ConfigError(
                        f"{name} was removed on {removal.removed}, by {folder.removals}: choose "
                        "another name"
                    )
        if member.removed:
            raise ConfigError(f"{name} was removed on {member.removed}: choose another name")
        invitation = Invitation(
            federation=settings.name,
            member=name,
            number=member.number,
            address=settings.address,
            statement_key=statement_fingerprint(folder),
            keeper_key=settings.keeper_key,
            certificate=folder.certificate_text(),
        )
        folder.save(member)
        text = files.to_toml(_ABOUT_INVITATION, invitation.to_mapping())
        files.write(path, f"send it to {name}, number {member.number}", text)
    return path


def add(folder: FederationFolder, file: Path, flower: Flower) -> MemberRecord:
    """Register a member by its answer to an invitation; return its record.

    A member that the SuperLink has is kept. One that it has lost, as with its database, gets
    another node. One whose registration was ended by Flower's own command is refused, since the
    SuperLink takes no key a second time.

    Parameters
    ----------
    folder : FederationFolder
        The federation's folder.
    file : Path
        The answer, which ``fedif node join`` made.
    flower : Flower
        The command that registers the key.

    Raises
    ------
    ConfigError
        If the answer is not to an invitation of this federation, its key is not allowed, belongs to
        another member, or differs from the one that this member has, or the member's registration
        has ended.
    FlowerCommandError
        If the SuperLink does not register the key.
    """
    with exclusive_lock(folder.lock):
        answer = files.read_document(file, Answer)
        member = _member_answering(folder, answer)
        if member.node_id:
            node = flower.nodes().get(member.node_id)
            if node is not None and has_ended(node):
                raise ConfigError(words_of_ended(member))
            if node is not None:
                _require_known_key(folder, member, file)
                typer.echo(f"kept {member.name}: node {member.node_id} since {member.registered}")
                return member
            typer.echo(f"the SuperLink has lost {member.name}, which was node {member.node_id}")
        if not member.key:
            member = member.replace(key=answer.key)
        # Save the key first. If this is interrupted after the registration, the node can be found
        # by its key.
        folder.save(member)
        _mend_key_files(folder, member)
        try:
            node_id = flower.register(folder.public_key(member.name), member.name)
        except FlowerCommandError:
            # The key may be registered already, by an earlier call that was interrupted.
            node_id = _node_of_key(folder, member)
            if not node_id:
                raise
        member = member.replace(node_id=node_id, registered=_now())
        fingerprint = key_fingerprint(member.key)
        typer.echo(
            f"registered {member.name}, number {member.number}, key {fingerprint}: node {node_id}"
        )
        folder.save(member)
    return member


class RefusedAnswersError(ConfigError):
    """Some answers were refused; the members of all others are registered."""

    exit_code = 3  # Of the command ``fedif``; other errors have 1.


def add_all(folder: FederationFolder, answers: Sequence[Path], flower: Flower) -> None:
    """Register members by their answers; one that is refused keeps no other member out.

    Parameters
    ----------
    folder : FederationFolder
        The federation's folder.
    answers : sequence of Path
        The answers, which ``fedif node join`` made.
    flower : Flower
        The command that registers keys.

    Raises
    ------
    RefusedAnswersError
        If :func:`add` refused answers, when all answers were read. It says why each was refused.
    FlowerCommandError
        If the SuperLink does not register a key; the answers that follow are not read.
    """
    reasons = []
    for answer in answers:
        try:
            add(folder, answer, flower)
        except ConfigError as error:
            reasons.append(str(error))
    if not reasons:
        return
    refused = "; ".join(reasons)
    if len(answers) > 1:
        refused = f"{len(reasons)} of {len(answers)} answers are refused: {refused}"
    raise RefusedAnswersError(refused)


def remove(folder: FederationFolder, name: str, flower: Flower) -> None:
    """End a member's registration. Its name and number stay reserved.

    Raises
    ------
    ConfigError
        If there is no such member, or the SuperLink's database is not as Flower writes it.
    FlowerCommandError
        If the SuperLink does not end the registration.
    StorageError
        If the list of removed members cannot be written. The registration has ended all the same.
        Another call adds the member to the list; until then its record keeps its key.
    """
    with exclusive_lock(folder.lock):
        members = folder.members()
        if name not in members:
            names = ", ".join(members) or "none"
            raise ConfigError(f"there is no member {name!r}; members: {names}")
        member = members[name]
        live_nodes = set[str]()
        if member.key:
            live_nodes = _live_nodes(flower)
            if not member.node_id:
                # An interrupted registration may have left a node whose id is not in the record.
                member = member.replace(node_id=_node_of_key(folder, member))
        # The SuperLink decides, not the record: somebody may have ended the registration with
        # Flower's own command, or restored a backup.
        if member.node_id in live_nodes:
            flower.unregister(member.node_id)
            typer.echo(f"ended the registration of {name}, node {member.node_id}")
        elif member.removed:
            typer.echo(f"kept {name}: removed on {member.removed}")
        if not member.removed:
            member = member.replace(removed=_now())
            folder.save(member)
        with writing(folder.invitation(name)):
            folder.invitation(name).unlink(missing_ok=True)
        note_removal(folder.removals, removal_of(name, member.key, member.removed))


def apply_removals(folder: FederationFolder) -> list[str]:
    """Bring the members' records and the list of removed members into agreement.

    Members that the list names, but that are not removed by their records, are marked as removed:
    a backup of the folder may have been restored. Removed members and keys that only the records
    know are added to the list. If it cannot be written, a line says so, and the federation goes on.

    Returns
    -------
    list of str
        The ids of removed keys that could not be added to the list.

    Raises
    ------
    ConfigError
        If the list cannot be read.
    """
    with exclusive_lock(folder.lock):
        removals = read_removals(folder.removals)
        for member in folder.members().values():
            own_removals = removals_of(member.name, _keys_of(member), removals)
            _apply_removals(folder, member, own_removals)
        try:
            for member in folder.members().values():
                _note_keys(folder, member)
        except StorageError as error:
            typer.echo(f"! {error}")
        listed = {removal.key for removal in read_removals(folder.removals)}
        return sorted(_removed_keys(folder) - listed)


def _removed_keys(folder: FederationFolder) -> set[str]:
    """Return the ids of the keys that are no longer let in, by the members' records."""
    ids = set[str]()
    for member in folder.members().values():
        keys = list(member.earlier_keys)
        if member.removed and member.key:
            keys.append(member.key)
        ids.update(removal_of(member.name, key, "").key for key in keys)
    return ids


def _apply_removals(
    folder: FederationFolder, member: MemberRecord, removals: list[Removal]
) -> None:
    """Mark a member as removed if the list says so; warn if the list has only its present key.

    ``removals`` are the entries of the list for this member and its keys.
    """
    if member.removed:
        return
    for removal in removals:
        if removal.is_of_member:
            typer.echo(f"{member.name} was removed on {removal.removed}, and came back")
            folder.save(member.replace(removed=removal.removed))
            return
    current_key = removal_of(member.name, member.key, "").key
    for removal in removals:
        if current_key and removal.key == current_key:
            typer.echo(
                f"! {member.name} got another key on {removal.removed}, which is not here: "
                f"`fedif federation rekey {member.name} ANSWER` once more"
            )


def _note_keys(folder: FederationFolder, member: MemberRecord) -> None:
    """Add to the list the keys of a member that are no longer let in, by its record.

    Raises
    ------
    StorageError
        If the list cannot be written.
    """
    noted_keys = {removal.key for removal in read_removals(folder.removals)}
    for key in member.earlier_keys:
        removal = rekeying_of(member.name, key, _now())
        if removal.key not in noted_keys:
            note_removal(folder.removals, removal)
    if member.removed:
        note_removal(folder.removals, removal_of(member.name, member.key, member.removed))


def rekey(folder: FederationFolder, name: str, file: Path) -> MemberRecord:
    """Give a member another key; it keeps its number, its node and its score. Return its record.

    The earlier key is no longer let in. Its file stays where ``fedif verify --members`` finds it,
    so that signatures made with it can be checked. If this call is interrupted, another one
    finishes the work.

    Parameters
    ----------
    folder : FederationFolder
        The federation's folder.
    name : str
        The member's name.
    file : Path
        Its new answer to its invitation, made by ``fedif node join`` with a new key.

    Raises
    ------
    ConfigError
        If there is no such registered member, or the answer is not from it, or has no new key.
    StorageError
        If the list of removed keys cannot be written. The key has been replaced all the same.
    """
    with exclusive_lock(folder.lock):
        answer = files.read_document(file, Answer)
        if answer.member != name:
            raise ConfigError(f"{file} is the answer of {answer.member}, not of {name}")
        member = _invited_member(folder, answer)
        if not member.node_id:
            raise ConfigError(f"{name} has no key yet: `fedif federation add-member {file}`")
        has_this_key = key_fingerprint(answer.key) == key_fingerprint(member.key)
        if not has_this_key:
            _require_nobodys_key(folder, answer)
        # A database restored from before an earlier call has a key from before that call.
        old_keys = [read_public_key(key.encode(), name) for key in _keys_of(member)]
        new_key = read_public_key(answer.key.encode(), name)
        is_replaced = replace_key(folder.database, member.node_id, old_keys, new_key)
        if not has_this_key:
            # Save the record before the files: after an interruption, the next call sees from it
            # what is still to be done.
            earlier_keys = [*member.earlier_keys, member.key]
            member = member.with_values(key=answer.key, earlier_keys=earlier_keys)
            folder.save(member)
        elif not is_replaced and _is_rekeyed(folder, member):
            raise ConfigError(f"{file} has the key that {name} has already")
        _write_key_files(folder, member)
        _note_keys(folder, member)
        typer.echo(f"{name} has the key {key_fingerprint(member.key)}: node {member.node_id}")
    return member


def _keys_of(member: MemberRecord) -> list[str]:
    """Return all keys that a member has or had."""
    keys = list(member.earlier_keys)
    if member.key:
        keys.append(member.key)
    return keys


def _is_rekeyed(folder: FederationFolder, member: MemberRecord) -> bool:
    """Return whether a change of key is complete: in the files of all keys, and in the list."""
    # The present key has number 0, and the first one number 1.
    for number, key in enumerate([member.key, *member.earlier_keys]):
        path = folder.public_key(member.name, number)
        if not path.is_file() or path.read_text() != f"{key}\n":
            return False
    noted_keys = {removal.key for removal in read_removals(folder.removals)}
    earlier_keys = {removal_of(member.name, key, "").key for key in member.earlier_keys}
    return earlier_keys <= noted_keys


def _member_answering(folder: FederationFolder, answer: Answer) -> MemberRecord:
    """Return the member whose answer this is, if the answer's key can be registered for it.

    Raises
    ------
    ConfigError
        If the answer is not to an unchanged invitation of this federation, or its key belongs or
        belonged to another member, was removed, or differs from the one that the member has.
    """
    member = _invited_member(folder, answer)
    if member.key:
        current = key_fingerprint(member.key)
        answered = key_fingerprint(answer.key)
        if current != answered:
            raise ConfigError(
                f"{member.name} has another key, {current}, not {answered}: a member that lost its "
                f"key gets a new one by `fedif federation rekey {member.name}`"
            )
    _require_nobodys_key(folder, answer)
    return member


def _mend_key_files(folder: FederationFolder, member: MemberRecord) -> None:
    """Write the files of a member's keys where they differ from its record.

    An interrupted change of key leaves the earlier key in the file of the present one, from which
    a key is registered.

    Raises
    ------
    ConfigError
        If the file of the present key has a key that is not in the record: what was signed with it
        could not be checked any more.
    """
    path = folder.public_key(member.name)
    if path.read_text() == f"{member.key}\n":
        return
    in_file = key_fingerprint(path.read_text())
    if in_file not in [key_fingerprint(key) for key in _keys_of(member)]:
        raise ConfigError(
            f"{path} has another key, {in_file}, than the record of {member.name}: move it away"
        )
    _write_key_files(folder, member)


def _write_key_files(folder: FederationFolder, member: MemberRecord) -> None:
    """Write the files of a member's keys; those of earlier keys stay if they exist."""
    for number, key in enumerate(member.earlier_keys, start=1):
        files.write_new(folder.public_key(member.name, number), "its earlier key", f"{key}\n")
    files.write(folder.public_key(member.name), "its key", f"{member.key}\n")


def _require_known_key(folder: FederationFolder, member: MemberRecord, file: Path) -> None:
    """Raise ConfigError if a registered member's node has another key than its record.

    Then the database was restored from a backup of before the member got this key.
    """
    if folder.database.is_file() and _node_of_key(folder, member) != member.node_id:
        raise ConfigError(
            f"{folder.database} has another key of {member.name}, node {member.node_id}, than its "
            f"record: `fedif federation rekey {member.name} {file}` puts this one there"
        )


def _require_nobodys_key(folder: FederationFolder, answer: Answer) -> None:
    """Raise ConfigError if an answer's key is another member's, or any member's earlier one."""
    fingerprint = key_fingerprint(answer.key)
    for other in folder.members().values():
        is_other = other.name != answer.member
        if is_other and other.key and key_fingerprint(other.key) == fingerprint:
            raise ConfigError(f"{answer.member} has the key of {other.name}: each needs its own")
        if fingerprint in [key_fingerprint(key) for key in other.earlier_keys]:
            raise ConfigError(f"{answer.member} has an earlier key of {other.name}: make a new one")
    removed_key = removal_of(answer.member, answer.key, "").key
    for removal in read_removals(folder.removals):
        if removal.key == removed_key:
            raise ConfigError(
                f"{answer.member} has a key of {removal.name} that was removed on "
                f"{removal.removed}, and the SuperLink lets nobody in with it: make a new one"
            )


def _invited_member(folder: FederationFolder, answer: Answer) -> MemberRecord:
    """Return the member whose answer this is.

    Raises
    ------
    ConfigError
        If the answer's signature is false, the answer is not to an unchanged invitation of this
        federation, or the member was removed.
    """
    answer.check()
    ours = certificate_fingerprint(folder.certificate_text())
    theirs = answer.certificate_fingerprint
    if theirs != ours:
        raise ConfigError(
            f"{answer.member} was given another certificate, {theirs}, not {ours}: its invitation "
            "is another federation's, was changed on its way, or is older than the certificate. "
            f"`fedif federation invite {answer.member}` makes another, to join with once more"
        )
    member = folder.members().get(answer.member)
    if member is None or answer.number != member.number:
        raise ConfigError(
            f"{answer.member!r}, number {answer.number}, was not invited: `fedif federation invite`"
        )
    if member.removed:
        raise ConfigError(f"{member.name} was removed on {member.removed}: invite another name")
    return member


def _live_nodes(flower: Flower) -> set[str]:
    """Return the ids of all nodes whose registration has not ended."""
    nodes = flower.nodes()
    return {node_id for node_id, node in nodes.items() if not has_ended(node)}


def _node_of_key(folder: FederationFolder, member: MemberRecord) -> str:
    """Return the id of the node that is registered with a member's key; empty if there is none."""
    key = read_public_key(member.key.encode(), f"{member.name}: key")
    return node_with_key(folder.database, key)


def _now() -> str:
    return datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
