from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedif_flower.valuation import Validation
from fedif_flower.valuation.coalitions import coalition_scores
from fedif_flower.valuation.drafts import AccuracyDraft
from fedif_flower.valuation.shapley.exact import all_coalitions

N, CLASSES = 1000, 5
GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(N, 1, 8, 8, generator=GENERATOR)
TARGETS = torch.randint(CLASSES, (N,), generator=GENERATOR)


class Counted(nn.Sequential):
    """A network that notes how many images it sees in float32, and how many in bfloat16."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.seen = {torch.float32: 0, torch.bfloat16: 0}

    def forward(self, images: Tensor) -> Tensor:
        outputs = super().forward(images)
        self.seen[outputs.dtype] += len(images)
        return outputs


def network(seed: int, scale: float = 1.0, shift: float = 0.0) -> Counted:
    torch.manual_seed(seed)
    last = nn.Linear(4 * 36, CLASSES)
    with torch.no_grad():
        last.weight.mul_(scale)
        last.bias.mul_(scale).add_(shift)
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), last)
    return Counted(*layers).eval()


def batches(size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(INPUTS.split(size), TARGETS.split(size), strict=True))


def right_in_float32(model: nn.Module) -> int:
    with torch.inference_mode():
        return int((model(INPUTS).argmax(dim=1) == TARGETS).sum())


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), scale=st.sampled_from([1e-3, 1.0, 50.0]))
def test_counts_as_float32_does_and_sees_most_images_in_bfloat16_alone(seed, scale):
    model = network(seed, scale)
    draft = AccuracyDraft.from_batches(model, batches(300))
    model.seen.clear()
    model.seen |= {torch.float32: 0, torch.bfloat16: 0}
    assert draft.count(model) == right_in_float32(model)
    assert model.seen[torch.bfloat16] == N
    # Less than half of what one pass in float32 sees, which the line above has made.
    assert 64 <= model.seen[torch.float32] - N < N / 2


def test_bfloat16_alone_would_miscount():
    """What the draft guards against happens: of 30 models some are miscounted without it."""
    wrong = 0
    for seed in range(30):
        model = network(seed)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            right = int((model(INPUTS).argmax(dim=1) == TARGETS).sum())
        wrong += right != right_in_float32(model)
    assert wrong


def test_outputs_that_bfloat16_cannot_tell_apart_are_all_seen_again():
    model = network(0, shift=1000.0)  # bfloat16 has steps of 4 there.
    draft = AccuracyDraft.from_batches(model, batches(300))
    model.seen[torch.float32] = 0
    assert draft.count(model) == right_in_float32(model)
    assert model.seen[torch.float32] - N > 0.9 * N


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_outputs_that_are_no_numbers_count_as_in_float32(value):
    model = network(0)
    with torch.no_grad():
        model[-1].bias[1] = value
    draft = AccuracyDraft.from_batches(model, batches(N))
    assert draft.count(model) == right_in_float32(model)


def test_equal_outputs_count_as_in_float32():
    model = network(0, scale=0.0)
    assert AccuracyDraft(INPUTS, TARGETS).count(model) == right_in_float32(model)


class OwnDtype(nn.Module):
    """Runs in float32 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.mm(images.flatten(1), self.weight)
        if hidden.dtype != torch.float32:
            raise TypeError("float32 alone")
        return hidden


@pytest.mark.parametrize(
    "contents",
    [
        batches(300)[:1],
        [*batches(300), (torch.ones(3, 1, 9, 9), torch.zeros(3).long())],
        [({"image": INPUTS}, TARGETS)],
        [(INPUTS, INPUTS, TARGETS)],
        [(INPUTS.double(), TARGETS)],
        [INPUTS],
    ],
    ids=["too few", "other shape", "dict", "two inputs", "float64", "no pair"],
)
def test_batches_that_allow_no_draft(contents):
    assert AccuracyDraft.from_batches(network(0), contents) is None


def test_a_model_that_bfloat16_breaks_has_no_draft():
    assert AccuracyDraft.from_batches(OwnDtype(), batches(300)) is None


@pytest.fixture
def fast_bfloat16(monkeypatch):
    """As if the processor were fast in bfloat16, and the work worth it."""
    monkeypatch.setattr("fedif_flower.valuation.validation.has_fast_bfloat16", lambda: True)
    monkeypatch.setattr("fedif_flower.valuation.replicas._WORTH_SHARING", 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_coalitions_count_as_float32_does(fast_bfloat16, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        judge = Validation(network(0), INPUTS, TARGETS, device="cpu")
        clients = torch.stack(
            [torch.nn.utils.parameters_to_vector(network(i).parameters()) for i in range(4)]
        ).detach()
        masks = all_coalitions(4)
        drafted, exact = (
            coalition_scores(judge, clients, masks, clients[0], metric="accuracy", draft=draft)
            for draft in (True, False)
        )
    finally:
        torch.set_num_threads(before)
    assert judge._draft is not None
    assert torch.equal(drafted, exact)
    assert len(set(exact.tolist())) > 4


def test_the_images_are_held_once(fast_bfloat16):
    judge = Validation(network(0), INPUTS, TARGETS, device="cpu")
    whole = judge._draft.inputs.untyped_storage().data_ptr()
    assert [batch.size for batch in judge._batches] == [100] * 10
    assert all(b.content[0].untyped_storage().data_ptr() == whole for b in judge._batches)


def test_without_the_processor_for_it_there_is_no_draft(monkeypatch):
    monkeypatch.setattr("fedif_flower.valuation.validation.has_fast_bfloat16", lambda: False)
    monkeypatch.setattr("fedif_flower.valuation.replicas._WORTH_SHARING", 0)
    judge = Validation(network(0), INPUTS, TARGETS, device="cpu")
    assert judge._draft is None
    assert judge.drafted_accuracy(judge.params()).tolist() == [right_in_float32(network(0)) / N]
