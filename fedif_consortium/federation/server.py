"""The server's part: keys and certificates, the SuperLink, a certificate that follows another."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedif_consortium.evidence.keys import fingerprint, public_of
from fedif_consortium.federation.certificates import (
    AUTHORITY_DAYS,
    LOOPBACK,
    SERVER_DAYS,
    authority_certificate,
    certificate_fingerprint,
    hosts_of,
    make_key,
    pinned_certificate,
    read_certificate,
    require_handshake,
    server_certificate,
)
from fedif_consortium.federation.connection import reach
from fedif_consortium.federation.documents import to_toml
from fedif_consortium.federation.flower import connect
from fedif_consortium.federation.folder import FederationFolder, FederationSettings
from fedif_consortium.federation.programs import Program, module_program
from fedif_consortium.federation.steps import Steps
from fedif_consortium.federation.units import superlink_unit
from fedif_consortium.statement.signing import load_or_make_key
from fedif_flower.errors import ConfigError

GUARDED_SUPERLINK = "fedif_consortium.superlink.guarded_superlink"
_ABOUT = "The federation's settings, written by `fedif federation init`."


def initialize(folder: FederationFolder, wanted: FederationSettings, steps: Steps) -> None:
    """Make what a federation's server needs; what is there already stays.

    Raises
    ------
    ConfigError
        If there is another federation, or a file that is there is not what it should be.
    """
    if folder.configuration.exists() and folder.settings() != wanted:
        raise ConfigError(
            f"{folder.configuration} says otherwise: {_difference(folder.settings(), wanted)}; "
            "edit it there (hosts: `fedif federation rotate-certificate HOST...`)"
        )
    for key, certificate in (
        (folder.authority_key, folder.authority),
        (folder.server_key, folder.certificate),
    ):
        if certificate.exists() and not key.exists():
            raise ConfigError(
                f"{certificate} is there, but {key.name} is not: restore it from a backup, or move "
                f"{certificate.name} away too"
            )
    steps.folder(folder.path)
    steps.secret(folder.authority_key, "signs the server's certificates", make_key)
    steps.new(
        folder.authority,
        f"goes to every member, in its invitation; good for {AUTHORITY_DAYS} days",
        lambda: authority_certificate(folder.authority_key, wanted.name),
    )
    steps.secret(folder.server_key, "of the SuperLink", make_key)
    steps.new(
        folder.certificate,
        f"for {', '.join(wanted.hosts)}; good for {SERVER_DAYS} days",
        lambda: server_certificate(
            folder.server_key, folder.authority_key, folder.authority, wanted.hosts
        ),
    )
    if folder.statement_key.exists():
        steps.say(f"kept {folder.statement_key}")
    else:
        what = f"{folder.statement_key}, secret: signs statements of contributions"
        steps.do("make", "made", what, lambda: load_or_make_key(folder.statement_key))
    steps.new(folder.configuration, "name, hosts and port", lambda: settings_text(wanted))
    unit = folder.path / "fedif-superlink.service"
    steps.new(unit, "for systemd: look at User= first", lambda: superlink_unit(folder.path))
    connect(wanted.name, wanted.local_address, folder.authority, steps)
    if not steps.dry_run:
        require_handshake(folder.certificate, folder.server_key, folder.authority, wanted.hosts[0])
        steps.say(f"certificate's fingerprint: {authority_fingerprint(folder)}")
        steps.say(f"statement key's fingerprint: {statement_fingerprint(folder)}")


def settings_text(settings: FederationSettings) -> str:
    """Return the content of ``federation.toml``."""
    return to_toml(_ABOUT, settings.to_mapping())


def authority_fingerprint(folder: FederationFolder) -> str:
    """Return the fingerprint by which members know the federation."""
    return certificate_fingerprint(read_certificate(folder.authority))


def statement_fingerprint(folder: FederationFolder) -> str:
    """Return the fingerprint of the key that signs statements."""
    if not folder.statement_key.exists():
        raise ConfigError(f"{folder.statement_key} is missing: run `fedif federation init` again")
    return fingerprint(public_of(load_or_make_key(folder.statement_key)))


def superlink_program(folder: FederationFolder, options: Sequence[str]) -> Program:
    """Return the guarded SuperLink of a federation, for registered nodes over TLS alone.

    Raises
    ------
    ConfigError
        If a key or certificate is missing.
    """
    settings = folder.settings()
    for path in (folder.authority, folder.certificate, folder.server_key, folder.statement_key):
        if not path.is_file():
            raise ConfigError(f"{path} is missing: run `fedif federation init` again")
    own = [
        *("--host", settings.bind, "--port", str(settings.port)),
        *("--ssl-ca-certfile", folder.authority.name),
        *("--ssl-certfile", folder.certificate.name, "--ssl-keyfile", folder.server_key.name),
        *("--enable-supernode-auth", "--database", folder.database.name),
    ]
    # The ServerApp signs with the key whose fingerprint members were told.
    more = {"FEDIF_STATEMENT_KEY": str(folder.statement_key)}
    return module_program(GUARDED_SUPERLINK, [*own, *options], folder.path, more)


def rotate(folder: FederationFolder, more_hosts: Sequence[str], steps: Steps) -> None:
    """Replace the server's certificate by a new one under the same authority and key.

    The new one is tried in a handshake for each host before it takes the old one's place, and the
    old one stays beside it.

    Raises
    ------
    ConfigError
        If the rotation before has not been confirmed, or the new certificate does not work.
    """
    settings = folder.settings()
    hosts = list(dict.fromkeys([*settings.hosts, *more_hosts]))
    if folder.previous_certificate.exists():
        raise ConfigError(
            f"{folder.previous_certificate} is still there: end the rotation before with --confirm "
            "or --back"
        )
    pem = server_certificate(folder.server_key, folder.authority_key, folder.authority, hosts)
    with tempfile.TemporaryDirectory() as scratch:
        trial = Path(scratch) / folder.certificate.name
        trial.write_bytes(pem)
        for host in hosts:
            require_handshake(trial, folder.server_key, folder.authority, host)
    steps.say(f"a handshake with the new certificate works for {', '.join(hosts)}")
    old = folder.certificate.read_bytes()
    steps.new(folder.previous_certificate, "the certificate so far", lambda: old)
    steps.replace(folder.certificate, f"good for {SERVER_DAYS} days", pem)
    steps.say("restart the SuperLink, then: fedif federation rotate-certificate --confirm")


def confirm_rotation(folder: FederationFolder, steps: Steps) -> None:
    """Remove the certificate before, and note the hosts of the new one, once that is served.

    Raises
    ------
    UnreachableError
        If the SuperLink does not answer.
    ConfigError
        If it serves another certificate.
    """
    settings = folder.settings()
    served = reach(settings.local_address, folder.authority).certificate
    if served != read_certificate(folder.certificate):
        raise ConfigError(f"the SuperLink does not serve {folder.certificate} yet: restart it")
    steps.say(f"the SuperLink serves {folder.certificate}")
    own = [host for host in hosts_of(served) if host not in LOOPBACK]
    hosts = list(dict.fromkeys([*settings.hosts, *own]))
    text = to_toml(_ABOUT, {**settings.to_mapping(), "hosts": hosts})
    steps.replace(folder.configuration, f"hosts: {', '.join(hosts)}", text)
    steps.remove(folder.previous_certificate, "the one after it works")


def undo_rotation(folder: FederationFolder, steps: Steps) -> None:
    """Put the certificate before back.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if not folder.previous_certificate.exists():
        raise ConfigError(f"there is no {folder.previous_certificate} to go back to")
    steps.rename(folder.previous_certificate, folder.certificate)
    steps.say("restart the SuperLink")


def make_pair(folder: Path, name: str, hosts: Sequence[str], goes_to: str, steps: Steps) -> None:
    """Make a key and a certificate that one peer is to have a copy of; what is there stays."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    steps.secret(key, f"of {certificate.name}", make_key)
    steps.new(certificate, f"goes to {goes_to}", lambda: pinned_certificate(key, name, hosts))


def _difference(there: FederationSettings, wanted: FederationSettings) -> str:
    ours, theirs = wanted.to_mapping(), there.to_mapping()
    return "; ".join(
        f"{key} = {theirs[key]!r} there, {ours[key]!r} here"
        for key in ours
        if ours[key] != theirs[key]
    )
