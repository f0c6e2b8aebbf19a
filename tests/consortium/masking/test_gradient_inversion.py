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

from fedif_consortium.masking.boxes import VECTOR
from fedif_consortium.masking.keeper import TRIAL_POLICY
from fedif_consortium.masking.ring import UPDATE_BITS, SignSketch, decode
from fedif_flower import FedIF, Validation
from fedif_flower.strategies.callbacks import Callback
from tests.consortium.masking import masked
from tests.consortium.masking.masked import Members, play

IMAGES = load_digits().data.astype(np.float32) / 16 + 0.1  # [n, 64]
DIGITS = load_digits().target
CENTRED = IMAGES - IMAGES.mean(axis=0)
MEMBERS = 20
D = 64 * 10 + 10


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 10)


class OneImage(Members):
    """Member p takes one step of gradient descent on image 37 p + round."""

    def update_of(self, server_round: int, partition_id: int, received) -> np.ndarray:
        own = model()
        own.load_state_dict({k: torch.from_numpy(a.numpy().copy()) for k, a in received.items()})
        place = 37 * partition_id + 1
        loss = functional.cross_entropy(
            own(torch.from_numpy(IMAGES[place : place + 1])),
            torch.from_numpy(DIGITS[place : place + 1]),
        )
        loss.backward()
        step = nn.utils.parameters_to_vector([p.grad for p in own.parameters()])
        return -0.1 * step.numpy()


def inverted(update: np.ndarray) -> np.ndarray:
    """Return the image that an update [d] shows: of the class that it changes most."""
    weights, bias = update[:640].reshape(10, 64), update[640:]
    row = int(np.abs(bias).argmax())
    return weights[row] / (bias[row] or 1.0)


def rank(found: np.ndarray, place: int) -> int:
    """Return how many of all images are more like what was found than the true one is."""
    own = found - IMAGES.mean(axis=0)
    alike = CENTRED @ own / (np.linalg.norm(CENTRED, axis=1) * np.linalg.norm(own) + 1e-12)
    return int((alike > alike[place] + 1e-6).sum())


class Holding(Callback):
    """Remembers what the server holds of each member's update after a round."""

    def needs_sight(self, strategy) -> str:
        return ""

    def on_step(self, step) -> None:
        self.plain = step.updates.client_updates.clone()
        self.step = (step.after.params - step.before.params).numpy()


@pytest.fixture(scope="module")
def sent():
    """The members of a plain and of a masked round, and what the server held."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masked, "model", model)
        found = {}
        for is_masked in (False, True):
            judged = Validation(
                model(), torch.from_numpy(IMAGES[900:1000]), torch.from_numpy(DIGITS[900:1000])
            )
            members, holding = OneImage(), Holding()
            play(
                lambda judged=judged, **base: FedIF(judged, stages=(), **base),
                members,
                is_masked=is_masked,
                rounds=1,
                num_members=MEMBERS,
                callbacks=[holding],
            )
            holding.gradient = judged.gradient(
                nn.utils.parameters_to_vector(model().parameters()).detach(), {}
            ).numpy()
            found[is_masked] = members, holding
    return found


def places() -> list[int]:
    return [37 * p + 1 for p in range(MEMBERS)]


def test_a_plain_update_is_the_image(sent):
    _, holding = sent[False]
    for place, update in zip(places(), holding.plain.numpy(), strict=True):
        found = inverted(update)
        assert found == pytest.approx(IMAGES[place], abs=1e-3)
        assert rank(found, place) == 0


def test_a_masked_update_is_noise(sent):
    members, _ = sent[True]
    ranks = []
    for p, place in enumerate(places()):
        vector = members.contents[p]["arrays"][VECTOR].numpy()
        ranks.append(rank(inverted(decode(vector, UPDATE_BITS)), place))
    # Of 1,797 images; by chance the median is near 900.
    assert np.median(ranks) > 100


def test_products_and_sketches_do_not_show_the_image_either(sent):
    """The update of least length that has all products and sums that the server knows."""
    members, holding = sent[True]
    size, ranks = TRIAL_POLICY.sketch_for(D), []
    sketch = SignSketch(bytes(32), size, D)  # Of a seed that is drawn otherwise.
    rows = np.array([decode(sketch.of(e), 0) for e in np.eye(D, dtype=np.uint64)]).T  # [k, d]
    known = np.concatenate([rows, [holding.gradient]])
    for p, place in enumerate(places()):
        true = members.updates[1, p].astype(np.float64)
        best = np.linalg.pinv(known) @ (known @ true)
        ranks.append(rank(inverted(best), place))
    assert size == D // 16
    assert np.median(ranks) > 100


def test_the_sum_of_single_images_still_shows_some(sent):
    """What masks do not give: the aggregate speaks. Members need more than one image each."""
    step = sent[True][1].step
    shown = step[:640].reshape(10, 64) / step[640:, None]  # [10, 64]
    assert any(rank(image, place) == 0 for image in shown for place in places())
