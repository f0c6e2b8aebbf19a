"""A predicted step: quadratic models, whose steps change with the model as a matrix says."""

from __future__ import annotations

import pytest
import torch

from fedif_flower.attacks import ClientRound
from fedif_studies.attacks.predicted_step import PredictedStep, curvature_product


def sent(acting: PredictedStep, models: list[list[float]], every: int = 1) -> list[torch.Tensor]:
    """Return the update of each round; the honest one is (5, 5)."""
    memory: dict[str, torch.Tensor] = {}
    found = []
    for index, model in enumerate(models):
        received = torch.tensor(model)
        own = ClientRound(
            received=received,
            trained=received + 5.0,
            server_round=1 + every * index,
            generator=torch.Generator(),
            memory=memory,
        )
        found.append(acting.poison_update(own) - received)
    return found


def test_it_is_honest_until_two_steps_are_known():
    first, second, _ = sent(PredictedStep(), [[0.0, 0.0], [8.0, 0.0], [12.0, 0.0]])
    assert first.tolist() == second.tolist() == [5.0, 5.0]


@pytest.mark.parametrize(("factor", "every"), [(1.0, 1), (3.0, 1), (1.0, 2)])
def test_a_step_that_halves_each_time_is_predicted_to_halve_again(factor, every):
    # w <- w + (16 - w) / 2: steps 8, 4, and 2 is next; between two rounds half of a move each.
    _, _, third = sent(PredictedStep(factor), [[0.0, 0.0], [8.0, 0.0], [12.0, 0.0]], every)
    assert third.tolist() == pytest.approx([factor * 2.0 / every, 0.0])


def test_it_is_no_longer_than_the_last_step():
    # Steps 1 and 3: with it growing, 9 would be next.
    _, _, third = sent(PredictedStep(), [[0.0, 0.0], [1.0, 0.0], [4.0, 0.0]])
    assert third.tolist() == pytest.approx([3.0, 0.0])


def test_a_federation_that_stands_still_is_answered_by_nothing():
    *_, last = sent(PredictedStep(), [[1.0, 2.0]] * 4)
    assert last.tolist() == [0.0, 0.0]


def test_it_remembers_no_more_than_it_needs():
    memory: dict[str, torch.Tensor] = {}
    for server_round in range(1, 9):
        received = torch.tensor([float(server_round), 0.0])
        own = ClientRound(received, received + 1.0, server_round, torch.Generator(), memory)
        PredictedStep(window=2).poison_update(own)
    assert memory["models"].tolist() == [[5.0, 0.0], [6.0, 0.0], [7.0, 0.0], [8.0, 0.0]]


def test_the_curvature_of_a_quadratic_is_found_along_the_last_move():
    curvature = torch.tensor(
        [[3.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64
    )
    moves = torch.tensor([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0]], dtype=torch.float64)
    changes = moves @ curvature
    found = curvature_product(moves, changes, moves[-1])
    torch.testing.assert_close(found, changes[-1])
