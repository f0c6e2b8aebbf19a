"""What a member and the operator send to each other before the first connection: two files.

The invitation says where the server is and how to know it. The answer has the member's public key,
signed by its private half together with the fingerprint of the certificate that the member was
given. Both hold no secret, and both are worth comparing aloud: whoever can change them on their
way could take either's place.
"""

from __future__ import annotations

import base64
import json

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fedif_consortium.evidence.keys import (
    SigningKey,
    fingerprint,
    is_signed,
    read_public_key,
    sign,
)
from fedif_consortium.federation.certificates import certificate_fingerprint
from fedif_consortium.federation.files import a_keeper_key, a_name, an_address
from fedif_flower.errors import ConfigError
from fedif_flower.settings import Settings, setting


class Invitation(Settings):
    """What a member has to know to join."""

    federation: str = a_name("The federation's name.")
    member: str = a_name("What it calls this member.")
    number: int = setting(..., "The member's own number (`partition-id`).", ge=0)
    address: str = an_address("Where members reach the server.")
    statement_key: str = setting(..., "Fingerprint of the key that signs statements.")
    keeper_key: str = a_keeper_key("The keeper's public key, to compare with its operator.")
    certificate: str = setting(..., "Of the federation's authority, in PEM.")


class Answer(Settings):
    """A member's public key, on its way to the operator."""

    federation: str = a_name("The federation's name.")
    member: str = a_name("The member's name there.")
    number: int = setting(..., "The member's number.", ge=0)
    certificate_fingerprint: str = setting(..., "Of the certificate that the member was given.")
    key: str = setting(..., "The member's public key, in a line as OpenSSH writes it.")
    signature: str = setting("", "Of all the above by the member's key, in base64.")

    def check(self) -> None:
        """Raise ConfigError unless the key signed this."""
        try:
            signature = base64.b64decode(self.signature, validate=True)
        except ValueError as error:
            raise ConfigError("signature is no base64") from error
        if not is_signed(read_public_key(self.key.encode(), "key"), signature, self._signed()):
            raise ConfigError("signature is not that of key: the answer was changed on its way")

    def _signed(self) -> bytes:
        values = {k: v for k, v in self.to_mapping().items() if k != "signature"}
        return json.dumps(values, sort_keys=True).encode()


def make_answer(invitation: Invitation, key: SigningKey) -> Answer:
    """Return the answer to an invitation, signed."""
    answer = Answer(
        federation=invitation.federation,
        member=invitation.member,
        number=invitation.number,
        certificate_fingerprint=certificate_fingerprint(invitation.certificate),
        key=public_line(key, invitation.member),
    )
    return answer.replace(signature=base64.b64encode(sign(key, answer._signed())).decode())


def make_node_key() -> bytes:
    """Return a new private key of the curve P-384 in OpenSSH's format, as SuperNodes need it."""
    key = ec.generate_private_key(ec.SECP384R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def public_line(key: SigningKey, comment: str) -> str:
    """Return a key's public half in a line, as OpenSSH writes it."""
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return f"{public.decode()} {comment}"


def key_fingerprint(public: str) -> str:
    """Return what people compare of a public key in a line, as OpenSSH writes it."""
    return fingerprint(read_public_key(public.encode(), "key"))
