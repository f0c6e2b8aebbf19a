"""A member's host: joining by an invitation, and starting the node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from fedif_consortium.evidence.keys import read_private_key
from fedif_consortium.federation.documents import (
    NAME,
    NAME_ALLOWED,
    read_document,
    to_toml,
)
from fedif_consortium.federation.files import Say, new, private_folder, secret
from fedif_consortium.federation.flower import Program
from fedif_consortium.federation.invitation import (
    Invitation,
    key_fingerprint,
    make_answer,
    make_node_key,
    public_line,
)
from fedif_flower.errors import ConfigError
from fedif_flower.foreign import read_toml
from fedif_flower.settings import Scalar, Settings, setting, take_section
from fedif_flower.storage import require_private

SUPERNODE = "fedif_flower.runtime.supernode"
GUARDED_SUPERNODE = "fedif_consortium.member.guarded_supernode"
_ABOUT = """\
This host's node, written by `fedif node join`; `fedif node start` reads it.
[config] is what the node says of itself: docs/configuration.md."""


class NodeSettings(Settings):
    """Where a node connects to, and as whom; paths are relative to the node's folder."""

    federation: str = setting(..., "The federation.", pattern=NAME, allowed=NAME_ALLOWED)
    member: str = setting(..., "This member there.", pattern=NAME, allowed=NAME_ALLOWED)
    superlink: str = setting(
        ..., "Where the server is.", pattern=r"^\S+:\d{1,5}$", allowed="HOST:PORT"
    )
    port: int = setting(9094, "A port of this host, for the node's own use.", ge=1, le=65535)
    policy: str = setting("", "What this host lets apps do; empty: no guard.")


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

    def read(self) -> tuple[NodeSettings, dict[str, Scalar]]:
        """Return the node's settings, and what it says of itself.

        Raises
        ------
        ConfigError
            If there is no node, or something in its file is wrong.
        """
        if not self.configuration.is_file():
            raise ConfigError(
                f"{self.path} has no node.toml: name the node's folder with --in, or make it with "
                "`fedif node join INVITATION`"
            )
        content = read_toml(self.configuration)
        try:
            config = take_section(content, "config")
            return NodeSettings(**content), config
        except ConfigError as error:
            raise ConfigError(f"{self.configuration}: {error}") from error


