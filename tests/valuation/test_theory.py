"""Theorem 1 (bounded one-step loss change) on a problem whose L and beta are known.

Client i's objective is F_i(w) = 1/2 (w - c_i)' A (w - c_i), so that its gradient A (w - c_i) is
L-Lipschitz with L the largest eigenvalue of A, and its dissimilarity from the mean objective,
A (c - c_i) with c the weighted mean of the c_i, is the same everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedif_flower.valuation.influence import round_influence
from fedif_flower.valuation.ledger import ScoreLedger, min_max

CLIENTS, NOISY, SIZE = 10, 5, 20


@dataclass(frozen=True)
class Problem:
    hessian: Tensor  # [d, d]
    centres: Tensor  # [m, d]
    noise: Tensor  # [m, d], zero for honest clients
    start: Tensor  # [d]
    step: float

    @property
    def smoothness(self) -> float:
        return float(torch.linalg.eigvalsh(self.hessian).max())

    def gradients(self) -> Tensor:
        return (self.start - self.centres) @ self.hessian  # [m, d]

    def client_models(self) -> Tensor:
        return self.start - self.step * (self.gradients() + self.noise)  # [m, d]

    def loss(self, params: Tensor, weights: Tensor) -> float:
        away = params - self.centres  # [m, d]
        return float(weights @ (0.5 * ((away @ self.hessian) * away).sum(dim=1)))

    def noise_term(self, weights: Tensor) -> float:
        return float(weights @ self.noise.square().sum(dim=1))


def problem(seed: int, noise: float, step: float) -> Problem:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    root = normal(SIZE, SIZE) / math.sqrt(SIZE)
    noisy = torch.zeros(CLIENTS, 1, dtype=torch.float64)
    noisy[:NOISY] = noise
    return Problem(
        hessian=root @ root.T,
        centres=0.3 * normal(CLIENTS, SIZE),
        noise=noisy * normal(CLIENTS, SIZE),
        start=2 * normal(SIZE),
        step=step,
    )


def fedavg_weights(_: Problem) -> Tensor:
    return torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64)


def fedif_weights(given_problem: Problem) -> Tensor:
    """First round: influence on the mean objective, min-max, smoothing, weights."""
    validation_gradient = given_problem.gradients().mean(dim=0)  # [d]
    influence = round_influence(
        given_problem.start, given_problem.client_models(), validation_gradient
    )
    ledger = ScoreLedger(gamma=0.3)
    ledger.update(range(CLIENTS), min_max(influence))
    return ledger.weights(range(CLIENTS)).to(torch.float64)


@pytest.mark.parametrize("weigh", [fedavg_weights, fedif_weights])
@given(seed=st.integers(0, 2**31), noise=st.floats(0.0, 10.0), step=st.floats(1e-4, 1.0))
def test_the_loss_changes_by_no_more_than_the_bound(weigh, seed, noise, step):
    given_problem = problem(seed, noise, step)
    weights = weigh(given_problem)
    assert float(weights.sum()) == pytest.approx(1)
    # Lemma 1 takes F to be the mean of the clients' objectives under the weights themselves.
    gradients = given_problem.gradients()  # [m, d]
    gradient = weights @ gradients  # [d]
    beta_squared = float(weights @ (gradients - gradient).square().sum(dim=1))
    aggregated = weights @ given_problem.client_models()  # [d]
    before = given_problem.loss(given_problem.start, weights)
    after = given_problem.loss(aggregated, weights)
    slope = float(gradient.square().sum())
    factor = step**2 * (given_problem.smoothness + 1)
    bound = before + slope / 2
    bound += factor * (slope + beta_squared + given_problem.noise_term(weights))
    assert after <= bound + 1e-9 * abs(bound)


@pytest.mark.parametrize("noise", [2.0, 10.0])
@given(seed=st.integers(0, 2**31))
def test_fedif_s_noise_term_is_the_smaller(noise, seed):
    given_problem = problem(seed, noise, step=0.01)
    fedif = given_problem.noise_term(fedif_weights(given_problem))
    fedavg = given_problem.noise_term(fedavg_weights(given_problem))
    assert fedif < 0.9 * fedavg
