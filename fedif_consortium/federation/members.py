"""Members: invited by name, let in by their public key, sent away."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from fedif_consortium.evidence.keys import key_digest, read_public_key
from fedif_consortium.federation.certificates import certificate_fingerprint, read_certificate
from fedif_consortium.federation.documents import read_document, to_toml
from fedif_consortium.federation.flower import FlowerCommandError
from fedif_consortium.federation.folder import FederationFolder, Member
from fedif_consortium.federation.invitation import Answer, Invitation, key_fingerprint
from fedif_consortium.federation.server import statement_fingerprint
from fedif_consortium.federation.steps import Steps
from fedif_flower.errors import ConfigError
from fedif_flower.storage import exclusive_lock

_ABOUT_MEMBER = "A member, as the operator knows it; written by `fedif federation`."
_ABOUT_INVITATION = """\
An invitation to a federation: `fedif node join FILE` on the member's host.
It holds no secret. Compare certificate-fingerprint and statement-key with the operator's, aloud."""


class NodeRegistry(Protocol):
    """Where nodes are let in: Flower's command, or what stands for it."""

    def register(self, public_key: Path, name: str) -> str:
        """Let the node with this key in; return its id."""

    def unregister(self, node_id: str) -> None:
        """End a node's registration."""

    def nodes(self) -> dict[str, dict[str, object]]:
        """Return every node by id."""


def invite(folder: FederationFolder, name: str, number: int | None, steps: Steps) -> Path:
    """Write a member's invitation, with a number that nobody else has; return its file.

    Raises
    ------
    ConfigError
        If the name is that of a member that was removed, or the number is another's.
    """
    settings = folder.settings()
    known = folder.member(name)
    if known is not None and known.removed:
        raise ConfigError(f"{name} was removed on {known.removed}: choose another name")
    if known is not None and number not in (None, known.number):
        raise ConfigError(f"{name} has number {known.number} already, not {number}")
    path = folder.invitation(name)
    with _locked(folder, steps):
        member = known or Member(
            name=name, number=_free_number(folder, name, number), invited=_now()
        )
        invitation = Invitation(
            federation=settings.name,
            member=name,
            number=member.number,
            address=settings.address,
            certificate_fingerprint=certificate_fingerprint(read_certificate(folder.authority)),
            statement_key=statement_fingerprint(folder),
            keeper_key=settings.keeper_key,
            certificate=folder.authority.read_text(),
        )
        _save(folder, member, steps)
        text = to_toml(_ABOUT_INVITATION, invitation.to_mapping())
        steps.replace(path, f"send it to {name}, number {member.number}", text)
    return path


def add(folder: FederationFolder, given: Path, registry: NodeRegistry, steps: Steps) -> Member:
    """Let a member in by its answer to an invitation, or by its public key alone.

    Parameters
    ----------
    folder : FederationFolder
        The server's.
    given : Path
        An answer of ``fedif node join``, or ``NAME.pub`` with a key.
    registry : NodeRegistry
        Flower's.
    steps : Steps
        Says what was done.

    Raises
    ------
    ConfigError
        If the answer is not one to an invitation of this federation, or the key is not allowed, is
        another member's, or not the one that this member has.
    FlowerCommandError
        If the SuperLink does not take the key.
    """
    folder.settings()
    with _locked(folder, steps):
        member = (
            _known_by_key(folder, given) if given.suffix == ".pub" else _answering(folder, given)
        )
        if member.node_id:
            steps.say(f"kept {member.name}: registered on {member.registered}, {_node(member)}")
            return member
        before = folder.member(member.name)
        # First: whoever is interrupted after the registration can be found again.
        _save(folder, member, steps)
        what = f"{member.name}, number {member.number}, key {key_fingerprint(member.key)}"
        if steps.dry_run:
            steps.say(f"would register {what}")
            return member
        again = before is not None and bool(before.key)
        node_id = _registered(folder, member, registry, again=again)
        done = member.replace(node_id=node_id, registered=_now())
        steps.say(f"registered {what}: {_node(done)}")
        _save(folder, done, steps)
    return done


def remove(folder: FederationFolder, name: str, registry: NodeRegistry, steps: Steps) -> None:
    """End a member's registration; its name and number are given to nobody else.

    Raises
    ------
    ConfigError
        If there is no such member.
    FlowerCommandError
        If the SuperLink does not do it.
    """
    folder.settings()
    with _locked(folder, steps):
        member = folder.member(name)
        if member is None:
            names = ", ".join(m.name for m in folder.members()) or "none"
            raise ConfigError(f"there is no member {name!r}; members: {names}")
        if member.removed:
            steps.say(f"kept {name}: removed on {member.removed}")
            return
        if member.node_id:

            def unregister() -> None:
                # Somebody may have ended it by Flower's own command.
                if member.node_id in _live(registry):
                    registry.unregister(member.node_id)

            steps.do("end", "ended", f"the registration of {name}, {_node(member)}", unregister)
        _save(folder, member.replace(removed=_now()), steps)
        steps.remove(folder.invitation(name), "it opens nothing any more")


