"""What an operator and a member keep, and send to each other before the first connection.

The invitation says where the server is and how to know it. The answer has the member's public key,
signed by its private half together with the fingerprint of the certificate that the member was
given. Both hold no secret, and both are worth comparing aloud: whoever can change them on their
way could take either's place.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Annotated

from annotated_types import MinLen
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fedif_consortium.address import Address, an_address, joined_address, split_address
from fedif_consortium.evidence import keys
from fedif_consortium.evidence.names import EARLIER, key_name
from fedif_consortium.federation import files
from fedif_consortium.federation.certificates import certificate_fingerprint, read_certificate
from fedif_flower.errors import ConfigError, require
from fedif_flower.foreign import refused_as
from fedif_flower.settings import Settings, setting


class FederationSettings(Settings):
    """What a federation is called and where it is, from ``federation.toml``."""

    name: str = files.a_name("Its name, also that of the connection in Flower's commands.")
    hosts: Annotated[list[str], MinLen(1)] = setting(
        ..., "Names or addresses by which members reach the server.", allowed="one or more names"
    )
    listen: Address = an_address("Where members connect to.", "0.0.0.0:9092")
    proxy: bool = setting(True, "Whether nginx stands in front of the SuperLink.")
    superlink: Address = an_address("Where the SuperLink listens behind nginx.", "127.0.0.1:9095")
    keeper_key: str = files.a_keeper_key(
        "The public key of the keeper of masks, where there is one."
    )

    @property
    def bind(self) -> str:
        """Where the SuperLink listens."""
        if self.proxy:
            return self.superlink
        return self.listen

    @property
    def address(self) -> str:
        """Where members reach the server: the first of its hosts."""
        _, port = split_address(self.listen)
        return joined_address(self.hosts[0], port)

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

    name: str = files.a_name("What it is called.")
    number: int = setting(..., "Its own number (`partition-id`).", ge=0)
    invited: str = setting("", "When it was invited.")
    key: str = setting("", "Its public key, once it is known.")
    earlier_keys: list[str] = setting(
        [], "Those that it had before.", allowed="lines as OpenSSH writes public keys"
    )
    node_id: str = setting("", "Its id at the SuperLink, once its key is registered there.")
    registered: str = setting("", "When that was.")
    removed: str = setting("", "When its registration was ended.")

    @property
    def state(self) -> str:
        """How far it has come: ``invited``, ``registered`` or ``removed``."""
        if self.removed:
            return "removed"
        if self.node_id:
            return "registered"
        return "invited"


class FederationFolder:
    """Everything that a federation's server keeps, in one folder.

    Parameters
    ----------
    path : Path
        The folder, absolute, and without a link or ``..``: the list lies beside it.
    removals : Path, optional
        The list of removed members, absolute; ``None``: beside the folder, under its name.
    """

    def __init__(self, path: Path, removals: Path | None = None) -> None:
        self.path = path
        self.configuration = path / "federation.toml"  # Its settings.
        self.authority_key = path / "ca.key"  # Signs the server's certificates.
        self.authority = path / "ca.crt"  # What members know the federation by.
        self.server_key = path / "server.key"
        self.certificate = path / "server.crt"
        self.statement_key = path / keys.STATEMENT_KEY  # Signs statements of contributions.
        self.database = path / "superlink.db"
        self.nginx = path / "nginx" / "nginx.conf"
        # Not in the folder: a backup of this, put back, must not bring removed members back.
        self.removals = removals or path.with_name(f"{path.name}.removed.csv")
        self.lock = path / ".lock"  # Held while members' numbers are given out.

    def invitation(self, name: str) -> Path:
        """Return where a member's invitation lies."""
        return self.path / "invitations" / f"{name}.invitation.toml"

    def member_file(self, name: str) -> Path:
        """Return where a member's record lies."""
        return self.path / "members" / f"{name}.toml"

    def public_key(self, name: str, earlier: int = 0) -> Path:
        """Return where a member's public key lies, once it is known; or its ``earlier``-th one."""
        return self.path / "members" / f"{key_name(name, earlier)}.pub"

    def public_keys(self, name: str) -> list[Path]:
        """Return the files of a member's keys, earlier ones too."""
        earlier_ones = (self.path / "members").glob(f"{key_name(name, 0)}{EARLIER}*.pub")
        paths = [self.public_key(name), *sorted(earlier_ones)]
        return [path for path in paths if path.is_file()]

    def certificate_text(self) -> str:
        """Return the authority's certificate, as PEM; a ConfigError if it is none."""
        read_certificate(self.authority)
        return self.authority.read_text()

    def settings(self) -> FederationSettings:
        """Read the federation's settings.

        Raises
        ------
        ConfigError
            If there is no federation, or a setting is wrong.
        """
        otherwise = (
            "name the federation's folder with --in, or make one with `fedif federation init`"
        )
        return files.read_document(self.configuration, FederationSettings, otherwise)

    def members(self) -> dict[str, Member]:
        """Return everyone who was ever invited or registered, by name, in order of numbers.

        Raises
        ------
        ConfigError
            If a file is wrong, is not called as its member, or has another one's number.
        """
        by_number: dict[int, Member] = {}
        for path in sorted((self.path / "members").glob("*.toml")):
            member = files.read_document(path, Member)
            require(member.name == path.stem, f"{path}: name", member.name, repr(path.stem))
            other = by_number.setdefault(member.number, member)
            if other is not member:
                other_path = self.member_file(other.name)
                raise ConfigError(f"{path} and {other_path} have the same number, {member.number}")
        return {by_number[number].name: by_number[number] for number in sorted(by_number)}


