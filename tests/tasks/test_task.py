from __future__ import annotations

import pytest
import torch
from torch import nn

from fedif_flower.attacks import Behaviour
from fedif_flower.attacks.adversarial import AdversarialSamples
from fedif_flower.attacks.gradient_noise import GradientNoise
from fedif_flower.attacks.label_noise import LabelNoise
from fedif_flower.client.reply import poisoned_data
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.tasks.task import Metric, Site, Task


def task(**changes) -> Task:
    functions = dict.fromkeys(("client_data", "validation_data", "test_data"), lambda site: [])
    return Task(**{"name": "t", "model": lambda: nn.Linear(1, 2), **functions, **changes})


def test_the_run_s_seed_decides_what_a_task_draws_and_the_process_s_state_stays():
    drawing = task(test_data=lambda site: torch.rand(3))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (drawing.load("test_data", Site(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    weights = [drawing.build_model(seed).weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_attacks_see_inputs_in_the_unit_range_and_models_what_they_take():
    scaled = task(input_range=(-1.0, 3.0), transform=lambda inputs: 10 * inputs)
    inputs = torch.tensor([-1.0, 0.0, 3.0])
    unit, to_model = scaled.in_unit_range(inputs)
    assert unit.tolist() == [0.0, 0.25, 1.0]
    assert to_model(unit).tolist() == [-10.0, 0.0, 30.0]
    pair = inputs[:, None], torch.zeros(3)
    assert scaled.transformed(pair)[0].flatten().tolist() == [-10.0, 0.0, 30.0]
    plain, unchanged = task().in_unit_range(inputs)
    assert plain is inputs
    assert unchanged(inputs) is inputs


def test_a_transform_needs_tensors():
    with pytest.raises(DataError, match="task 't': transform takes tensors of inputs; the data"):
        task(transform=torch.neg).transformed([1, 2])


def test_names_of_metrics_make_columns():
    assert Metric("Mean absolute-error", max).key == "mean_absolute_error"
    for name in ("", "a,b", "accuracy", "Score"):
        with pytest.raises(ConfigError, match="allowed: letters, digits and spaces"):
            Metric(name, max)


def test_attacks_say_what_they_need():
    plain, full = task(), task(num_classes=3, input_range=(0.0, 1.0))
    assert LabelNoise(0.5).misfit(plain) == "class labels (num_classes)"
    assert "input_range" in AdversarialSamples(0.5).misfit(task(num_classes=3))
    for acting in (Behaviour(), GradientNoise(0.1)):
        assert acting.misfit(plain) == ""
        assert not acting.needs_tensors
    for acting in (LabelNoise(0.5), AdversarialSamples(0.5)):
        assert acting.misfit(full) == ""
        assert acting.needs_tensors


def test_an_attack_on_labels_needs_them_as_tensors_and_one_on_data_takes_any():
    class Backwards(Behaviour):
        def poison_data(self, data, generator):
            return data[::-1]

    ids = (0, 0), 1
    model = nn.Linear(1, 2)
    assert poisoned_data(task(), model, [1, 2], Backwards(), *ids) == [2, 1]
    with pytest.raises(DataError, match=r"LabelNoise changes tensors .* of task 't' are list"):
        poisoned_data(task(num_classes=2), model, [1, 2], LabelNoise(0.5), *ids)
