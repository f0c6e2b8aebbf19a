"""How a federation is: its SuperLink, members, certificate, disk and runs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from fedif_consortium.federation.certificates import reach, read_certificate
from fedif_consortium.federation.flower import Flower
from fedif_consortium.federation.folder import FederationFolder, Member
from fedif_flower.errors import FedIFError

RENEW_DAYS = 30  # A certificate that ends sooner is worth a warning.
LEAST_FREE = 2**30


@dataclass(frozen=True)
class MemberStatus:
    """A member, as the operator and the SuperLink know it.

    ``online`` and ``last_seen`` are ``None`` where the SuperLink did not say.
    """

    name: str
    number: int
    state: str
    node_id: str
    online: bool | None
    last_seen: str | None


@dataclass(frozen=True)
class Status:
    """A federation at a moment.

    Attributes
    ----------
    superlink : str
        Empty if it answers, else why it does not.
    seconds : float or None
        How long its answer took.
    certificate_ends, authority_ends : str
        Days.
    warnings : sequence of str
        What to do about.
    """

    federation: str
    address: str
    superlink: str
    seconds: float | None
    members: Sequence[MemberStatus]
    runs: Sequence[Mapping[str, str]]
    certificate_ends: str
    authority_ends: str
    free_bytes: int
    warnings: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def look(folder: FederationFolder, flower: Flower, *, runs: int = 5) -> Status:
    """Ask everything that can be asked; what does not answer is a warning, not an error.

    Raises
    ------
    ConfigError
        If the folder has no federation, or a file of it is wrong.
    """
    settings = folder.settings()
    warnings: list[str] = []
    unreachable, seconds = "", None
    nodes: Mapping[str, Mapping[str, Any]] = {}
    found: Sequence[Mapping[str, Any]] = []
    certificate, authority = (
        read_certificate(folder.certificate),
        read_certificate(folder.authority),
    )
    try:
        reached = reach(settings.local_address, folder.authority)
        seconds = round(reached.seconds, 3)
        if reached.certificate != certificate:
            warnings.append(f"the SuperLink does not serve {folder.certificate} yet: restart it")
        nodes, found = flower.nodes(), flower.runs("--limit", runs)
    except FedIFError as error:
        unreachable = str(error)
        warnings.append(unreachable)
    for what, end in (
        ("server's certificate", certificate.not_valid_after_utc),
        ("authority's certificate", authority.not_valid_after_utc),
    ):
        if (days := (end - datetime.now(UTC)).days) < RENEW_DAYS:
            warnings.append(f"the {what} ends in {days} days")
    free = shutil.disk_usage(folder.path).free
    if free < LEAST_FREE:
        warnings.append(f"{free / 2**20:.0f} MiB are free in {folder.path}")
    members = [_status_of(member, nodes, asked=not unreachable) for member in folder.members()]
    gone = [m.name for m in members if m.state == "registered" and m.online is None]
    if gone and not unreachable:
        warnings.append(f"the SuperLink does not know {', '.join(gone)}: was its database lost?")
    registered = [m for m in members if m.state == "registered" and m.online is not None]
    if 2 * (online := sum(bool(m.online) for m in registered)) < len(registered):
        warnings.append(f"{online} of {len(registered)} members are online")
    return Status(
        federation=settings.name,
        address=settings.address,
        superlink=unreachable,
        seconds=seconds,
        members=members,
        runs=[
            {key: str(run.get(key, "")) for key in ("run-id", "status", "status-details")}
            | {"began": str(run.get("running-at", "")), "ended": str(run.get("finished-at", ""))}
            for run in found
        ],
        certificate_ends=f"{certificate.not_valid_after_utc:%Y-%m-%d}",
        authority_ends=f"{authority.not_valid_after_utc:%Y-%m-%d}",
        free_bytes=free,
        warnings=warnings,
    )


def _status_of(
    member: Member, nodes: Mapping[str, Mapping[str, Any]], *, asked: bool
) -> MemberStatus:
    online, last_seen = None, None
    node = nodes.get(member.node_id)
    if asked and node is not None:
        online = node.get("status") == "online"
        left = str(node.get("offline-at", "N/A"))
        last_seen = "now" if online else "never" if left == "N/A" else left
    return MemberStatus(member.name, member.number, member.state, member.node_id, online, last_seen)