def _from_here(address: str) -> str:
    """Return where this host connects to what listens at an address."""
    host, port = split_address(address)
    if host == "0.0.0.0":
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return joined_address(host, port)


class Membership(Settings):
    """Who takes part in which federation."""

    federation: str = files.a_name("The federation's name.")
    member: str = files.a_name("The member's name there.")
    number: int = setting(..., "The member's own number (`partition-id`).", ge=0)


class Invitation(Membership):
    """What a member has to know to join."""

    address: Address = an_address("Where members reach the server.")
    statement_key: str = setting(..., "Fingerprint of the key that signs statements.")
    keeper_key: str = files.a_keeper_key("The keeper's public key, to compare with its operator.")
    certificate: str = setting(..., "Of the federation's authority, in PEM.")


class Answer(Membership):
    """A member's public key, on its way to the operator."""

    certificate_fingerprint: str = setting(..., "Of the certificate that the member was given.")
    key: str = setting(..., "The member's public key, in a line as OpenSSH writes it.")
    signature: str = setting("", "Of all the above by the member's key, in base64.")

    def check(self) -> None:
        """Raise ConfigError unless the key signed this, and is one that a SuperNode can have."""
        with refused_as(ConfigError, f"{self.member}: signature is no base64"):
            signature = base64.b64decode(self.signature, validate=True)
        key = keys.read_public_key(self.key.encode(), f"{self.member}: key")
        require_node_key(key, f"{self.member}: key")
        if not keys.is_signed(key, signature, self._signed_content()):
            raise ConfigError(f"{self.member} did not sign its answer: it was changed on its way")

    def sign(self, key: keys.SigningKey) -> Answer:
        """Return this with the signature of a key."""
        signature = keys.sign(key, self._signed_content())
        return self.replace(signature=base64.b64encode(signature).decode())

    def _signed_content(self) -> bytes:
        values = dict(self.to_mapping())
        del values["signature"]
        return json.dumps(values, sort_keys=True).encode()


def make_answer(invitation: Invitation, key: keys.SigningKey) -> Answer:
    """Return the answer to an invitation, signed."""
    answer = Answer(
        **invitation.part(Membership).model_dump(),
        certificate_fingerprint=certificate_fingerprint(invitation.certificate),
        key=public_line(key, invitation.member),
    )
    return answer.sign(key)


def make_node_key() -> bytes:
    """Return a new private key of the curve P-384 in OpenSSH's format, as SuperNodes need it."""
    key = ec.generate_private_key(ec.SECP384R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def require_node_key(key: keys.VerifyingKey, name: str) -> None:
    """Raise ConfigError unless a key is of a curve that Flower lets SuperNodes in with."""
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{name} is an Ed25519 key; a SuperNode's is of P-256, P-384 or P-521")


def public_line(key: keys.SigningKey, comment: str) -> str:
    """Return a key's public half in a line, as OpenSSH writes it."""
    public_key = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return f"{public_key.decode()} {comment}"


def key_fingerprint(public: str) -> str:
    """Return what people compare of a public key in a line, as OpenSSH writes it."""
    return keys.fingerprint(keys.read_public_key(public.encode(), "key"))
