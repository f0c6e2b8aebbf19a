"""The server's host: makes keys, certificates and settings, starts the SuperLink, tells the state.

The commands ``fedif federation init``, ``superlink`` and ``status`` use it.
"""

from __future__ import annotations

import shlex
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import typer
from cryptography import x509

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
    require_hosts,
    require_pair,
    server_certificate,
)
from fedif_consortium.federation.flower import (
    Flower,
    become,
    connect,
    has_ended,
    to_arguments,
)
from fedif_consortium.federation.records import FederationFolder, FederationSettings, MemberRecord
from fedif_consortium.federation.removals import begin_removals
from fedif_consortium.superlink.proxy import nginx_settings
from fedif_flower.errors import ConfigError, FedIFError, StorageError

GUARDED_SUPERLINK = "fedif_consortium.superlink.guarded_superlink"
_ABOUT = "The federation's settings, written by `fedif federation init`."
LEAST_FREE = 2**30  # With fewer free bytes on the disk, there is a warning.
_LOCK_SECONDS = 60.0  # How long to wait for a locked database; the SuperLink waits as long.
RUNS = 5  # How many runs are shown.
RUN_COLUMNS = ("run-id", "status", "running-at", "finished-at", "status-details")


def initialize(folder: FederationFolder, settings: FederationSettings) -> None:
    """Make all files that a federation's server needs; existing files stay.

    Raises
    ------
    ConfigError
        If existing settings differ from those given, or an existing file is not what it should be.
    StorageError
        If a file cannot be written.
    """
    if folder.configuration.exists():
        expected = settings.to_mapping()
        in_file = folder.settings().to_mapping()
        different = [key for key in expected if expected[key] != in_file.get(key)]
        files.refuse_changes(folder.configuration, different)
    files.make_private_folder(folder.path)
    _make_certificates(folder, settings)
    verb = "kept" if folder.statement_key.exists() else "made"
    load_or_make_key(folder.statement_key)
    typer.echo(f"{verb} {folder.statement_key}, secret: signs statements of contributions")
    connect(settings.name, settings.local_address, folder.authority)
    typer.echo(f"Flower's commands know it as {settings.name!r}, at {settings.local_address}")
    files.write_new(
        folder.configuration, "the settings", files.to_toml(_ABOUT, settings.to_mapping())
    )
    if settings.proxy:
        _make_proxy(folder, settings)
    else:
        typer.echo(f"without a proxy: whoever reaches {settings.listen} may submit runs")
    _begin_removals(folder.removals)
    fingerprint_of_authority = certificate_fingerprint(folder.authority.read_text())
    typer.echo(f"certificate's fingerprint: {fingerprint_of_authority}")
    typer.echo(f"statement key's fingerprint: {statement_fingerprint(folder)}")


def _begin_removals(path: Path) -> None:
    """Make an empty list of removed members unless there is one, and print what was done."""
    is_new = False
    with suppress(OSError):  # This user may not enter the folder: begin_removals says what to do.
        is_new = not path.exists()
    try:
        begin_removals(path)
    except StorageError as error:
        typer.echo(f"! {error}")
        return
    if is_new:
        typer.echo(f"made {path}: put the list of an earlier host in its place, if there was one")


def _make_certificates(folder: FederationFolder, settings: FederationSettings) -> None:
    """Make the keys and certificates of the federation's authority and of its server.

    Raises
    ------
    ConfigError
        If an existing certificate of the server is not for all ``hosts`` of the settings, or a key
        or the authority's certificate was lost.
    """
    if folder.certificate.exists():
        require_hosts(folder.certificate, settings.hosts)
    authority_key = folder.authority_key
    authority = folder.authority
    if folder.certificate.exists() and not authority.exists():
        raise ConfigError(
            f"{folder.certificate} is there, but {authority.name} is not: restore it from a "
            "backup, or from `certificate` of an invitation; another one would not be the members'"
        )
    files.write_secret(authority_key, authority, "signs the server's certificates", make_key)
    certificate = own_certificate(authority_key, f"{settings.name} CA")
    files.write_new(authority, "goes to every member, in its invitation", certificate)
    files.write_secret(folder.server_key, folder.certificate, "of the SuperLink", make_key)
    certificate = server_certificate(folder.server_key, authority_key, authority, settings.hosts)
    files.write_new(folder.certificate, f"for {', '.join(settings.hosts)}", certificate)


