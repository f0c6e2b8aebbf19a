from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedif_consortium.masking import LONGEST, UPDATE_BITS, decode, mask_update, read_header
from fedif_consortium.masking.boxes import open_box, vector_digest
from fedif_consortium.masking.masks import mask_blocks
from fedif_flower.errors import MaskingError

KEEPER, KEY = X25519PrivateKey.generate(), Ed25519PrivateKey.generate()
BOUND = {"run": 1, "server_round": 2, "node": 3}


def test_the_seed_in_the_box_takes_the_mask_off():
    update = np.array([0.5, -0.25, 2.0], np.float32)
    masked = mask_update(update, KEEPER.public_key(), KEY, **BOUND)
    header = read_header(masked.box)
    assert (header.run, header.server_round, header.node, header.length) == (1, 2, 3, 3)
    assert header.digest == vector_digest(masked.vector)
    (mask,) = mask_blocks(open_box(masked.box, KEEPER), 3)
    assert decode(masked.vector - mask, UPDATE_BITS).tolist() == update.tolist()
    assert masked.length == pytest.approx(np.sqrt(0.25 + 0.0625 + 4))


STAYS = "the update is not finite, or not shorter than 1024"  # Of it, nothing: the server reads it.


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e9, -LONGEST])
def test_an_update_that_does_not_fit_stays_at_home(value):
    with pytest.raises(MaskingError, match=STAYS):
        mask_update(np.array([1.0, value]), KEEPER.public_key(), KEY, **BOUND)