def read_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a node's private key.

    Raises
    ------
    ConfigError
        If others may read it, or it is none of an elliptic curve.
    """
    try:
        require_private(path, "the key")
        key = read_private_key(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is of another kind; SuperNodes need elliptic curves of NIST")
    return key


def join(
    folder: NodeFolder,
    invitation: Invitation,
    say: Say,
    *,
    config: Mapping[str, Scalar],
    port: int,
    policy: str,
) -> None:
    """Make what a node needs to take part, and the answer to its invitation.

    Parameters
    ----------
    folder : NodeFolder
        Where everything goes; what is there already stays.
    invitation : Invitation
        The operator's.
    say : Callable
        Takes a line for the user.
    config : mapping
        What the node says of itself beside its number, or instead of a default.
    port : int
        Of this host.
    policy : str
        File with what this host lets apps do; empty: none.

    Raises
    ------
    ConfigError
        If the invitation is damaged, or the folder is another federation's or member's.
    """
    certificate = invitation.certificate_fingerprint  # Before anything is made.
    _require_same(folder, invitation)
    own = _own_config(folder, invitation) | dict(config)
    node_config_text(own)
    settings = NodeSettings(
        federation=invitation.federation,
        member=invitation.member,
        superlink=invitation.address,
        port=port,
        policy=policy,
    )
    private_folder(folder.path)
    secret(folder.key, "it never leaves this host", make_node_key, say)
    key = read_node_key(folder.key)
    public = folder.path / "node.key.pub"
    new(public, "the same, to show", lambda: public_line(key, invitation.member) + "\n", say)
    new(folder.authority, "the server is known by it", lambda: invitation.certificate, say)
    text = to_toml(_ABOUT, {**settings.to_mapping(), "config": own})
    new(folder.configuration, "where this node connects to, and as whom", lambda: text, say)
    answer = make_answer(invitation, key)
    text = to_toml("To the operator: `fedif federation add-member FILE`.", answer.to_mapping())
    # A signature differs each time, for the same key and invitation.
    new(folder.answer(invitation.member), "send it to the operator", lambda: text, say)
    say(f"this node's key: {key_fingerprint(answer.key)}; read it to the operator")
    say("ask the operator, not by the way the invitation came, whether these are right:")
    say(f"certificate's fingerprint: {certificate}")
    say(f"statement key's fingerprint: {invitation.statement_key}")
    if invitation.keeper_key:
        say(f"and the keeper's operator: public key {invitation.keeper_key}")


def node_program(folder: NodeFolder, policy: str, options: Sequence[str]) -> Program:
    """Return a node's program: Flower's SuperNode, guarded where there is a policy.

    Raises
    ------
    ConfigError
        If a file is missing, or the node's file is wrong.
    """
    settings, config = folder.read()
    read_node_key(folder.key)
    if not folder.authority.is_file():
        raise ConfigError(f"{folder.authority} is no file")
    given = [
        *("--superlink", settings.superlink, "--root-certificates", str(folder.authority)),
        *("--auth-supernode-private-key", str(folder.key)),
        *("--node-config", node_config_text(config), "--port", str(settings.port)),
        *options,
    ]
    policy = policy or (str(folder.path / settings.policy) if settings.policy else "")
    if not policy:
        return Program(SUPERNODE, given, folder.path, {})
    if not Path(policy).exists():
        raise ConfigError(f"policy = {policy!r} is no file and no folder")
    return Program(GUARDED_SUPERNODE, [policy, *given], folder.path, {})


def read_invitation(path: Path) -> Invitation:
    """Read an invitation's file."""
    return read_document(path, Invitation)


def node_config_text(config: Mapping[str, Scalar]) -> str:
    """Return what a node says of itself, as ``flower-supernode --node-config`` takes it.

    Raises
    ------
    ConfigError
        If a value is of a type, or has quotes, that Flower cannot take there.
    """
    return " ".join(f"{key}={_quoted(key, value)}" for key, value in config.items())


def _quoted(key: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if not isinstance(value, str) or "'" in value or not value.isprintable():
        allowed = "a number, true, false or text without apostrophes and line breaks"
        raise ConfigError(f"[config] {key} = {value!r}; allowed: {allowed}")
    return f"'{value}'"


def _own_config(folder: NodeFolder, invitation: Invitation) -> dict[str, Scalar]:
    """Return what a node says of itself if nobody says otherwise."""
    config: dict[str, Scalar] = {
        "partition-id": invitation.number,
        "statement-dir": str(folder.path / "statements"),
        "receipts-dir": str(folder.path / "receipts"),
    }
    if invitation.keeper_key:
        config["signing-key"] = str(folder.key)
        config["keeper-key"] = invitation.keeper_key
        config["own-updates-dir"] = str(folder.path / "mine")
    return config


def _require_same(folder: NodeFolder, invitation: Invitation) -> None:
    """Raise ConfigError if a folder is another federation's or member's."""
    if folder.configuration.exists():
        there, _ = folder.read()
        for what in ("federation", "member"):
            found, wanted = getattr(there, what), getattr(invitation, what)
            if found != wanted:
                raise ConfigError(
                    f"{folder.configuration} is of {what} {found!r}, not {wanted!r}: name another "
                    "folder with --in"
                )
    if folder.authority.exists() and folder.authority.read_text() != invitation.certificate:
        raise ConfigError(
            f"{folder.authority} is another certificate than the invitation's: ask the operator "
            "which is right, and move the wrong one away"
        )
