"""What records and pages say of weight scores is what the strategy does."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import nn

from fedif_flower import (
    AFedSV,
    FedAvg,
    FedIF,
    FedSV,
    FLTrust,
    InfluenceDescent,
    LeaveOneOut,
    SFedAvg,
    ShapFed,
    Validation,
)
from fedif_flower.strategies.weight_scores import WeightScores
from fedif_flower.valuation.score_guard import ScoreGuard

ROWS, LABELS = torch.eye(2), torch.tensor([0, 1])


def validation() -> Validation:
    return Validation(nn.Linear(2, 2), ROWS, LABELS, device="cpu")


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: FedIF(validation(), gamma=0.4), WeightScores(0.4, 0.0, False, True)),
        (lambda: FedIF(validation(), smooth_update=False), WeightScores(1.0, 0.0, False, True)),
        (
            lambda: FedIF(validation(), round_normalization=False),
            WeightScores(0.3, 0.0, False, False),
        ),
        (lambda: FedIF(validation(), bias_correction=True), WeightScores(0.3, 0.0, True, True)),
        (
            lambda: FedIF(validation(), guard=ScoreGuard(anchored=True)),
            WeightScores(0.3, 0.0, False, False),
        ),
        (lambda: AFedSV(validation(), gamma=0.2), WeightScores(0.2, 0.5, False, True)),
        (lambda: FedSV(validation()), WeightScores(1.0, 0.0, False, True)),
        (lambda: LeaveOneOut(validation(), gamma=0.2), WeightScores(0.2, 0.0, False, True)),
        (lambda: SFedAvg(validation()), WeightScores(0.25, 0.0, False, False)),
        (lambda: ShapFed(nn.Linear(2, 2)), WeightScores(0.5, 0.0, False, False)),
        (lambda: InfluenceDescent(validation(), gamma=0.1), WeightScores(0.1, 1.0, False, False)),
        (FedAvg, None),
        (lambda: FLTrust(nn.Linear(2, 2), ROWS, LABELS), None),
    ],
)
def test_a_strategy_tells_how_its_scores_come_about(build, expected):
    assert build().weight_scores == expected


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (WeightScores(0.3, 0.0, False, True), "begins at 0, .* by gamma = 0.3 .* two members"),
        (WeightScores(0.3, 0.5, False, False), r"begins at 0.5, .* was sent\.$"),
        (WeightScores(0.25, 1 / 7, False, False), "begins at 0.143, "),
        (WeightScores(0.3, 0.0, True, False), r"is the mean .* \(gamma = 0.3\)\.$"),
        (WeightScores(1.0, 0.5, False, True), "^It is that of the round alone.* two members"),
    ],
)
def test_words(scores, words):
    assert re.search(words, scores.words())
    assert ("two members" in scores.words()) == scores.min_max


def test_a_record_gives_the_same_again():
    scores = WeightScores(0.3, 0.5, True, False)
    assert WeightScores.from_record(json.loads(json.dumps(scores.to_record()))) == scores
    assert WeightScores.from_record(None) is None
    for wrong in ({"gamma": 0.3}, {**scores.to_record(), "gamma": "a"}, {"more": 1}):
        with pytest.raises((TypeError, ValueError)):
            WeightScores.from_record(wrong)
