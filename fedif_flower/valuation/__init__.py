"""Valuations: what a client's update is worth to the global model. Pure maths, without Flower."""

from fedif_flower.valuation.influence import InfluenceValuation, round_influence
from fedif_flower.valuation.ledger import Scores, Valuation
from fedif_flower.valuation.validation import Evaluation, Validation

__all__ = [
    "Evaluation",
    "InfluenceValuation",
    "Scores",
    "Validation",
    "Valuation",
    "round_influence",
]
