"""Scores and sums of updates that nobody sees: a ring, masks, sketches, and the keeper of masks.

A member adds a random mask to its update and sends the sum to the server; the mask's seed goes to a
*keeper*, sealed. What is linear in an update can then be computed on both halves and put together:
influences, contributions, the step, and sketches that tell lengths. See
``docs/methods/masked-rounds.md`` for the protocol and what each party learns.
"""

from fedif_consortium.masking.boxes import BoxHeader, KeeperKey, read_header, read_keeper_key
from fedif_consortium.masking.checks import (
    are_lengths_true,
    are_possible,
    check_step,
    check_sum,
    length_tolerance,
)
from fedif_consortium.masking.interface import MaskKeeper, OpenedRound, Sketches
from fedif_consortium.masking.keeper import Keeper
from fedif_consortium.masking.member import MaskedUpdate, mask_update
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.products import (
    decode_products,
    decode_step,
    encode_vectors,
    encode_weights,
    products,
)
from fedif_consortium.masking.ring import LONGEST, UPDATE_BITS, Ring, decode, encode
from fedif_consortium.masking.sketches import SignSketch, estimated_lengths

__all__ = [
    "LONGEST",
    "UPDATE_BITS",
    "BoxHeader",
    "Keeper",
    "KeeperKey",
    "KeeperPolicy",
    "MaskKeeper",
    "MaskedUpdate",
    "OpenedRound",
    "Ring",
    "SignSketch",
    "Sketches",
    "are_lengths_true",
    "are_possible",
    "check_step",
    "check_sum",
    "decode",
    "decode_products",
    "decode_step",
    "encode",
    "encode_vectors",
    "encode_weights",
    "estimated_lengths",
    "length_tolerance",
    "mask_update",
    "products",
    "read_header",
    "read_keeper_key",
]
