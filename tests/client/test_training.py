from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from fedif_flower.client.local_batches import BatchesAsTheyCome
from fedif_flower.client.reply import node_memory
from fedif_flower.client.training import (
    Trained,
    train_local,
    train_on,
    train_task,
)
from fedif_flower.errors import ConfigError, DataError, ValuationError
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.models import build_model
from fedif_flower.valuation.objective import objective_of
from tests.run.points import classes, line, regression
from tests.tolerance import SWITCHED_UNIT, assert_same_step, rounding

SHAPES = {"cnn": (3, 32, 32), "cnn-batch-norm": (1, 28, 28), "mlp": (1, 8, 8)}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def examples(image_shape: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, *image_shape, generator=generator)
    return inputs, torch.randint(10, (count,), generator=generator)


def plain_training(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    config: TrainingConfig,
    generator: torch.Generator,
    proximal_mu: float = 0.0,
) -> float:
    """Train as any PyTorch tutorial does."""
    seed = int(torch.randint(2**62, (), generator=generator))
    received = [parameter.detach().clone() for parameter in model.parameters()]
    settings = {"lr": config.learning_rate, "momentum": config.momentum}
    optimizer = torch.optim.SGD(model.parameters(), **settings)
    model.train()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for _ in range(config.local_epochs):
            total = 0.0
            for batch in torch.randperm(len(labels), generator=generator).split(config.batch_size):
                optimizer.zero_grad()
                batch = batch.to(labels.device)
                loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
                distances = zip(model.parameters(), received, strict=True)
                penalty = sum(((p - r) ** 2).sum() for p, r in distances)
                (loss + proximal_mu / 2 * penalty).backward()
                optimizer.step()
                total += float(loss.detach()) * len(batch)
    return total / len(labels)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()])


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # In float64 rounding hides nothing; float32 has the layouts and kernels that runs train with.
    [(torch.float64, rounding(torch.float64, steps=6)), (torch.float32, SWITCHED_UNIT)],
    ids=["float64", "float32"],
)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("proximal_mu", [0.0, 5.0])
def test_training_equals_the_plain_loop_up_to_rounding(name, proximal_mu, dtype, tolerance):
    inputs, labels = examples(SHAPES[name], 21)
    inputs = inputs.to(dtype)
    # A learning rate at which all three learn: where training diverges, it multiplies rounding.
    config = TrainingConfig(local_epochs=2, batch_size=8, learning_rate=0.005)
    ours = build_model(name, SHAPES[name], 10, seed=0).to(dtype)
    plain, before = copy.deepcopy(ours), copy.deepcopy(ours)
    seeded = [generator() for _ in range(2)]
    loss = train_local(ours, inputs, labels, config, seeded[0], proximal_mu=proximal_mu)
    expected = plain_training(plain, inputs, labels, config, seeded[1], proximal_mu=proximal_mu)
    # The loss that is reported is summed in float32, whatever the model's dtype.
    assert loss == pytest.approx(expected, rel=max(tolerance, rounding(torch.float32)))
    assert expected < functional.cross_entropy(before.eval()(inputs), labels)
    assert_same_step(flat(ours), flat(plain), flat(before), tolerance)
    for ours_buffer, plain_buffer in zip(ours.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours_buffer, plain_buffer, atol=tolerance, rtol=tolerance)


def test_momentum_and_proximal_term_by_hand():
    # The loss is the mean of w x at x = 2; lr = 0.1, momentum = 0.5, mu = 0.1, w = 1.
    # v1 = 2                                   w1 = 1 - 0.2 = 0.8
    # v2 = 0.5 * 2 + 2 + 0.1 * (0.8 - 1)       = 2.98    w2 = 0.8 - 0.298 = 0.502
    # v3 = 0.5 * 2.98 + 2 + 0.1 * (0.502 - 1)  = 3.4402  w3 = 0.502 - 0.34402 = 0.15798
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    config = TrainingConfig(local_epochs=3, batch_size=2, learning_rate=0.1, momentum=0.5)
    data, own = (torch.full((2, 1), 2.0), torch.zeros(2).long()), {"proximal_mu": 0.1}
    loss = train_local(model, *data, config, generator(), loss_fn=lambda o, _: o.mean(), **own)
    assert model.weight.item() == pytest.approx(0.15798, abs=1e-6)
    assert loss == pytest.approx(2 * 0.502, abs=1e-6)  # The last epoch's, before its step.