def _make_proxy(folder: FederationFolder, settings: FederationSettings) -> None:
    """Write the settings of nginx, and print the command that starts it."""
    # nginx uses the name only if root starts it. This default is for an owner without a name.
    owner = "nobody"
    with suppress(KeyError):
        owner = folder.path.owner()
    text = nginx_settings(settings.listen, settings.superlink, owner)
    command = f"nginx -e stderr -p {shlex.quote(str(folder.nginx.parent))} -c nginx.conf"
    files.write_new(folder.nginx, command, text)
    if folder.nginx.read_text() != text:
        typer.echo(
            f"! {folder.nginx} is not what {folder.configuration.name} gives: move it away to have "
            "it made anew, unless you changed it yourself"
        )
    if shutil.which("nginx") is None:
        typer.echo("nginx is not here: install it, or give --no-proxy (see docs/operations.md)")


def flower_of(folder: FederationFolder) -> Flower:
    """Return Flower's command with a connection to this host's SuperLink."""
    settings = folder.settings()
    connect(settings.name, settings.local_address, folder.authority)
    return Flower(settings.name)


def statement_fingerprint(folder: FederationFolder) -> str:
    """Return the fingerprint of the key that signs statements."""
    return fingerprint(load_key(folder.statement_key).public_key())


def start_superlink(
    folder: FederationFolder, options: Sequence[str], unlisted_keys: Sequence[str] = ()
) -> NoReturn:
    """Replace this process by a federation's guarded SuperLink, for registered nodes over TLS.

    Parameters
    ----------
    folder : FederationFolder
        The federation's folder.
    options : sequence of str
        Further options of ``flower-superlink``.
    unlisted_keys : sequence of str
        The ids of removed keys that are not in the list of removed members.

    Raises
    ------
    ConfigError
        If there is no federation, its statement key or a certificate is missing, a certificate has
        ended, the server's key is not its certificate's, or the database is damaged.
    """
    host, port = split_address(folder.settings().bind)
    load_key(folder.statement_key)
    for path in (folder.authority, folder.certificate):
        _require_not_ended(path)
    require_pair(folder.certificate, folder.server_key)
    _require_database(folder.database)
    own_options = {
        "--host": host,
        "--port": str(port),
        "--ssl-ca-certfile": folder.authority.name,
        "--ssl-certfile": folder.certificate.name,
        "--ssl-keyfile": folder.server_key.name,
        "--database": folder.database.name,
    }
    arguments = [*to_arguments(own_options), "--enable-supernode-auth", *options]
    environment = {
        # The ServerApp signs with the key whose fingerprint members were told.
        "FEDIF_STATEMENT_KEY": str(folder.statement_key),
        "FEDIF_SERVER_CERTIFICATE": str(folder.certificate),
        "FEDIF_REMOVED_MEMBERS": str(folder.removals),
        "FEDIF_REMOVED_KEYS": " ".join(unlisted_keys),
    }
    become(GUARDED_SUPERLINK, arguments, folder.path, **environment)


def _require_not_ended(path: Path) -> None:
    """Raise ConfigError if a certificate has ended, at which every member's node breaks off."""
    end = read_certificate(path).not_valid_after_utc
    if end < datetime.now(UTC):
        raise ConfigError(
            f"{path} ended on {end:%Y-%m-%d}, so that no member could connect: renew it (see "
            "docs/operations.md, certificates and upgrades)"
        )


def _require_database(path: Path) -> None:
    """Raise ConfigError if there is a SuperLink's database that is damaged or cannot be read."""
    if not path.exists():
        return
    advice = (
        "put a backup in its place, or move it away, and register all members anew with "
        "`fedif federation add-member` and their answers"
    )
    try:
        with closing(sqlite3.connect(path, timeout=_LOCK_SECONDS)) as database:
            database.execute("SELECT name FROM sqlite_master").fetchall()
    except sqlite3.OperationalError as error:
        # The database may be whole, so the message must not advise to move it away.
        reason = f"it is locked by another process, or cannot be opened by this user: {error}"
        raise ConfigError(f"{path} cannot be read ({reason})") from error
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path} is no database of a SuperLink ({advice}): {error}") from error


