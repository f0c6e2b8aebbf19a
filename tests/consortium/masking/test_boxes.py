from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedif_consortium.evidence.keys import key_digest
from fedif_consortium.masking import boxes, ring
from fedif_consortium.masking.boxes import (
    BoxHeader,
    MaskingTerms,
    mask_update,
    open_box,
    read_header,
)
from fedif_flower.errors import MaskingError, ReplyError

SEED = bytes(range(32))
HEADER = 164  # Its bytes.
KEEPER = X25519PrivateKey.generate()
KEYS = {
    "P-256": ec.generate_private_key(ec.SECP256R1()),
    "P-384, as SuperNodes have it": ec.generate_private_key(ec.SECP384R1()),
    "P-521": ec.generate_private_key(ec.SECP521R1()),
    "Ed25519": Ed25519PrivateKey.generate(),
}
KEY, OTHER = KEYS["Ed25519"], KEYS["P-256"]


def header_of(key, server_round: int = 3) -> BoxHeader:
    signer = key_digest(key.public_key())
    return BoxHeader(2**64 - 1, server_round, 2**63, 10, SEED, bytes(32), bytes(32), signer)


def box_of(key, signer=None, **header) -> bytes:
    return boxes.seal(header_of(key, **header), SEED, KEEPER.public_key(), signer or key)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_the_keeper_alone_opens_a_box_and_anyone_reads_its_header(key):
    box = box_of(key)
    assert len(box) <= boxes.MOST_BYTES
    assert SEED not in box[HEADER:]
    assert read_header(box) == header_of(key)
    assert open_box(box, key.public_key(), KEEPER) == SEED
    with pytest.raises(ReplyError, match="not sealed for this keeper"):
        open_box(box, key.public_key(), X25519PrivateKey.generate())


def test_every_changed_bit_is_noticed():
    box = box_of(KEY)
    for place in range(len(box)):
        changed = bytearray(box)
        changed[place] ^= 1
        with pytest.raises(ReplyError):
            open_box(bytes(changed), KEY.public_key(), KEEPER)


def resigned(content: bytes) -> bytes:
    return content + KEY.sign(content)


@pytest.mark.parametrize(
    ("box", "member", "reason"),
    [
        (box_of(KEY), OTHER, "not signed by the member"),
        # Signed by one, in the name of the other.
        (box_of(KEY, signer=OTHER), KEY, "not signed by the member"),
        # A seed under another header, and a point of low order.
        (resigned(box_of(KEY, server_round=4)[:HEADER] + box_of(KEY)[HEADER:-64]), KEY, "sealed"),
        (resigned(box_of(KEY)[:HEADER] + bytes(32) + box_of(KEY)[HEADER + 32 : -64]), KEY, "seal"),
        (bytes(400), KEY, "400 bytes are no box of this version"),
    ],
    # The boxes themselves differ from process to process.
    ids=["another member's", "for another", "another header", "a low order", "no box"],
)
def test_what_is_no_box_of_this_member_for_this_keeper_is_refused(box, member, reason):
    with pytest.raises(ReplyError, match=reason):
        open_box(box, member.public_key(), KEEPER)


def test_an_update_is_the_vector_less_the_mask_of_the_seed_in_the_box():
    terms = MaskingTerms(run=5, server_round=3, keys=[])
    model = bytes(range(32))
    sent = mask_update(np.full(4, 0.5), KEEPER.public_key(), KEY, terms, 77, SEED, model)
    signer, digest = key_digest(KEY.public_key()), ring.digest(sent.vector)
    assert read_header(sent.box) == (5, 3, 77, 4, digest, SEED, model, signer)
    mask = ring.mask_of(open_box(sent.box, KEY.public_key(), KEEPER), 4)
    assert ring.decode(sent.vector - mask, ring.UPDATE_BITS).tolist() == [0.5] * 4
    assert sent.length == 1.0


@pytest.mark.parametrize("value", [float("nan"), 3e20, 1024.0])
def test_an_update_that_no_mask_fits_is_an_error_that_tells_nothing_of_it(value):
    with pytest.raises(MaskingError, match=r"^the update is not finite, or not shorter than 1024$"):
        mask_update(np.array([value]), KEEPER.public_key(), KEY, MaskingTerms(run=1, keys=[]), 1)
