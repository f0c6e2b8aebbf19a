"""The server's part: keys, certificates and settings, its SuperLink, and how a federation is."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import typer

from fedif_consortium.address import split_address
from fedif_consortium.evidence.keys import fingerprint, load_key, load_or_make_key
from fedif_consortium.federation import files
from fedif_consortium.federation.certificates import (
    SOON,
    certificate_fingerprint,
    make_key,
    own_certificate,
    reach,
    read_certificate,
    server_certificate,
)
from fedif_consortium.federation.flower import Flower, become, connect
from fedif_consortium.federation.records import FederationFolder, FederationSettings, Member
from fedif_consortium.federation.removals import begin_removals
from fedif_consortium.superlink.proxy import nginx_settings
from fedif_flower.errors import ConfigError, FedIFError, StorageError

GUARDED_SUPERLINK = "fedif_consortium.superlink.guarded_superlink"
_ABOUT = "The federation's settings, written by `fedif federation init`."
LEAST_FREE = 2**30
RUNS = 5
RUN_COLUMNS = ("run-id", "status", "running-at", "finished-at", "status-details")


def initialize(folder: FederationFolder, wanted: FederationSettings) -> None:
    """Make what a federation's server needs; what is there already stays.

    Raises
    ------
    ConfigError
        If there is another federation, or a file that is there is not what it should be.
    """
    if folder.configuration.exists() and folder.settings() != wanted:
        raise ConfigError(f"{folder.configuration} is there and says otherwise: edit it")
    files.private_folder(folder.path)
    signing, authority = folder.authority_key, folder.authority
    files.secret(signing, authority, "signs the server's certificates", make_key)
    own = own_certificate(signing, f"{wanted.name} CA")
    files.new(authority, "goes to every member, in its invitation", own)
    files.secret(folder.server_key, folder.certificate, "of the SuperLink", make_key)
    own = server_certificate(folder.server_key, signing, authority, wanted.hosts)
    files.new(folder.certificate, f"for {', '.join(wanted.hosts)}", own)
    done = "kept" if folder.statement_key.exists() else "made"
    load_or_make_key(folder.statement_key)
    typer.echo(f"{done} {folder.statement_key}, secret: signs statements of contributions")
    connect(wanted.name, wanted.local_address, authority)
    typer.echo(f"Flower's commands know it as {wanted.name!r}, at {wanted.local_address}")
    files.new(folder.configuration, "the settings", files.to_toml(_ABOUT, wanted.to_mapping()))
    if wanted.proxy:
        owner = "nobody"  # For root alone it has a meaning, and root has a name.
        with suppress(KeyError):
            owner = folder.path.owner()
        proxy = nginx_settings(wanted.listen, wanted.superlink, owner)
        run = f"nginx -e stderr -p {shlex.quote(str(folder.nginx.parent))} -c nginx.conf"
        files.new(folder.nginx, run, proxy)
        if shutil.which("nginx") is None:
            typer.echo("nginx is not here: install it, or give --no-proxy (see docs/operations.md)")
    else:
        typer.echo(f"without a proxy: whoever reaches {wanted.listen} may submit runs")
    try:
        begin_removals(folder.removals)
    except StorageError as error:
        typer.echo(f"! {error}")
    typer.echo(f"certificate's fingerprint: {certificate_fingerprint(authority.read_text())}")
    typer.echo(f"statement key's fingerprint: {statement_fingerprint(folder)}")


def flower_of(folder: FederationFolder) -> Flower:
    """Return Flower's command with the connection to this host's SuperLink."""
    settings = folder.settings()
    connect(settings.name, settings.local_address, folder.authority)
    return Flower(settings.name)


def statement_fingerprint(folder: FederationFolder) -> str:
    """Return the fingerprint of the key that signs statements."""
    return fingerprint(load_key(folder.statement_key).public_key())


def start_superlink(folder: FederationFolder, options: Sequence[str]) -> NoReturn:
    """Become the guarded SuperLink of a federation, for registered nodes over TLS alone.

    Raises
    ------
    ConfigError
        If there is no federation, or its statement key or a certificate is missing.
    """
    host, port = split_address(folder.settings().bind)
    load_key(folder.statement_key)
    for needed in (folder.authority, folder.certificate):
        read_certificate(needed)
    own = [
        *("--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", folder.authority.name),
        *("--ssl-certfile", folder.certificate.name, "--ssl-keyfile", folder.server_key.name),
        *("--enable-supernode-auth", "--database", folder.database.name),
    ]
    environment = {
        # The ServerApp signs with the key whose fingerprint members were told.
        "FEDIF_STATEMENT_KEY": str(folder.statement_key),
        "FEDIF_SERVER_CERTIFICATE": str(folder.certificate),
        "FEDIF_REMOVED_MEMBERS": str(folder.removals),
    }
    become(GUARDED_SUPERLINK, [*own, *options], folder.path, **environment)


def make_pair(folder: Path, name: str, hosts: Sequence[str], goes_to: str) -> None:
    """Make a key and a certificate that one peer is to have a copy of; what is there stays."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    files.secret(key, certificate, f"of {certificate.name}", make_key)
    files.new(certificate, f"goes to {goes_to}", own_certificate(key, name, hosts))


def look(folder: FederationFolder, flower: Flower) -> dict[str, Any]:
    """Ask everything that can be asked; what does not answer is a warning, not an error.

    Returns
    -------
    dict
        As JSON has it: ``federation`` and ``address``; ``superlink``, empty if it answers, else why
        it does not; ``members``, each with
        ``online`` and ``last_seen`` null where the SuperLink did not say; the latest ``runs``;
        ``certificate_ends`` and ``authority_ends``; ``free_bytes``; ``warnings``, what to do about,
        and ``ok``, whether there are none.

    Raises
    ------
    ConfigError
        If the folder has no federation, or a file of it is wrong.
    """
    settings, warnings, failed = folder.settings(), list[str](), dict[str, str]()
    nodes: Mapping[str, Mapping[str, Any]] = {}
    runs: list[dict[str, Any]] = []
    certificate, authority = map(read_certificate, (folder.certificate, folder.authority))
    for address in dict.fromkeys([settings.proxy_address, settings.local_address]):
        try:
            if reach(address, folder.authority)[0] != certificate:
                warnings.append(f"{address} does not serve {folder.certificate} yet: restart it")
            if address == settings.local_address:
                nodes, runs = flower.nodes(), flower.runs("--limit", RUNS)
        except FedIFError as error:
            failed[address] = str(error)
    warnings += failed.values()
    unreachable = failed.get(settings.local_address, "")
    for what, one in (("server", certificate), ("authority", authority)):
        if (left := one.not_valid_after_utc - datetime.now(UTC)) < SOON:
            warnings.append(f"the {what}'s certificate ends in {left.days} days")
    free = shutil.disk_usage(folder.path).free
    if free < LEAST_FREE:
        warnings.append(f"{free / 2**20:.0f} MiB are free in {folder.path}")
    if runs and str(runs[0]["status"]).startswith("finished:failed"):
        details = str(runs[0].get("status-details", "")).removesuffix(" N/A")
        warnings.append(
            f"the last run, {runs[0]['run-id']}, failed: {details}; once that is mended, the same "
            'command with resume="auto" goes on'
        )
    for member in folder.members().values():
        status = nodes.get(member.node_id, {}).get("status", "unregistered")
        if member.removed and status != "unregistered":
            warnings.append(
                f"{member.name} was removed on {member.removed}, and the SuperLink still has its "
                f"registration: `fedif federation remove-member {member.name}` ends it"
            )
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
        "ok": not warnings,
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
