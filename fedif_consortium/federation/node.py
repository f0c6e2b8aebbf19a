"""A member's host: joining by an invitation, and starting the node."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import typer

from fedif_consortium.address import Address, an_address
from fedif_consortium.evidence.keys import load_key
from fedif_consortium.federation import files, records
from fedif_consortium.federation.certificates import certificate_fingerprint
from fedif_consortium.federation.flower import become, config_text
from fedif_consortium.federation.records import Invitation
from fedif_flower.errors import ConfigError
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.settings import Scalar, Settings, setting

SUPERNODE = "fedif_flower.runtime.supernode"
GUARDED_SUPERNODE = "fedif_consortium.member.guarded_supernode"
_ABOUT = """\
This host's node, written by `fedif node join`; `fedif node start` reads it.
[config] is what the node says of itself: docs/configuration.md."""


class NodeSettings(Settings):
    """Where a node connects to, and as whom; paths are relative to the node's folder."""

    federation: str = files.a_name("The federation.")
    member: str = files.a_name("This member there.")
    superlink: Address = an_address("Where the server is.")
    port: int = setting(9094, "A port of this host, for the node's own use.", ge=1, le=65535)
    policy: str = setting("", "What this host lets apps do; empty: no guard.")
    config: dict[str, Scalar] = setting(
        {}, "What the node says of itself.", allowed="a section of texts, numbers, true and false"
    )


class NodeFolder:
    """Everything that a member's host keeps for one federation, in one folder.

    Parameters
    ----------
    path : Path
        The folder, absolute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.configuration = path / "node.toml"
        self.key = path / "node.key"
        self.authority = path / "ca.crt"  # What the server is known by.

    def answer(self, member: str) -> Path:
        """Return where the answer to an invitation lies."""
        return self.path / f"{member}.answer.toml"

    def settings(self) -> NodeSettings:
        """Read the node's settings.

        Raises
        ------
        ConfigError
            If there is no node, or something in its file is wrong.
        """
        otherwise = "name the node's folder with --in, or make it with `fedif node join INVITATION`"
        return files.read_document(self.configuration, NodeSettings, otherwise)


def join(
    folder: NodeFolder, invited: Invitation, *, config: Mapping[str, Scalar], port: int, policy: str
) -> None:
    """Make what a node needs to take part, and the answer to its invitation.

    Parameters
    ----------
    folder : NodeFolder
        Where everything goes; what is there already stays.
    invited : Invitation
        The operator's.
    config : mapping
        What the node says of itself beside its number, or instead of a default.
    port : int
        Of this host.
    policy : str
        File with what this host lets apps do; empty: none.

    Raises
    ------
    ConfigError
        If the invitation is damaged, the folder is another federation's or member's, or a key of
        ``config`` is wrong.
    """
    certificate = certificate_fingerprint(invited.certificate)  # Before anything is made.
    _require_same(folder, invited)
    masked = {"signing-key": str(folder.key), "keeper-key": invited.keeper_key}
    own = {
        "partition-id": invited.number,
        "statement-dir": str(folder.path / "statements"),
        "receipts-dir": str(folder.path / "receipts"),
        **(masked if invited.keeper_key else {}),
        **config,
    }
    settings = NodeSettings(
        federation=invited.federation,
        member=invited.member,
        superlink=invited.address,
        port=port,
        policy=policy,
        config=own,
    )
    config_text(settings.config)
    # Where its data lie may be said later.
    NodeConfig.from_node_config({"num-partitions": 2**31, **settings.config})
    files.private_folder(folder.path)
    answered = folder.answer(invited.member)
    files.secret(folder.key, answered, "it never leaves this host", records.make_node_key)
    key = load_key(folder.key)
    line = records.public_line(key, invited.member)
    files.write(folder.path / "node.key.pub", "the same, to show", f"{line}\n")
    files.new(folder.authority, "the server is known by it", invited.certificate)
    text = files.to_toml(_ABOUT, settings.to_mapping())
    files.new(folder.configuration, "where this node connects to, and as whom", text)
    answer = records.make_answer(invited, key).to_mapping()
    reply = files.to_toml("To the operator: `fedif federation add-member FILE`.", answer)
    # A signature differs each time, for the same key and invitation.
    files.new(answered, "send it to the operator", reply)
    typer.echo(f"this node's key: {records.key_fingerprint(line)}; read it to the operator")
    typer.echo("ask the operator, not by the way the invitation came, whether these are right:")
    typer.echo(f"certificate's fingerprint: {certificate}")
    typer.echo(f"statement key's fingerprint: {invited.statement_key}")
    if invited.keeper_key:
        typer.echo(f"and the keeper's operator: public key {invited.keeper_key}")


def start_node(folder: NodeFolder, policy: str, options: Sequence[str]) -> NoReturn:
    """Become a node's program: Flower's SuperNode, guarded where there is a policy.

    Raises
    ------
    ConfigError
        If the node's file is wrong, others may read its key, or its port is taken: another node of
        this host has it.
    """
    settings = folder.settings()
    load_key(folder.key)
    _require_free(_port(options) or settings.port, folder.configuration)
    policy = policy or (str(folder.path / settings.policy) if settings.policy else "")
    given = [
        *("--superlink", settings.superlink, "--root-certificates", str(folder.authority)),
        *("--auth-supernode-private-key", str(folder.key)),
        *("--node-config", config_text(settings.config), "--port", str(settings.port)),
        *options,
    ]
    if policy:
        become(GUARDED_SUPERNODE, [policy, *given], folder.path)
    become(SUPERNODE, given, folder.path)


def _port(options: Sequence[str]) -> int:
    """Return the port that options of Flower's name; 0: none."""
    named = [after for option, after in pairwise(options) if option == "--port"]
    return int(named[-1]) if named and named[-1].isdecimal() else 0


def _require_free(port: int, configuration: Path) -> None:
    """Raise ConfigError if something on this host listens at a port."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise ConfigError(
            f"port = {port} is taken on this host, perhaps by another node: each needs one of its "
            f"own, set in {configuration}"
        ) from error


def _require_same(folder: NodeFolder, invited: Invitation) -> None:
    """Raise ConfigError if a folder is another federation's or member's."""
    if folder.configuration.exists():
        of = folder.settings(), invited
        found, wanted = (f"{one.member!r} of {one.federation!r}" for one in of)
        if found != wanted:
            raise ConfigError(
                f"{folder.configuration} is of member {found}, not {wanted}: name another folder "
                "with --in"
            )
    if folder.authority.exists() and folder.authority.read_bytes() != invited.certificate.encode():
        raise ConfigError(
            f"{folder.authority} is another certificate than the invitation's: ask the operator "
            "which is right, and move the wrong one away"
        )