def test_same_generator_same_bits_dropout_included_and_random_state_untouched():
    data = examples(SHAPES["cnn"], 20)

    def trained(seed: int, process_seed: int) -> Tensor:
        torch.manual_seed(process_seed)
        state, model = torch.get_rng_state(), build_model("cnn", SHAPES["cnn"], 10, seed=0)
        config = TrainingConfig(local_epochs=2, learning_rate=0.05)
        train_local(model, *data, config, torch.Generator().manual_seed(seed))
        assert torch.equal(torch.get_rng_state(), state)
        return flat(model)

    first = trained(9, process_seed=1)
    assert torch.equal(first, trained(9, process_seed=2))
    assert not torch.equal(first, trained(10, process_seed=1))


def test_a_model_keeps_its_memory_modes_and_frozen_parameters_and_inputs_are_not_written_to():
    model = build_model("cnn-batch-norm", SHAPES["cnn-batch-norm"], 10, seed=0)
    model.eval()
    model[1].train()
    model[0].requires_grad_(False)
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    memory = [parameter.data_ptr() for parameter in model.parameters()]
    inputs, labels = examples(SHAPES["cnn-batch-norm"], 5)
    kept = inputs.clone()
    config = TrainingConfig(local_epochs=1)
    train_local(model, inputs, labels, config, generator())
    assert [module.training for module in model.modules()] == modes
    assert [parameter.data_ptr() for parameter in model.parameters()] == memory
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(model[0].weight, before["0.weight"])
    assert not torch.equal(model[4].weight, before["4.weight"])
    assert torch.equal(inputs, kept)


@pytest.mark.parametrize("count", [1, 5])
def test_a_lonely_last_example_does_not_stop_batch_norm_on_1x1_maps(count):
    # The last two see one value a channel: torch refuses a batch of one there.
    model = nn.Sequential(
        nn.BatchNorm2d(2), nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.BatchNorm1d(3)
    )
    before, data = flat(model), (torch.rand(count, 2, 2, 2), torch.zeros(count).long())
    config = TrainingConfig(local_epochs=1, batch_size=4)
    assert math.isfinite(train_local(model, *data, config, generator()))
    assert not torch.equal(flat(model), before)
    full = count // 4
    assert [int(model[i].num_batches_tracked) for i in (0, 2, 4)] == [full + 1, full, full]
    assert not any(module._forward_pre_hooks for module in model)


