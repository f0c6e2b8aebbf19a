"""The server's part: keys, certificates and settings, and its SuperLink."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from fedif_consortium.evidence.keys import fingerprint, load_key, load_or_make_key, public_of
from fedif_consortium.federation.certificates import (
    AUTHORITY_DAYS,
    SERVER_DAYS,
    certificate_fingerprint,
    make_key,
    own_certificate,
    server_certificate,
)
from fedif_consortium.federation.files import new, private_folder, secret, split_address, to_toml
from fedif_consortium.federation.flower import Flower, become, connect
from fedif_consortium.federation.folder import FederationFolder, FederationSettings
from fedif_consortium.superlink.proxy import nginx_settings
from fedif_flower.errors import ConfigError

GUARDED_SUPERLINK = "fedif_consortium.superlink.guarded_superlink"
_ABOUT = "The federation's settings, written by `fedif federation init`."


def initialize(folder: FederationFolder, wanted: FederationSettings) -> None:
    """Make what a federation's server needs; what is there already stays.

    Raises
    ------
    ConfigError
        If there is another federation, or a file that is there is not what it should be.
    """
    if folder.configuration.exists() and folder.settings() != wanted:
        raise ConfigError(f"{folder.configuration} is there and says otherwise: edit it")
    signing, authority = folder.authority_key, folder.authority
    for key, certificate in ((signing, authority), (folder.server_key, folder.certificate)):
        if certificate.exists() and not key.exists():
            raise ConfigError(
                f"{certificate} is there, but {key.name} is not: restore it from a backup, or move "
                f"{certificate.name} away too"
            )
    private_folder(folder.path)
    secret(signing, "signs the server's certificates", make_key)
    purpose = f"goes to every member, in its invitation; good for {AUTHORITY_DAYS} days"
    new(authority, purpose, lambda: own_certificate(signing, f"{wanted.name} CA"))
    secret(folder.server_key, "of the SuperLink", make_key)
    new(
        folder.certificate,
        f"for {', '.join(wanted.hosts)}; good for {SERVER_DAYS} days",
        lambda: server_certificate(folder.server_key, signing, authority, wanted.hosts),
    )
    load_or_make_key(folder.statement_key)
    typer.echo(f"{folder.statement_key}, secret: signs statements of contributions")
    new(folder.configuration, "the settings", lambda: to_toml(_ABOUT, wanted.to_mapping()))
    if wanted.proxy:
        new(
            folder.nginx,
            f"nginx -e stderr -p {folder.nginx.parent} -c nginx.conf",
            lambda: nginx_settings(wanted.listen, wanted.superlink, folder.path.owner()),
        )
        if shutil.which("nginx") is None:
            typer.echo("nginx is not here: install it, or give --no-proxy (see docs/operations.md)")
    else:
        typer.echo(f"without a proxy: whoever reaches {wanted.listen} may submit runs")
    flower_of(folder)
    typer.echo(f"Flower's commands know it as {wanted.name!r}, at {wanted.local_address}")
    typer.echo(f"certificate's fingerprint: {certificate_fingerprint(authority.read_text())}")
    typer.echo(f"statement key's fingerprint: {statement_fingerprint(folder)}")


def flower_of(folder: FederationFolder) -> Flower:
    """Return Flower's command with the connection to this host's SuperLink."""
    settings = folder.settings()
    connect(settings.name, settings.local_address, folder.authority)
    return Flower(settings.name)


def statement_fingerprint(folder: FederationFolder) -> str:
    """Return the fingerprint of the key that signs statements."""
    return fingerprint(public_of(load_key(folder.statement_key)))


def start_superlink(folder: FederationFolder, options: Sequence[str]) -> NoReturn:
    """Become the guarded SuperLink of a federation, for registered nodes over TLS alone.

    Raises
    ------
    ConfigError
        If there is no federation, or its statement key is missing.
    """
    host, port = split_address(folder.settings().bind)
    load_key(folder.statement_key)
    own = [
        *("--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", folder.authority.name),
        *("--ssl-certfile", folder.certificate.name, "--ssl-keyfile", folder.server_key.name),
        *("--enable-supernode-auth", "--database", folder.database.name),
    ]
    # The ServerApp signs with the key whose fingerprint members were told.
    key = str(folder.statement_key)
    become(GUARDED_SUPERLINK, [*own, *options], folder.path, FEDIF_STATEMENT_KEY=key)


def make_pair(folder: Path, name: str, hosts: Sequence[str], goes_to: str) -> None:
    """Make a key and a certificate that one peer is to have a copy of; what is there stays."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    secret(key, f"of {certificate.name}", make_key)
    new(certificate, f"goes to {goes_to}", lambda: own_certificate(key, name, hosts))