def make_pair(folder: Path, name: str, hosts: Sequence[str], goes_to: str) -> None:
    """Make a key and a certificate, of which another peer gets a copy; existing files stay.

    Parameters
    ----------
    folder : Path
        The folder of both files.
    name : str
        Their names without suffix, and the holder's name in the certificate.
    hosts : sequence of str
        The names or addresses for which the certificate is; may be empty.
    goes_to : str
        Who gets a copy of the certificate, to be shown.

    Raises
    ------
    ConfigError
        If an existing certificate is not for one of ``hosts``, or its key was lost.
    """
    key = folder / f"{name}.key"
    certificate = folder / f"{name}.crt"
    if certificate.exists():
        require_hosts(certificate, hosts)
    files.write_secret(key, certificate, f"of {certificate.name}", make_key)
    files.write_new(certificate, f"goes to {goes_to}", own_certificate(key, name, hosts))


def state_of(folder: FederationFolder, flower: Flower) -> dict[str, Any]:
    """Return the state of a federation; what does not answer gives a warning, not an error.

    Returns
    -------
    dict
        It can be written as JSON. ``federation`` and ``address``; ``superlink``: why the SuperLink
        does not answer, empty if it does; ``members``, each with ``online`` and ``last_seen``,
        which are ``None`` if the SuperLink does not say them; the latest ``runs``;
        ``certificate_ends`` and ``authority_ends``; ``free_bytes``; ``warnings``; and ``ok``,
        whether there are no warnings.

    Raises
    ------
    ConfigError
        If the folder has no federation, or a file of it is wrong.
    """
    settings = folder.settings()
    certificate = read_certificate(folder.certificate)
    authority = read_certificate(folder.authority)
    answers = _ask_superlink(folder, settings, certificate, flower)
    free_bytes = shutil.disk_usage(folder.path).free
    members = list(folder.members().values())
    statuses = [_status_of(member, answers.nodes) for member in members]
    warnings = [
        *answers.warnings,
        *_warnings_of_certificate("server", certificate),
        *_warnings_of_certificate("authority", authority),
    ]
    if free_bytes < LEAST_FREE:
        warnings.append(f"{free_bytes / 2**20:.0f} MiB are free in {folder.path}")
    warnings += _warnings_of_runs(answers.runs)
    warnings += _warnings_of_registrations(members, answers.nodes)
    warnings += _warnings_of_registered(statuses, is_reachable=not answers.unreachable)
    return {
        "federation": settings.name,
        "address": settings.address,
        "superlink": answers.unreachable,
        "members": statuses,
        "runs": [_row_of_run(run) for run in answers.runs],
        "certificate_ends": f"{certificate.not_valid_after_utc:%Y-%m-%d}",
        "authority_ends": f"{authority.not_valid_after_utc:%Y-%m-%d}",
        "free_bytes": free_bytes,
        "warnings": warnings,
        "ok": not warnings,
    }


@dataclass
class _Answers:
    """The answers of a SuperLink, and of the proxy in front of it.

    Attributes
    ----------
    nodes : mapping of str to mapping
        The SuperLink's information about every node, by node id.
    runs : list of dict
        The SuperLink's information about its latest runs, the last one first.
    unreachable : str
        Why the SuperLink does not answer; empty if it does.
    warnings : list of str
        What is wrong with either.
    """

    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    unreachable: str = ""
    warnings: list[str] = field(default_factory=list)


def _ask_superlink(
    folder: FederationFolder,
    settings: FederationSettings,
    certificate: x509.Certificate,
    flower: Flower,
) -> _Answers:
    """Ask the SuperLink, and its proxy if there is one."""
    answers = _Answers()
    failures = []
    # Without a proxy, both addresses are the same.
    for address in dict.fromkeys([settings.proxy_address, settings.local_address]):
        try:
            served, _ = reach(address, folder.authority)
            if served != certificate:
                answers.warnings.append(
                    f"{address} does not serve {folder.certificate} yet: restart it"
                )
            if address == settings.local_address:
                nodes = flower.nodes()
                runs = flower.runs("--limit", RUNS)
                # Set both only when both came: half an answer counts as none.
                answers.nodes = nodes
                answers.runs = runs
        except FedIFError as error:
            failures.append(str(error))
            if address == settings.local_address:
                answers.unreachable = str(error)
    answers.warnings += failures
    return answers


