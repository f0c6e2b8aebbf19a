"""How a federation is: its SuperLink, members, certificate, disk and runs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fedif_consortium.federation.certificates import reach, read_certificate
from fedif_consortium.federation.flower import Flower
from fedif_consortium.federation.folder import FederationFolder, Member
from fedif_flower.errors import FedIFError

RENEW_DAYS = 30  # A certificate that ends sooner is worth a warning.
LEAST_FREE = 2**30
RUNS = 5
RUN_COLUMNS = ("run-id", "status", "running-at", "finished-at", "status-details")


def look(folder: FederationFolder, flower: Flower) -> dict[str, Any]:
    """Ask everything that can be asked; what does not answer is a warning, not an error.

    Returns
    -------
    dict
        As JSON has it: ``federation`` and ``address``; ``superlink``, empty if it answers, else why
        it does not; ``members``, each with
        ``online`` and ``last_seen`` null where the SuperLink did not say; the latest ``runs``;
        ``certificate_ends`` and ``authority_ends``; ``free_bytes``; ``warnings``, what to do about.

    Raises
    ------
    ConfigError
        If the folder has no federation, or a file of it is wrong.
    """
    settings, unreachable = folder.settings(), ""
    warnings: list[str] = []
    nodes: Mapping[str, Mapping[str, Any]] = {}
    runs: list[dict[str, Any]] = []
    certificate, authority = map(read_certificate, (folder.certificate, folder.authority))
    try:
        warnings += [
            f"{address} does not serve {folder.certificate} yet: restart it"
            for address in dict.fromkeys([settings.local_address, settings.proxy_address])
            if reach(address, folder.authority).certificate != certificate
        ]
        nodes, runs = flower.nodes(), flower.runs("--limit", RUNS)
    except FedIFError as error:
        unreachable = str(error)
        warnings.append(unreachable)
    for what, one in (("server", certificate), ("authority", authority)):
        if (days := (one.not_valid_after_utc - datetime.now(UTC)).days) < RENEW_DAYS:
            warnings.append(f"the {what}'s certificate ends in {days} days")
    free = shutil.disk_usage(folder.path).free
    if free < LEAST_FREE:
        warnings.append(f"{free / 2**20:.0f} MiB are free in {folder.path}")
    members = [_status_of(member, nodes) for member in folder.members().values()]
    registered = [member for member in members if member["state"] == "registered"]
    gone = [member["name"] for member in registered if member["online"] is None]
    if gone and not unreachable:
        warnings.append(f"the SuperLink does not know {', '.join(gone)}: was its database lost?")
    known = [member["online"] for member in registered if member["online"] is not None]
    if 2 * sum(known) < len(known):
        warnings.append(f"{sum(known)} of {len(known)} members are online")
    return {
        "federation": settings.name,
        "address": settings.address,
        "superlink": unreachable,
        "members": members,
        "runs": [{key: str(run.get(key, "")) for key in RUN_COLUMNS} for run in runs],
        "certificate_ends": f"{certificate.not_valid_after_utc:%Y-%m-%d}",
        "authority_ends": f"{authority.not_valid_after_utc:%Y-%m-%d}",
        "free_bytes": free,
        "warnings": warnings,
    }


def _status_of(member: Member, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a member as the operator and the SuperLink know it."""
    online, last_seen = None, None
    if (node := nodes.get(member.node_id)) is not None:
        online = node.get("status") == "online"
        left = str(node.get("offline-at", "N/A"))
        last_seen = "now" if online else "never" if left == "N/A" else left
    told = {name: getattr(member, name) for name in ("name", "number", "state", "node_id")}
    return {**told, "online": online, "last_seen": last_seen}
