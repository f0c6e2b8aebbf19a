"""CRFL's stage, votes and pruning by hand; the study from one end to the other on the digits."""

import pytest
import torch
from torch import nn

from fedif_flower.run.rows import read_rows
from fedif_flower.valuation import Validation
from fedif_studies.backdoors import __main__ as backdoors
from fedif_studies.backdoors.__main__ import by, by_votes, last_features, prune, table
from fedif_studies.backdoors.crfl import CRFL


def test_the_model_is_shortened_and_has_noise_but_in_the_last_round():
    stage = CRFL(bound=1.0, std=0.1, rounds=2)
    after = torch.tensor([3.0, 4.0])
    first = stage.advance(torch.zeros(2), after)
    assert not torch.equal(first, torch.tensor([0.6, 0.8]))
    assert (first - torch.tensor([0.6, 0.8])).norm() < 1.0  # five standard deviations and more
    assert stage.advance(torch.zeros(2), after).tolist() == pytest.approx([0.6, 0.8])


def two_features() -> nn.Sequential:
    """Class 1 where the second input is 1: the second unit is the trigger's."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
        model[2].bias.copy_(torch.tensor([0.0, 0.5]))
    return model


def test_the_unit_that_no_held_out_example_excites_is_pruned():
    model = two_features()
    # The first input alone tells the classes apart.
    inputs, classes = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    triggered = torch.tensor([[1.0, 1.0]])
    assert by(model)(triggered).tolist() == [1]
    assert last_features(model) is model[0]
    assert prune(model, Validation(model, inputs, classes)) == 1
    assert by(model)(triggered).tolist() == [0]
    assert by(model)(inputs).tolist() == [0, 1]


def test_votes_of_copies_without_noise_are_the_answers():
    model, inputs = two_features(), torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    assert by_votes(model, 0.0, votes=3)(inputs).tolist() == by(model)(inputs).tolist()
    # With noise that drowns the parameters a copy answers by chance, and so do few votes.
    drowned = [by_votes(model, 100.0, votes=1, seed=seed)(inputs).tolist() for seed in range(8)]
    assert len(set(map(tuple, drowned))) > 1


@pytest.mark.all
def test_a_method_of_the_study(tmp_path, monkeypatch):
    """Two rounds: figures are shares, and what is there is not measured again."""
    monkeypatch.setattr(backdoors, "OUTPUT", tmp_path / "rows.csv")
    page = tmp_path / "page.md"
    page.write_text("<!-- begin: backdoors digits -->\n<!-- end: backdoors digits -->\n")
    monkeypatch.setattr(backdoors, "PAGE", page)
    monkeypatch.setattr(backdoors, "methods", lambda: [backdoors.PLAIN, "CRFL, noise 0.01"])
    monkeypatch.setattr(backdoors, "VOTES", 3)
    kept = backdoors.settings_of
    monkeypatch.setattr(
        backdoors, "settings_of", lambda *of: kept(*of).replace(num_server_rounds=2)
    )
    for _ in range(2):
        backdoors.main(seeds=1)
    rows = read_rows(tmp_path / "rows.csv")
    assert len(rows) == 2 * (5 + 1) + 3 * 5
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    assert [bool(row["success"]) for row in rows] == [False] * 6 + [True] * 21
    assert page.read_text().count("\n|") == len(table(rows, "digits"))