@pytest.mark.parametrize("count", [1, 5])
def test_a_dataset_s_lonely_last_example_does_not_stop_batch_norm(count):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))
    data = Doubled(torch.randn(count, 3, generator=generator()), torch.arange(count))
    config = TrainingConfig(local_epochs=2, batch_size=4)
    assert train_task(classes(), model, data, config, generator()).num_examples == count
    assert int(model[1].num_batches_tracked) == 2 * (count // 4)


class NamedInputs(nn.Module):
    """A model that gives its batch norm the input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.last = nn.Linear(2, 2)

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(self.norm(input=rows))


def test_a_lonely_last_example_does_not_stop_a_batch_norm_that_gets_it_by_name():
    model = NamedInputs()
    data = (torch.randn(5, 2, generator=generator()), torch.tensor([0, 1, 0, 1, 0]))
    config = TrainingConfig(local_epochs=1, batch_size=4)
    assert math.isfinite(train_local(model, *data, config, generator()))
    assert int(model.norm.num_batches_tracked) == 1


class FrozenNorm(nn.Sequential):
    """A model whose batch norm is never in train mode, as in transfer learning."""

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self[1].eval()
        return self


def test_a_lonely_last_example_does_not_wake_a_frozen_batch_norm():
    model = FrozenNorm(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))
    inputs = torch.randn(5, 3, generator=generator())
    config = TrainingConfig(local_epochs=2, batch_size=4)
    train_local(model, inputs, torch.arange(5), config, generator())
    assert int(model[1].num_batches_tracked) == 0
    assert torch.equal(model[1].running_mean, torch.zeros(4))


def test_bf16_moves_about_as_float32_does_and_keeps_float32_parameters():
    inputs, labels = examples(SHAPES["cnn"], 32)
    moves = {}
    for precision in ("float32", "bf16"):
        model = build_model("cnn", SHAPES["cnn"], 10, seed=0)
        before = flat(model)
        config = TrainingConfig(local_epochs=2, precision=precision)
        train_local(model, inputs, labels, config, generator())
        assert flat(model).dtype == torch.float32
        moves[precision] = flat(model) - before
    assert not torch.equal(moves["float32"], moves["bf16"])
    assert functional.cosine_similarity(moves["float32"], moves["bf16"], dim=0) > 0.99


def test_a_proximal_term_is_refused_where_a_task_trains_in_its_own_way():
    task = regression(train=lambda model, data, training: 0.0)
    own = nn.Linear(2, 1), line(0), TrainingConfig()
    with pytest.raises(ConfigError, match="FedProx adds a term to the local loss, but task 'line'"):
        train_task(task, *own, generator(), proximal_mu=0.1)


CONFIG = TrainingConfig(local_epochs=2, batch_size=4, learning_rate=0.1, momentum=0.5)
MSE = objective_of(functional.mse_loss, None)


def train_batches(model, data, objective, config, generator) -> Trained:
    source = BatchesAsTheyCome(data, objective, config.batch_size, torch.device("cpu"))
    return train_on(model, source, config, generator)


def test_tensors_cut_as_they_come_train_as_prepared_ones():
    inputs = torch.randn(10, 3, generator=generator(), dtype=torch.float64)
    targets = inputs.sum(1, keepdim=True)
    torch.manual_seed(0)
    plain = nn.Linear(3, 1).double()
    fast = copy.deepcopy(plain)
    loss, count = train_batches(plain, (inputs, targets), MSE, CONFIG, generator())
    expected = train_local(fast, inputs, targets, CONFIG, generator(), loss_fn=functional.mse_loss)
    assert count == 10
    assert loss == pytest.approx(expected, rel=rounding(torch.float32))
    tolerance = rounding(torch.float64, steps=6)
    torch.testing.assert_close(plain.weight, fast.weight, atol=tolerance, rtol=tolerance)


PAD = -100


def by_task(model: nn.Module, *data: Tensor) -> Trained:
    return train_task(classes(), model, data, CONFIG, generator())


def by_batches(model: nn.Module, rows: Tensor, labels: Tensor) -> Trained:
    batches = list(zip(rows.split(2), labels.split(2), strict=True))
    return train_batches(model, batches, objective_of(None, None), CONFIG, generator())


@pytest.mark.parametrize("train", [by_task, by_batches])
def test_examples_whose_target_is_ignored_are_left_out(train):
    """A batch of them alone would make the model NaN."""
    rows = torch.randn(6, 2, generator=generator())
    labels = torch.tensor([PAD, PAD, 0, 1, PAD, 1])
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    expected = copy.deepcopy(model)
    theirs = train(expected, rows[labels != PAD], labels[labels != PAD])
    assert train(model, rows, labels) == pytest.approx(theirs, rel=rounding(torch.float32))
    assert theirs.num_examples == 3
    assert_same_step(flat(model), flat(expected), torch.zeros(6), rounding(torch.float32))
    with pytest.raises(DataError, match="this client has none that counts"):
        train(model, rows[:2], labels[:2])


@pytest.mark.parametrize("train", [by_task, by_batches])
def test_inputs_that_another_model_computed_are_trained_on_as_plain_ones(train):
    """A backward pass through the other model would work in the first epoch alone."""
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    rows = other(torch.randn(6, 3, generator=generator()))
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    model = nn.Linear(2, 2)
    expected = copy.deepcopy(model)
    assert train(model, rows, labels) == train(expected, rows.detach(), labels)
    assert torch.equal(flat(model), flat(expected))
    assert other[0].weight.grad is None


class CountingLetters(nn.Linear):
    """Takes strings: how often each has an a and a b."""

    def forward(self, texts):
        counts = [[float(text.count("a")), float(text.count("b"))] for text in texts]
        return super().forward(torch.tensor(counts))


TEXTS = ["aab", "b", "abb", "a", "bb", "aaab", "ab"]
TEXT_LABELS = torch.tensor([1, 0, 0, 1, 0, 1, 1])


@pytest.mark.parametrize("batch_size", [3, 7, 16])
def test_strings_come_with_their_own_labels(batch_size):
    """In tensors' place, they are drawn and cut as the labels are."""
    counts = torch.tensor([[text.count("a"), text.count("b")] for text in TEXTS]).float()
    torch.manual_seed(0)
    model = CountingLetters(2, 2)
    expected = nn.Linear(2, 2)
    expected.load_state_dict(model.state_dict())
    config = TrainingConfig(local_epochs=3, batch_size=batch_size, learning_rate=0.1)
    objective = objective_of(None, None)
    theirs = train_batches(expected, (counts, TEXT_LABELS), objective, config, generator())
    found = train_batches(model, (TEXTS, TEXT_LABELS), objective, config, generator())
    assert found == pytest.approx(theirs, rel=rounding(torch.float32))
    assert_same_step(flat(model), flat(expected), torch.zeros(6), rounding(torch.float32))


def six_examples() -> tuple[Tensor, Tensor, nn.Linear, nn.Linear]:
    """Return rows, their labels, and twice the same model."""
    rows = torch.randn(6, 2, generator=generator())
    labels = torch.tensor([0, 1, 0, 0, 1, 1])
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    return rows, labels, model, copy.deepcopy(model)


class Doubled(TensorDataset):
    """Changes its examples as it hands them out, as what augments images does."""

    def __getitem__(self, index):
        row, label = super().__getitem__(index)
        return 2 * row, label


def test_examples_are_those_that_a_dataset_hands_out():
    rows, labels, model, expected = six_examples()
    one_batch = TrainingConfig(local_epochs=1, batch_size=6, learning_rate=0.1)
    train_task(classes(), expected, (2 * rows, labels), one_batch, generator())
    train_task(classes(), model, Doubled(rows, labels), one_batch, generator())
    assert_same_step(flat(model), flat(expected), torch.zeros(6), rounding(torch.float32))


class CountedStream(IterableDataset):
    """A stream of examples that says how many it has, as for a progress bar."""

    def __init__(self, rows: Tensor, labels: Tensor) -> None:
        self.rows = rows
        self.labels = labels

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self):
        return zip(self.rows, self.labels, strict=True)


