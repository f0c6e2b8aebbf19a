"""A member's host joins a federation by an invitation, and starts its node."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import typer

from fedif_consortium.address import Address, an_address
from fedif_consortium.evidence.keys import load_key
from fedif_consortium.federation import files, records
from fedif_consortium.federation.certificates import (
    certificate_fingerprint,
    fingerprint_of,
    read_authorities,
    require_for_supernode,
    single_certificate,
)
from fedif_consortium.federation.flower import become, config_text, to_arguments
from fedif_consortium.federation.records import Answer, Invitation
from fedif_flower.errors import ConfigError
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.text import printable
from fedif_flower.settings import Scalar, Settings, setting

SUPERNODE = "fedif_flower.runtime.supernode"
GUARDED_SUPERNODE = "fedif_consortium.member.guarded_supernode"
PORT = 9094
_ABOUT = """\
This host's node, written by `fedif node join`; `fedif node start` reads it.
[config] is what the node says of itself: docs/configuration.md."""
_ABOUT_ANSWER = "To the operator: `fedif federation add-member FILE`."


class NodeSettings(Settings):
    """The settings in ``node.toml``; paths are relative to the node's folder."""

    federation: str = files.a_name("The federation.")
    member: str = files.a_name("This member there.")
    superlink: Address = an_address("Where the server is.")
    port: int = setting(PORT, "A port of this host, for the node's own use.", ge=1, le=65535)
    policy: str = setting("", "What this host lets apps do; empty: no guard.")
    config: dict[str, Scalar] = setting(
        {}, "What the node says of itself.", allowed="a section of texts, numbers, true and false"
    )


class NodeFolder:
    """The folder with all that a member's host keeps for one federation.

    Parameters
    ----------
    path : Path
        The folder, absolute.

    Attributes
    ----------
    configuration, key, authority : Path
        The files of the node's settings, of its private key, and of the authority's certificate by
        which the node knows the server.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.configuration = path / "node.toml"
        self.key = path / "node.key"
        self.authority = path / "ca.crt"

    def answer(self, member: str) -> Path:
        """Return the path of the answer to an invitation."""
        return self.path / f"{member}.answer.toml"

    def settings(self) -> NodeSettings:
        """Return the node's settings.

        Raises
        ------
        ConfigError
            If there is no node, or a setting is wrong.
        """
        otherwise = "name the node's folder with --in, or make it with `fedif node join INVITATION`"
        return files.read_document(self.configuration, NodeSettings, otherwise)


def join(
    folder: NodeFolder,
    invitation: Invitation,
    *,
    config: Mapping[str, Scalar],
    port: int | None = None,
    policy: str = "",
) -> None:
    """Make all files that a node needs to take part, and the answer to its invitation.

    A second call makes what is missing. Existing settings have to agree with those given.

    Parameters
    ----------
    folder : NodeFolder
        The node's folder; existing files stay.
    invitation : Invitation
        The operator's invitation.
    config : mapping of str to bool, int, float or str
        Values of the node's config, in addition to the defaults or in place of them.
    port : int, optional
        A port of this host for the node's own use. ``None``: 9094, or that of existing settings.
    policy : str
        The file of the member's policy; empty: none, or that of existing settings.

    Raises
    ------
    ConfigError
        If the invitation is damaged, the folder is of another federation or member, its settings
        differ from those given, or a key of ``config`` is wrong.
    StorageError
        If a file cannot be written.
    """
    # Check everything before any file is made.
    certificate = single_certificate(invitation.certificate)
    _require_same(folder, invitation)
    node_config: dict[str, Scalar] = {
        "partition-id": invitation.number,
        "statement-dir": str(folder.path / "statements"),
        "receipts-dir": str(folder.path / "receipts"),
    }
    if invitation.keeper_key:
        node_config["signing-key"] = str(folder.key)
        node_config["keeper-key"] = invitation.keeper_key
    settings = NodeSettings(
        federation=invitation.federation,
        member=invitation.member,
        superlink=invitation.address,
        port=PORT if port is None else port,
        policy=policy,
        config={**node_config, **config},
    )
    _require_usable(settings.config)
    if folder.configuration.exists():
        expected = {"superlink": invitation.address, **node_config, **config}
        if port is not None:
            expected["port"] = port
        _refuse_changes(folder, expected, policy)

    files.make_private_folder(folder.path)
    answer_file = folder.answer(invitation.member)
    files.write_secret(folder.key, answer_file, "it never leaves this host", records.make_node_key)
    key = load_key(folder.key)
    records.require_node_key(key.public_key(), f"key = {str(folder.key)!r}")
    public_line = records.public_line(key, invitation.member)
    files.write(folder.path / "node.key.pub", "the same, to show", f"{public_line}\n")
    files.write_new(folder.authority, "the server is known by it", certificate)
    text = files.to_toml(_ABOUT, settings.to_mapping())
    files.write_new(folder.configuration, "where this node connects to, and as whom", text)
    _write_answer(answer_file, records.make_answer(invitation, key))

    typer.echo(f"this node's key: {records.key_fingerprint(public_line)}; read it to the operator")
    typer.echo("ask the operator, not by the way the invitation came, whether these are right:")
    typer.echo(f"certificate's fingerprint: {certificate_fingerprint(certificate)}")
    typer.echo(f"statement key's fingerprint: {printable(invitation.statement_key)}")
    if invitation.keeper_key:
        typer.echo(f"and the keeper's operator: public key {invitation.keeper_key}")


def _write_answer(path: Path, answer: Answer) -> None:
    """Write an answer, unless its file has one with the same content.

    Each signature is another one, so the signatures are not compared. An answer to an earlier
    invitation, or with another key, is written over: the operator would refuse it.
    """
    if path.exists():
        with suppress(ConfigError):  # A damaged answer is written over.
            existing = files.read_document(path, Answer)
            existing.check()
            if existing.replace(signature=answer.signature) == answer:
                typer.echo(f"kept {path}")
                return
    text = files.to_toml(_ABOUT_ANSWER, answer.to_mapping())
    files.write(path, "send it to the operator", text)


def _refuse_changes(folder: NodeFolder, expected: Mapping[str, Scalar], policy: str) -> None:
    """Raise ConfigError if a node's settings, which stay as they are, differ from those given.

    Parameters
    ----------
    folder : NodeFolder
        The node's folder.
    expected : mapping of str to bool, int, float or str
        The expected values by key, of the settings and of their section ``config``.
    policy : str
        The file of the member's policy, absolute; empty: any.
    """
    settings = folder.settings()
    in_file = {"superlink": settings.superlink, "port": settings.port, **settings.config}
    different = [key for key, value in expected.items() if in_file.get(key) != value]
    if policy and (folder.path / settings.policy).resolve() != Path(policy).resolve():
        different.append("policy")
    files.refuse_changes(folder.configuration, different)


def _require_usable(config: Mapping[str, Scalar]) -> None:
    """Raise ConfigError unless Flower and this project's app can use a node config."""
    config_text(config)
    # The folder of the data may be set later; with partitions, it is not needed for this check.
    NodeConfig.from_node_config({"num-partitions": 2**31, **config})


