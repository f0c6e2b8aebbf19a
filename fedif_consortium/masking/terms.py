"""What the server tells members of a masked run: whose mask it is, and how long updates may be."""

from __future__ import annotations

import hashlib
import math

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord
from pydantic import BaseModel, ConfigDict

from fedif_flower.errors import ConfigError

TERMS_KEY = "masking"
VECTOR = "masked-update"  # The one array of a masked reply, uint64 [d].
MASK_RECORD, BOX, LENGTH = "mask", "box", "length"  # The record beside it, and what is in it.


class MaskingTerms(BaseModel):
    """How a round's updates are masked.

    Attributes
    ----------
    run : int
        The run as the keeper knows it, drawn anew for each process of a run.
    keys : list of str
        The trained parameters, in the order of the vector [d].
    max_length : float
        Longer updates are shortened to it; infinite: none is.
    trial_keeper, trial_secret : str
        Of a trial run, in hex: the keeper's public key, and what members' keys are made of. Empty
        where there is a keeper, whose key is in each member's own node config.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
    run: int
    keys: list[str]
    max_length: float = math.inf
    trial_keeper: str = ""
    trial_secret: str = ""

    @property
    def is_trial(self) -> bool:
        """Whether the keeper runs beside the server."""
        return bool(self.trial_keeper)

    def write(self, config: ConfigRecord) -> None:
        """Add it to what the server sends."""
        config[TERMS_KEY] = self.model_dump_json()

    @classmethod
    def read(cls, config: ConfigRecord) -> MaskingTerms | None:
        """Return what the server sent; ``None``: updates are not masked.

        Raises
        ------
        ConfigError
            If it is something else.
        """
        if TERMS_KEY not in config:
            return None
        try:
            return cls.model_validate_json(str(config[TERMS_KEY]))
        except ValueError as error:
            raise ConfigError(f"{TERMS_KEY}: the server's terms cannot be read: {error}") from error


def trial_key(secret: str, node_id: int) -> Ed25519PrivateKey:
    """Return the key that a member of a trial run signs with, made of the run's secret."""
    seed = hashlib.sha256(f"{secret} {node_id}".encode()).digest()
    return Ed25519PrivateKey.from_private_bytes(seed)