def test_a_stream_with_a_length_is_trained_on_in_its_own_order():
    rows, labels, model, expected = six_examples()
    size = CONFIG.batch_size
    batches = list(zip(rows.split(size), labels.split(size), strict=True))
    theirs = train_task(classes(), expected, batches, CONFIG, generator())
    stream = CountedStream(rows, labels)
    assert train_task(classes(), model, stream, CONFIG, generator()) == theirs
    assert theirs.num_examples == 6
    assert torch.equal(flat(model), flat(expected))


def test_a_loader_that_drops_all_that_a_client_has_is_named():
    loader = DataLoader(
        TensorDataset(torch.randn(3, 2), torch.tensor([0, 1, 0])), 4, drop_last=True
    )
    words = "this client's 3 fill no batch, and its DataLoader has drop_last=True"
    with pytest.raises(DataError, match=words):
        train_batches(nn.Linear(2, 2), loader, objective_of(None, None), CONFIG, generator())


WHOLE = TensorDataset(torch.randn(10, 2, generator=generator()), torch.arange(10) % 2)


@pytest.mark.parametrize(
    ("loader", "num_examples"),
    [
        (DataLoader(WHOLE, 4), 10),
        (DataLoader(WHOLE, 4, drop_last=True), 8),
        (DataLoader(WHOLE, 4, sampler=SubsetRandomSampler([1, 5, 6])), 3),
        (DataLoader(WHOLE, 2, sampler=SubsetRandomSampler([1, 5, 6]), drop_last=True), 2),
        (DataLoader(WHOLE, batch_sampler=[[1, 5], [6]]), 3),
    ],
)
def test_a_loader_s_examples_are_those_that_it_draws_however_a_task_trains(loader, num_examples):
    own = classes(train=lambda model, data, training: 0.5)
    for task in (own, classes()):
        trained = train_task(task, nn.Linear(2, 2), loader, CONFIG, generator())
        assert trained.num_examples == num_examples