def _warnings_of_certificate(whose: str, certificate: x509.Certificate) -> list[str]:
    """Return a warning if a certificate ends soon, or has ended; ``whose`` names its holder."""
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    if left >= SOON:
        return []
    if left < timedelta():
        return [f"the {whose}'s certificate ended on {certificate.not_valid_after_utc:%Y-%m-%d}"]
    return [f"the {whose}'s certificate ends in {left.days} days"]


def _warnings_of_runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning if the last run failed."""
    if not runs or not str(runs[0]["status"]).startswith("finished:failed"):
        return []
    details = str(runs[0].get("status-details", "")).removesuffix(" N/A")
    return [
        f"the last run, {runs[0]['run-id']}, failed: {details}; once that is mended, the same "
        'command with resume="auto" goes on'
    ]


def _warnings_of_registrations(
    members: Sequence[MemberRecord], nodes: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return a warning for each member whose record and the SuperLink disagree.

    The SuperLink would still let in a removed member, or lets in no more one that is not removed.
    """
    warnings = []
    for member in members:
        node = nodes.get(member.node_id)
        if node is None:
            continue
        if member.removed and not has_ended(node):
            warnings.append(
                f"{member.name} was removed on {member.removed}, and the SuperLink still has its "
                f"registration: `fedif federation remove-member {member.name}` ends it"
            )
        if not member.removed and has_ended(node):
            warnings.append(words_of_ended(member))
    return warnings


def words_of_ended(member: MemberRecord) -> str:
    """Return words for a registration that was ended by Flower's own command, and what to do."""
    return (
        f"the SuperLink has ended the registration of {member.name}, node {member.node_id}, and "
        f"takes its key no more: `fedif federation remove-member {member.name}`, then invite it by "
        "another name"
    )


def _warnings_of_registered(
    statuses: Sequence[Mapping[str, Any]], *, is_reachable: bool
) -> list[str]:
    """Return warnings if the SuperLink does not know registered members, or most are offline."""
    registered = [status for status in statuses if status["state"] == "registered"]
    unknown = [status["name"] for status in registered if status["online"] is None]
    warnings = []
    if unknown and is_reachable:
        warnings.append(
            f"the SuperLink does not know {', '.join(unknown)}: if its database was lost, "
            "`fedif federation add-member` with their answers registers them anew"
        )
    num_known = len(registered) - len(unknown)
    num_online = sum(1 for status in registered if status["online"])
    if 2 * num_online < num_known:
        warnings.append(f"{num_online} of {num_known} members are online")
    return warnings


def _row_of_run(run: Mapping[str, Any]) -> dict[str, str]:
    return {column: str(run.get(column, "")) for column in RUN_COLUMNS}


def _status_of(member: MemberRecord, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a member's state by the operator's record and the SuperLink's information."""
    status = {
        "name": member.name,
        "number": member.number,
        "state": member.state,
        "node_id": member.node_id,
        "online": None,
        "last_seen": None,
    }
    node = nodes.get(member.node_id)
    if node is not None:
        status["online"] = node.get("status") == "online"
        status["last_seen"] = _last_seen(node)
    return status


def _last_seen(node: Mapping[str, Any]) -> str:
    """Return when a node was last online: ``now``, ``never``, or the time by Flower."""
    if node.get("status") == "online":
        return "now"
    came_online = _time_of(node, "online-at")
    went_offline = _time_of(node, "offline-at")
    # If a node is online when its registration ends, Flower does not note that it went offline.
    # Flower's times are texts of one form, so their order is that of time.
    if has_ended(node) and came_online > went_offline:
        return _time_of(node, "deleted-at")
    return went_offline or "never"


def _time_of(node: Mapping[str, Any], key: str) -> str:
    """Return a time by Flower; empty if it has none."""
    time = str(node.get(key, "N/A"))
    return "" if time == "N/A" else time
