"""What records and pages say of weight scores is what the strategy does."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from fedif_flower import (
    AFedSV,
    FedAvg,
    FedIF,
    InfluenceDescent,
    SFedAvg,
    ShapFed,
    Validation,
)
from fedif_flower.strategies import Weighting
from fedif_flower.strategies.scoring import Scoring

ROWS, LABELS = torch.eye(2), torch.tensor([0, 1])


def validation() -> Validation:
    return Validation(nn.Linear(2, 2), ROWS, LABELS, device="cpu")


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: FedIF(validation(), gamma=0.4), Scoring(0.4, 0.0, False, True)),
        (
            lambda: FedIF(validation(), weighting=Weighting(smooth_update=False)),
            Scoring(1.0, 0.0, False, True),
        ),
        (
            lambda: FedIF(
                validation(), weighting=Weighting(round_normalization=False, bias_correction=True)
            ),
            Scoring(0.3, 0.0, True, False),
        ),
        (lambda: AFedSV(validation(), gamma=0.2), Scoring(0.2, 0.5, False, True)),
        (lambda: SFedAvg(validation()), Scoring(0.25, 0.0, False, False)),
        (lambda: ShapFed(nn.Linear(2, 2)), Scoring(0.5, 0.0, False, False)),
        (lambda: InfluenceDescent(validation(), gamma=0.1), Scoring(0.1, 1.0, False, False)),
        (FedAvg, None),
    ],
)
def test_a_strategy_tells_how_its_scores_come_about(build, expected):
    assert build().scoring == expected


def test_a_record_gives_the_same_again():
    scores = Scoring(0.3, 0.5, True, False)
    assert Scoring.from_record(json.loads(json.dumps(scores.to_record()))) == scores
    assert Scoring.from_record(None) is None
    for wrong in ({"gamma": 0.3}, {**scores.to_record(), "gamma": "a"}, {"more": 1}):
        with pytest.raises((TypeError, ValueError)):
            Scoring.from_record(wrong)