@pytest.mark.parametrize("loss", [0.5, np.float32(0.5), np.float64(0.5), torch.tensor([0.5])])
def test_a_task_s_own_training_may_return_any_number(loss):
    own = classes(train=lambda model, data, training: loss)
    trained = train_task(own, nn.Linear(2, 2), WHOLE, CONFIG, generator())
    assert trained == Trained(0.5, 10)


def test_a_task_s_own_training_that_returns_no_number_is_named():
    own = classes(train=lambda model, data, training: None)
    with pytest.raises(DataError, match="returned NoneType; expected a number"):
        train_task(own, nn.Linear(2, 2), WHOLE, CONFIG, generator())


def as_tensors(rows, targets):
    return rows, targets


def as_dataset(rows, targets):
    return TensorDataset(rows, targets)


def as_batches(rows, targets):
    return list(zip(rows.split(2), targets.split(2), strict=True))


PIXELS = torch.tensor([[0, 1], [PAD, 1], [0, 0], [PAD, PAD], [PAD, 1], [1, 1]])  # [n, pixels]


@pytest.mark.parametrize("held_as", [as_tensors, as_dataset, as_batches])
@pytest.mark.parametrize(
    ("weights", "targets", "num_examples"),
    [
        ([1.0, 3.0], torch.tensor([0, 0, 0, 1, 1]), 5),
        ([9.0, 1.0], torch.tensor([0, 0, 0, 1, 1]), 5),
        ([1.0, 0.0], torch.tensor([0, 1, 0, 1, 1]), 2),
        ([1.0, 1.0], PIXELS, 5),
        ([2.0, 1.0], PIXELS, 5),
    ],
)
def test_loss_and_examples_are_those_of_all_data_however_they_are_held(
    weights, targets, num_examples, held_as
):
    loss_fn = nn.CrossEntropyLoss(weight=torch.tensor(weights))
    rows = torch.randn(len(targets), 3, *targets.shape[1:], generator=generator())
    torch.manual_seed(0)
    model = nn.Conv1d(3, 2, 1) if targets.dim() > 1 else nn.Linear(3, 2)
    expected = loss_fn(model(rows), targets).item()
    config = TrainingConfig(local_epochs=1, batch_size=2, learning_rate=1e-30)  # It stays as it is.
    data = held_as(rows, targets)
    found = train_task(classes(loss=loss_fn), model, data, config, generator())
    assert found.loss == pytest.approx(expected, rel=10 * rounding(torch.float32))
    assert found.num_examples == num_examples


@pytest.mark.parametrize("held_as", [as_tensors, as_dataset, as_batches])
def test_data_of_another_floating_point_type_than_the_model_s_are_named(held_as):
    rows, targets = line(0, 4)
    data = held_as(rows.double(), targets)
    words = "^RuntimeError: .*; the data are float64, the model is float32: convert the data to fl"
    with pytest.raises(DataError, match=words):
        train_task(regression(), nn.Linear(2, 1), data, CONFIG, generator())


@pytest.mark.parametrize("batches", [[], [line(0, 4)]])
def test_an_iterator_that_is_used_up_is_named(batches):
    words = "^client_data is an iterator that is used up, or had no batch: return a list or a Data"
    with pytest.raises(DataError, match=words):
        train_task(regression(), nn.Linear(2, 1), iter(batches), CONFIG, generator())


def test_a_list_of_examples_is_no_list_of_batches():
    rows, targets = line(0, 4)
    pairs = list(zip(rows, targets, strict=True))
    model = nn.Linear(2, 1)
    with pytest.raises(ValuationError, match=r"a batch is tuple .* which is a single example: the"):
        train_task(regression(), model, pairs, CONFIG, generator())
    by_ones = DataLoader(pairs, batch_size=1)
    assert train_task(regression(), model, by_ones, CONFIG, generator()).num_examples == 4


def test_a_run_finds_what_it_left_and_no_other_does():
    state = RecordDict()
    with node_memory(state, "attack", "a") as memory:
        assert memory == {}
    assert not state  # An honest client leaves nothing behind.
    with node_memory(state, "attack", "a") as memory:
        memory["received"] = torch.tensor([1.0, 2.0])
    with node_memory(state, "attack", "b") as memory:
        assert memory == {}
    with node_memory(state, "attack", "a") as memory:
        assert memory["received"].tolist() == [1, 2]
        del memory["received"]
    with node_memory(state, "attack", "a") as memory:
        assert memory == {}