def start_node(folder: NodeFolder, policy: str, options: Sequence[str]) -> NoReturn:
    """Replace this process by the node's: Flower's SuperNode, with a guard if there is a policy.

    Parameters
    ----------
    folder : NodeFolder
        The node's folder.
    policy : str
        The file of the member's policy; empty: the policy in the settings, if any.
    options : sequence of str
        Further options of ``flower-supernode``.

    Raises
    ------
    ConfigError
        If the node's settings are wrong, the server's certificate cannot be read, other users may
        read the node's key, or its port is taken.
    """
    settings = folder.settings()
    try:
        _require_usable(settings.config)
    except ConfigError as error:
        raise ConfigError(f"{folder.configuration}: [config]: {error}") from error
    load_key(folder.key)
    require_for_supernode(folder.authority)
    _require_free(_port(options) or settings.port, folder.configuration)
    own_options = {
        "--superlink": settings.superlink,
        "--root-certificates": str(folder.authority),
        "--auth-supernode-private-key": str(folder.key),
        "--node-config": config_text(settings.config),
        "--port": str(settings.port),
    }
    arguments = [*to_arguments(own_options), *options]
    if not policy and settings.policy:
        policy = str(folder.path / settings.policy)
    if policy:
        become(GUARDED_SUPERNODE, [policy, *arguments], folder.path)
    become(SUPERNODE, arguments, folder.path)


def _port(options: Sequence[str]) -> int:
    """Return the port in options of Flower, as ``--port 1`` or ``--port=1``; 0 if there is none."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--port", default="")
    known_options, _ = parser.parse_known_args(options)
    port = str(known_options.port)
    return int(port) if port.isdecimal() else 0


def _require_free(port: int, configuration: Path) -> None:
    """Raise ConfigError if another program on this host listens at a port."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise ConfigError(
            f"port = {port} is taken on this host, perhaps by another node: each needs one of its "
            f"own, set in {configuration}"
        ) from error


def _require_same(folder: NodeFolder, invitation: Invitation) -> None:
    """Raise ConfigError if a folder belongs to another federation or member than invited."""
    if folder.configuration.exists():
        settings = folder.settings()
        existing = f"{settings.member!r} of {settings.federation!r}"
        invited = f"{invitation.member!r} of {invitation.federation!r}"
        if existing != invited:
            raise ConfigError(
                f"{folder.configuration} is of member {existing}, not {invited}: name another "
                "folder with --in"
            )
    if not folder.authority.exists():
        return
    fingerprints = map(fingerprint_of, read_authorities(folder.authority))
    if certificate_fingerprint(invitation.certificate) not in fingerprints:
        raise ConfigError(
            f"{folder.authority} is another certificate than the invitation's: ask the operator "
            "which is right, and move the wrong one away"
        )
