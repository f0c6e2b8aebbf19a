"""The operator's records of a federation, and the files that operator and members exchange.

An *invitation* says where the server is and how to recognise it. An *answer* has the member's
public key and the fingerprint of the certificate that the member was given, signed with the
member's private key. Neither holds a secret. But whoever can change them on their way could take
the place of the server or of the member, so their fingerprints should be compared by telephone.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Annotated, Any

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

_ABOUT_MEMBER = "A member, as the operator knows it; written by `fedif federation`."


class FederationSettings(Settings):
    """A federation's name and addresses, from ``federation.toml``."""

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
        """The address at which the SuperLink listens."""
        if self.proxy:
            return self.superlink
        return self.listen

    @property
    def address(self) -> str:
        """The address at which members reach the server, with the first of its hosts."""
        _, port = split_address(self.listen)
        return joined_address(self.hosts[0], port)

    @property
    def local_address(self) -> str:
        """The address at which this host reaches the SuperLink, without the proxy."""
        return _from_here(self.bind)

    @property
    def proxy_address(self) -> str:
        """The address at which this host reaches what members reach: the proxy, if there is one."""
        return _from_here(self.listen)


class MemberRecord(Settings):
    """The operator's record of a member, from ``members/<name>.toml``."""

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
        """The member's state: ``invited``, ``registered`` or ``removed``."""
        if self.removed:
            return "removed"
        if self.node_id:
            return "registered"
        return "invited"

    def with_values(self, **values: Any) -> MemberRecord:
        """Return the record with other values, which are checked; they may be lists."""
        return MemberRecord(**{**self.model_dump(), **values})


class FederationFolder:
    """The folder with all that a federation's server keeps, and the list of removed members.

    Parameters
    ----------
    path : Path
        The folder, absolute, and without a link or ``..``, since the list lies beside it.
    removals : Path, optional
        The list of removed members, absolute. ``None``: ``NAME.removed.csv`` beside the folder
        ``NAME``.
    """

    def __init__(self, path: Path, removals: Path | None = None) -> None:
        self.path = path
        self.configuration = path / "federation.toml"  # Its settings.
        self.authority_key = path / "ca.key"  # Signs the server's certificates.
        self.authority = path / "ca.crt"  # The certificate by which members know the federation.
        self.server_key = path / "server.key"
        self.certificate = path / "server.crt"
        self.statement_key = path / keys.STATEMENT_KEY  # Signs statements of contributions.
        self.database = path / "superlink.db"
        self.nginx = path / "nginx" / "nginx.conf"
        # Outside of the folder, so that a restored backup does not bring removed members back.
        self.removals = removals or path.with_name(f"{path.name}.removed.csv")
        self.lock = path / ".lock"  # Locked while members' records are read and changed.

    def invitation(self, name: str) -> Path:
        """Return the path of a member's invitation."""
        return self.path / "invitations" / f"{name}.invitation.toml"

    def member_file(self, name: str) -> Path:
        """Return the path of a member's record."""
        return self.path / "members" / f"{name}.toml"

    def public_key(self, name: str, earlier: int = 0) -> Path:
        """Return the path of a member's public key; with ``earlier`` > 0, of that earlier key."""
        return self.path / "members" / f"{key_name(name, earlier)}.pub"

    def public_keys(self, name: str) -> list[Path]:
        """Return the existing files of a member's public keys, also of its earlier ones."""
        earlier_ones = (self.path / "members").glob(f"{key_name(name, 0)}{EARLIER}*.pub")
        paths = [self.public_key(name), *sorted(earlier_ones)]
        return [path for path in paths if path.is_file()]

    def certificate_text(self) -> str:
        """Return the authority's certificate as PEM; raise ConfigError if it cannot be read.

        It is the first one in its file: an invitation may hold no more.
        """
        return read_certificate(self.authority).public_bytes(Encoding.PEM).decode()

    def settings(self) -> FederationSettings:
        """Return the federation's settings.

        Raises
        ------
        ConfigError
            If there is no federation, or a setting is wrong.
        """
        otherwise = (
            "name the federation's folder with --in, or make one with `fedif federation init`"
        )
        return files.read_document(self.configuration, FederationSettings, otherwise)

    def members(self) -> dict[str, MemberRecord]:
        """Return the records of all members that were ever invited, by name, in order of numbers.

        Raises
        ------
        ConfigError
            If a record is malformed, has another name than its file, or two records have the same
            number.
        """
        by_number: dict[int, MemberRecord] = {}
        for path in sorted((self.path / "members").glob("*.toml")):
            member = files.read_document(path, MemberRecord)
            require(member.name == path.stem, f"{path}: name", member.name, repr(path.stem))
            other = by_number.setdefault(member.number, member)
            if other is not member:
                other_path = self.member_file(other.name)
                raise ConfigError(f"{path} and {other_path} have the same number, {member.number}")
        return {by_number[number].name: by_number[number] for number in sorted(by_number)}

    def save(self, member: MemberRecord) -> None:
        """Write a member's record, and the file of its key unless that exists."""
        text = files.to_toml(_ABOUT_MEMBER, member.to_mapping())
        files.write(self.member_file(member.name), f"{member.name}, {member.state}", text)
        if member.key:
            path = self.public_key(member.name)
            files.write_new(path, "for `fedif verify --members`", f"{member.key}\n")


