"""The server's folder: which file is what, the federation's settings, and its members."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from annotated_types import MinLen

from fedif_consortium.federation.files import (
    a_keeper_key,
    a_name,
    an_address,
    read_document,
    split_address,
)
from fedif_flower.errors import ConfigError
from fedif_flower.settings import Settings, setting


class FederationSettings(Settings):
    """What a federation is called and where it is, from ``federation.toml``."""

    name: str = a_name("Its name, also that of the connection in Flower's commands.")
    hosts: Annotated[list[str], MinLen(1)] = setting(
        ..., "Names or addresses by which members reach the server.", allowed="one or more names"
    )
    listen: str = an_address("Where members connect to.", "0.0.0.0:9092")
    proxy: bool = setting(True, "Whether nginx stands in front of the SuperLink.")
    superlink: str = an_address("Where the SuperLink listens behind nginx.", "127.0.0.1:9095")
    keeper_key: str = a_keeper_key("The public key of the keeper of masks, where there is one.")

    @property
    def bind(self) -> str:
        """Where the SuperLink listens."""
        return self.superlink if self.proxy else self.listen

    @property
    def address(self) -> str:
        """Where members reach the server: the first of its hosts."""
        return _host_and_port(self.hosts[0], split_address(self.listen)[1])

    @property
    def local_address(self) -> str:
        """Where the server itself reaches it."""
        return _from_here(self.bind)

    @property
    def proxy_address(self) -> str:
        """Where this host reaches what members do."""
        return _from_here(self.listen)


class Member(Settings):
    """What the operator knows of a member, from ``members/<name>.toml``."""

    name: str = a_name("What it is called.")
    number: int = setting(..., "Its own number (`partition-id`).", ge=0)
    invited: str = setting("", "When it was invited.")
    key: str = setting("", "Its public key, once it is known.")
    node_id: str = setting("", "Its id at the SuperLink, once its key is registered there.")
    registered: str = setting("", "When that was.")
    removed: str = setting("", "When its registration was ended.")

    @property
    def state(self) -> str:
        """How far it has come: ``invited``, ``registered`` or ``removed``."""
        if self.removed:
            return "removed"
        return "registered" if self.node_id else "invited"


class FederationFolder:
    """Everything that a federation's server keeps, in one folder.

    Parameters
    ----------
    path : Path
        The folder, absolute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.configuration = path / "federation.toml"  # Its settings.
        self.authority_key = path / "ca.key"  # Signs the server's certificates.
        self.authority = path / "ca.crt"  # What members know the federation by.
        self.server_key, self.certificate = path / "server.key", path / "server.crt"
        self.statement_key = path / "statement-key.pem"  # Signs statements of contributions.
        self.database = path / "superlink.db"
        self.nginx = path / "nginx" / "nginx.conf"
        self.lock = path / ".lock"  # Held while members' numbers are given out.

    def invitation(self, name: str) -> Path:
        """Return where a member's invitation lies."""
        return self.path / "invitations" / f"{name}.invitation.toml"

    def member_file(self, name: str) -> Path:
        """Return where a member's record lies."""
        return self.path / "members" / f"{name}.toml"

    def settings(self) -> FederationSettings:
        """Read the federation's settings.

        Raises
        ------
        ConfigError
            If there is no federation, or a setting is wrong.
        """
        if not self.configuration.is_file():
            raise ConfigError(
                f"{self.path} has no federation.toml: name the federation's folder with --in, or "
                "make one with `fedif federation init`"
            )
        return read_document(self.configuration, FederationSettings)

    def members(self) -> dict[str, Member]:
        """Return everyone who was ever invited or registered, by name, in order of numbers."""
        files = (self.path / "members").glob("*.toml")
        found = sorted((read_document(path, Member) for path in files), key=lambda m: m.number)
        return {member.name: member for member in found}


def _host_and_port(host: str, port: int) -> str:
    """Return ``host:port``, with brackets round an address of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _from_here(address: str) -> str:
    """Return where this host connects to what listens at an address."""
    host, port = split_address(address)
    return _host_and_port("127.0.0.1" if host in ("0.0.0.0", "::") else host, port)
