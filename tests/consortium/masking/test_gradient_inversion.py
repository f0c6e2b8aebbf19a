"""What can be read of a member's image: all of it in a plain update, none of it in a masked one.

A linear model that takes one step on one image is the worst case: a row of the update of its
weights, over the update of its bias, is the image itself (Phong et al., 2018).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import UPDATE_BITS, SignSketch, decode
from tests.consortium.masking.parties import Parties

IMAGES = torch.from_numpy(load_digits().data.astype(np.float32) / 16 + 0.1)  # [n, 64]
DIGITS = torch.from_numpy(load_digits().target)
CENTRED = (IMAGES - IMAGES.mean(dim=0)).numpy()
PLACES = range(1, 700, 37)  # Of the images, one for each member.
D = 64 * 10 + 10


def gradient(*places: int) -> np.ndarray:
    """Return the first model's gradient [d] at these images."""
    torch.manual_seed(0)
    model, of = nn.Linear(64, 10), list(places)
    functional.cross_entropy(model(IMAGES[of]), DIGITS[of]).backward()
    return nn.utils.parameters_to_vector([p.grad for p in model.parameters()]).numpy()


UPDATES = {place: -0.1 * gradient(place) for place in PLACES}


def inverted(update: np.ndarray) -> np.ndarray:
    """Return the image that an update [d] shows: of the class that it changes most."""
    weights, bias = update[:640].reshape(10, 64), update[640:]
    row = int(np.abs(bias).argmax())
    return weights[row] / (bias[row] or 1.0)


def rank(found: np.ndarray, place: int) -> int:
    """Return how many of all images are more like what was found than the true one is."""
    own = found - IMAGES.mean(dim=0).numpy()
    alike = CENTRED @ own / (np.linalg.norm(CENTRED, axis=1) * np.linalg.norm(own) + 1e-12)
    return int((alike > alike[place] + 1e-6).sum())


def test_a_plain_update_is_the_image():
    for place, update in UPDATES.items():
        found = inverted(update)
        assert found == pytest.approx(IMAGES[place].numpy(), abs=1e-3)
        assert rank(found, place) == 0


def test_a_masked_update_is_noise():
    masked = {place: Parties(1).mask(0, update).vector for place, update in UPDATES.items()}
    ranks = [rank(inverted(decode(vector, UPDATE_BITS)), p) for p, vector in masked.items()]
    # Of 1,797 images; by chance the median is near 900.
    assert np.median(ranks) > 100


def test_products_and_sketches_do_not_show_the_image_either():
    """The update of least length that has all products and sums that the server knows."""
    size = KeeperPolicy().sketch_for(D)
    sketch = SignSketch(bytes(32), size, D)  # Of a seed that is drawn otherwise.
    rows = np.array([decode(sketch.of(e), 0) for e in np.eye(D, dtype=np.uint64)]).T  # [k, d]
    known = np.concatenate([rows, [gradient(*range(900, 1000))]])
    fitted = np.linalg.pinv(known) @ known
    ranks = [rank(inverted(fitted @ update), place) for place, update in UPDATES.items()]
    assert size == D // 16
    assert np.median(ranks) > 100


def test_the_sum_of_single_images_still_shows_some():
    """What masks do not give: the aggregate speaks. Members need more than one image each."""
    step = sum(UPDATES.values())
    shown = step[:640].reshape(10, 64) / step[640:, None]  # [10, 64]
    assert any(rank(image, place) == 0 for image in shown for place in PLACES)