def _from_here(address: str) -> str:
    """Return the address at which this host reaches a program that listens at ``address``."""
    host, port = split_address(address)
    if host == "0.0.0.0":
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return joined_address(host, port)


class Membership(Settings):
    """A member's name and number in a federation."""

    federation: str = files.a_name("The federation's name.")
    member: str = files.a_name("The member's name there.")
    number: int = setting(..., "The member's own number (`partition-id`).", ge=0)


class Invitation(Membership):
    """An invitation: what a member has to know to join."""

    address: Address = an_address("Where members reach the server.")
    statement_key: str = setting(..., "Fingerprint of the key that signs statements.")
    keeper_key: str = files.a_keeper_key("The keeper's public key, to compare with its operator.")
    certificate: str = setting(..., "Of the federation's authority, in PEM.")


class Answer(Membership):
    """The answer to an invitation: the member's public key, signed with its private half."""

    certificate_fingerprint: str = setting(..., "Of the certificate that the member was given.")
    key: str = setting(..., "The member's public key, in a line as OpenSSH writes it.")
    signature: str = setting("", "Of all the above by the member's key, in base64.")

    def check(self) -> None:
        """Raise ConfigError unless the answer's key signed it, and is allowed for SuperNodes."""
        with refused_as(ConfigError, f"{self.member}: signature is no base64"):
            signature = base64.b64decode(self.signature, validate=True)
        key = keys.read_public_key(self.key.encode(), f"{self.member}: key")
        require_node_key(key, f"{self.member}: key")
        if not keys.is_signed(key, signature, self._signed_content()):
            raise ConfigError(f"{self.member} did not sign its answer: it was changed on its way")

    def sign(self, key: keys.SigningKey) -> Answer:
        """Return the answer with a signature made with ``key``."""
        signature = keys.sign(key, self._signed_content())
        return self.replace(signature=base64.b64encode(signature).decode())

    def _signed_content(self) -> bytes:
        values = dict(self.to_mapping())
        del values["signature"]
        return json.dumps(values, sort_keys=True).encode()


def make_answer(invitation: Invitation, key: keys.SigningKey) -> Answer:
    """Return the answer to an invitation, signed with the member's key."""
    answer = Answer(
        **invitation.extract(Membership).model_dump(),
        certificate_fingerprint=certificate_fingerprint(invitation.certificate),
        key=public_line(key, invitation.member),
    )
    return answer.sign(key)


def make_node_key() -> bytes:
    """Return a new private key on the curve P-384 in OpenSSH's format, as SuperNodes need it."""
    key = ec.generate_private_key(ec.SECP384R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def require_node_key(key: keys.VerifyingKey, name: str) -> None:
    """Raise ConfigError unless Flower lets SuperNodes in with a key of this kind: ECDSA.

    Error messages call the key ``name``.
    """
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{name} is an Ed25519 key; a SuperNode's is of P-256, P-384 or P-521")


def public_line(key: keys.SigningKey, comment: str) -> str:
    """Return a key's public half as a line in OpenSSH's format, which ends with ``comment``."""
    public_key = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return f"{public_key.decode()} {comment}"


def key_fingerprint(public: str) -> str:
    """Return the fingerprint of a public key, given as a line in OpenSSH's format."""
    return keys.fingerprint(keys.read_public_key(public.encode(), "key"))
