"""Theorem 1 (bounded one-step loss change) on a problem whose L and beta are known.

Client i's objective is F_i(w) = 1/2 (w - c_i)' A (w - c_i), so that its gradient A (w - c_i) is
L-Lipschitz with L the largest eigenvalue of A, and its dissimilarity from the mean objective,
A (c - c_i) with c the weighted mean of the c_i, is the same everywhere.
"""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedif_flower.valuation.influence import round_influence
from fedif_flower.valuation.ledger import ScoreLedger, min_max

CLIENTS, NOISY, SIZE = 10, 5, 20


@given(seed=st.integers(0, 2**31), noise=st.floats(0.0, 10.0), step=st.floats(1e-4, 1.0))
def test_the_loss_changes_by_no_more_than_the_bound_and_fedif_s_noise_term_is_the_smaller(
    seed, noise, step
):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    root = normal(SIZE, SIZE) / math.sqrt(SIZE)
    hessian, centres, start = root @ root.T, 0.3 * normal(CLIENTS, SIZE), 2 * normal(SIZE)
    noises = noise * normal(CLIENTS, SIZE)  # [m, d], zero for honest clients
    noises[NOISY:] = 0
    gradients = (start - centres) @ hessian  # [m, d]
    models = start - step * (gradients + noises)  # [m, d]
    even = torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64)
    ledger = ScoreLedger(gamma=0.3)  # The first round: influence, min-max, smoothing, weights.
    ledger.update(range(CLIENTS), min_max(round_influence(start, models, gradients.mean(dim=0))))
    fedif = ledger.weights(range(CLIENTS))
    terms = []
    for weights in (even, fedif):
        # Lemma 1 takes F to be the mean of the clients' objectives under the weights themselves.
        def loss(params: Tensor, weights: Tensor = weights) -> float:
            away = params - centres  # [m, d]
            return float(weights @ (0.5 * ((away @ hessian) * away).sum(dim=1)))

        gradient = weights @ gradients  # [d]
        beta_squared = float(weights @ (gradients - gradient).square().sum(dim=1))
        slope = float(gradient.square().sum())
        terms.append(float(weights @ noises.square().sum(dim=1)))
        factor = step**2 * (float(torch.linalg.eigvalsh(hessian).max()) + 1)
        bound = loss(start) + slope / 2 + factor * (slope + beta_squared + terms[-1])
        assert loss(weights @ models) <= bound + 1e-9 * abs(bound)
    if noise > 2:
        assert terms[1] < 0.9 * terms[0]