def _answering(folder: FederationFolder, path: Path) -> Member:
    """Return the member whose answer this is, with its key."""
    answer, settings = read_document(path, Answer), folder.settings()
    if answer.federation != settings.name:
        raise ConfigError(f"{path} is for federation {answer.federation!r}, not {settings.name!r}")
    try:
        answer.check()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    ours = certificate_fingerprint(read_certificate(folder.authority))
    if answer.certificate_fingerprint != ours:
        raise ConfigError(
            f"{path}: {answer.member} was given another certificate, "
            f"{answer.certificate_fingerprint}, not {ours}: its invitation was changed on its way"
        )
    member = folder.member(answer.member)
    if member is None:
        raise ConfigError(f"{path}: {answer.member!r} was not invited: `fedif federation invite`")
    if answer.number != member.number:
        raise ConfigError(f"{path}: number = {answer.number}; {member.name} has {member.number}")
    return _with_key(folder, member, answer.key)


def _known_by_key(folder: FederationFolder, path: Path) -> Member:
    """Return the member that a key's file is called after, new if there is none."""
    try:
        key = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    member = folder.member(path.stem)
    if member is None:
        number = _free_number(folder, path.stem, None)
        member = Member(name=path.stem, number=number, invited=_now())
    return _with_key(folder, member, key)


def _with_key(folder: FederationFolder, member: Member, key: str) -> Member:
    """Return a member with its key, once it is clear that it may have it."""
    found = key_fingerprint(key)
    if member.removed:
        raise ConfigError(f"{member.name} was removed on {member.removed}: invite another name")
    if member.key and key_fingerprint(member.key) != found:
        raise ConfigError(
            f"{member.name} has another key, {key_fingerprint(member.key)}, not {found}: a member "
            "that lost its key is removed, and invited under another name"
        )
    digest = key_digest(read_public_key(key.encode(), "key"))
    for other in folder.members():
        if other.name == member.name or not other.key:
            continue
        if key_digest(read_public_key(other.key.encode(), other.name)) == digest:
            raise ConfigError(f"{member.name} has the key of {other.name}: each needs its own")
    return member if member.key else member.replace(key=key)


def _registered(
    folder: FederationFolder, member: Member, registry: NodeRegistry, *, again: bool
) -> str:
    """Register a member's key; return its node's id. ``again``: that was tried before."""
    with tempfile.TemporaryDirectory() as scratch:
        public = Path(scratch) / f"{member.name}.pub"
        public.write_text(f"{member.key}\n")
        try:
            return registry.register(public, member.name)
        except FlowerCommandError:
            # It may be there from an attempt that was interrupted: the one node that is nobody's.
            nobodys = _live(registry) - {other.node_id for other in folder.members()}
            if not again or len(nobodys) != 1:
                raise
            return nobodys.pop()


def _live(registry: NodeRegistry) -> set[str]:
    """Return the ids of the nodes that are let in."""
    return {i for i, node in registry.nodes().items() if node.get("status") != "unregistered"}


def _free_number(folder: FederationFolder, name: str, wanted: int | None) -> int:
    taken = {member.number: member.name for member in folder.members()}
    if wanted is None:
        return max(taken, default=-1) + 1
    if wanted in taken:
        raise ConfigError(f"number {wanted} is that of {taken[wanted]}; {name} needs its own")
    return wanted


def _save(folder: FederationFolder, member: Member, steps: Steps) -> None:
    text = to_toml(_ABOUT_MEMBER, member.to_mapping())
    steps.replace(folder.member_file(member.name), f"{member.name}, {member.state}", text)
    if member.node_id:
        key, purpose = folder.member_key(member.name), "for `fedif verify --members`"
        steps.new(key, purpose, lambda: f"{member.key}\n")


def _locked(folder: FederationFolder, steps: Steps) -> AbstractContextManager[None]:
    """Give out numbers one at a time; a dry run gives none."""
    return nullcontext() if steps.dry_run else exclusive_lock(folder.lock)


def _node(member: Member) -> str:
    return f"node {member.node_id}"


def _now() -> str:
    return datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
