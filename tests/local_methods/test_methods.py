"""What a client adds to plain SGD: by hand, and in runs."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from fedif_flower import FedAvg, Setup, Task
from fedif_flower.client.app import task_app
from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import LocalRound, LocalTerm, Moon, Scaffold, TakenIn
from fedif_flower.local_methods.scaffold import summed_steps
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import instructions
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.config import TrainingConfig
from tests.run.points import SLOPE, classes, line, regression, run

RATE, EPOCHS, ROUNDS, CLIENTS = 0.1, 3, 4, 4


@given(st.integers(1, 30), st.floats(0, 1))
def test_summed_steps_are_what_a_constant_gradient_moves_by(steps, momentum):
    weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    sgd = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        sgd.step()
    assert summed_steps(steps, momentum) == pytest.approx(-weight.item(), rel=1e-6)


def test_changes_are_shortened_to_twice_the_median_length():
    # Of lengths 2, 2, 8 the third is cut to 4.
    assert Scaffold().shortened(torch.tensor([2.0, 2.0, 8.0]), 2.0).tolist() == [1.0, 1.0, 0.5]
    assert Scaffold().shortened(torch.zeros(3), math.inf).tolist() == [1.0, 1.0, 1.0]


def test_a_change_is_bounded_by_ten_usual_lengths():
    """Twice the mean of two lengths is no bound: the longer one is never longer than that."""
    bounded = Scaffold().shortened(torch.tensor([2.0, 2e15]), 2.0)
    assert bounded.tolist() == pytest.approx([1.0, 1e-14])
    # Honest ones are not; nor does who sends nothing take away what another one sends.
    assert Scaffold().shortened(torch.tensor([2.0, 16.0]), 2.0).tolist() == [1.0, 1.0]
    assert Scaffold().shortened(torch.tensor([2.0, 0.0]), 2.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("taken_in", "control"),
    [
        (TakenIn(3, 1.0), [2.5, 1.5]),
        (TakenIn(3, 0.5), [2.5 - 1.0, 1.5 - 0.5]),
        (TakenIn(2, 1.0), [0.5, 0.5]),  # An earlier one: the last was lost or refused.
        (None, [0.5, 0.5]),
    ],
)
def test_a_client_moves_by_what_the_server_has_taken_in(taken_in, control):
    model = nn.Linear(2, 1, bias=False)
    memory = {
        "scaffold-control": torch.tensor([0.5, 0.5]),
        "scaffold-change": torch.tensor([2.0, 1.0]),
        "scaffold-change-round": torch.tensor(3),
    }
    asked = local(model, **memory)
    asked = replace(asked, vector=torch.zeros(2), server_round=5, taken_in=taken_in)
    term = Scaffold().term(asked)
    assert term.gradient.tolist() == [-value for value in control]
    assert Scaffold().term(asked).gradient.tolist() == term.gradient.tolist()  # Settled once.


def test_a_change_is_reckoned_with_momentum():
    """Two steps of rate .1 with momentum .5 on a slope g move by .1 (1 + 1.5) g, here .25 g."""
    asked = replace(
        local(nn.Linear(2, 1, bias=False)),
        received=torch.zeros(2),
        training=TrainingConfig(learning_rate=0.1, momentum=0.5),
        vector=torch.tensor([0.5, 0.0]),
    )
    term = LocalTerm()
    term.steps = 2
    change = Scaffold().finish(asked, term, torch.tensor([-0.25, -0.5]))
    # c_i^+ - c_i = g - c, with g = (1, 2).
    assert change.tolist() == pytest.approx([0.5, 2.0])


def examples(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of a line that is another for each client."""
    inputs, _ = line(client)
    return inputs, inputs @ (SLOPE + 0.2 * torch.tensor([[client], [-client]]))


def published_loop(chosen: list[list[int]]) -> torch.Tensor:
    """Algorithm 1 of the paper with option II, global rate 1, whole batches."""
    torch.manual_seed(0)
    weights = task().build_model(0)
    x = parameters_to_vector(weights.parameters()).detach().double()
    c, own = torch.zeros(3).double(), torch.zeros(CLIENTS, 3).double()
    for clients in chosen:
        models, changes = [], []
        for client in clients:
            inputs, targets = (value.double() for value in examples(client))
            y = x.clone()
            for _ in range(EPOCHS):
                y.requires_grad_(True)
                loss = functional.mse_loss(inputs @ y[:2, None] + y[2], targets)
                (gradient,) = torch.autograd.grad(loss, y)
                y = (y - RATE * (gradient - own[client] + c)).detach()
            new = own[client] - c + (x - y) / (EPOCHS * RATE)
            changes.append(new - own[client])
            own[client] = new
            models.append(y)
        x = x + (torch.stack(models) - x).mean(dim=0)
        c = c + torch.stack(changes).mean(dim=0) * len(clients) / CLIENTS
    return x.float()


def task():
    return regression(client_data=lambda site: examples(site.partition_id))


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_run_is_the_published_algorithm(tmp_path, share):
    settings = {"momentum": 0.0, "learning_rate": RATE, "local_epochs": EPOCHS, "batch_size": 40}
    settings |= {"fraction_train": share, "num_server_rounds": ROUNDS}
    run_dir = run(tmp_path, task(), strategy="fedavg", local_method="scaffold", **settings)
    chosen = [[] for _ in range(ROUNDS)]
    for row in read_rows(run_dir / "clients.csv"):
        chosen[int(row["round"]) - 1].append(int(row["partition_id"]))
    state = torch.load(run_dir / "model.pt", weights_only=True)
    found = torch.cat([state["weight"].flatten(), state["bias"]])
    torch.testing.assert_close(found, published_loop(chosen), rtol=1e-4, atol=1e-5)


# Each of three clients has its optimum; that of their mean loss is 3.
OPTIMA = [0.0, 4.0, 5.0]


class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs):
        return inputs * self.weight


def of_optimum(site):
    return torch.ones(1), torch.tensor([OPTIMA[site.partition_id]])


def half_square(outputs, targets):
    return (outputs - targets).square().mean() / 2


class LosingReplies(LocalGrid):
    """Loses what the last client has made in one round."""

    lost_round = 0

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        if self.asked["config"]["server-round"] != self.lost_round:
            return replies
        return [reply for reply in replies if reply.metadata.src_node_id != self.node_ids[-1]]

    def push_messages(self, messages):
        messages = list(messages)
        self.asked = messages[0].content
        return super().push_messages(messages)


def where_it_ends(evaluate_fn=None, min_valid_replies=1, lost_round=0, starts=(40,)):
    """Return the weight after 40 rounds of SCAFFOLD, which are run in one go or in several."""
    data = dict.fromkeys(("client_data", "validation_data", "test_data"), of_optimum)
    own = Task(name="optima", model=Weight, loss=half_square, **data)
    config = ClientConfig(
        num_clients=3,
        task="this-app:optima",
        local_epochs=5,
        batch_size=1,
        learning_rate=0.1,
        momentum=0.0,
        local_method="scaffold",
        device="cpu",
    )
    grid = LosingReplies(task_app(own), 3)
    grid.lost_round = lost_round
    setup = Setup(local_method=Scaffold(), device="cpu", min_valid_replies=min_valid_replies)
    nodes = {"min_train_nodes": 3, "min_available_nodes": 3, "fraction_evaluate": 0.0}
    strategy = FedAvg(setup=setup, **nodes)
    arrays = ArrayRecord(Weight().state_dict())
    for num_rounds in starts:
        arrays = strategy.start(
            grid,
            arrays,
            num_rounds=num_rounds,
            train_config=instructions(config, own, run="run"),
            evaluate_fn=evaluate_fn,
        ).arrays
    return arrays["weight"].numpy().item()


def test_scaffold_reaches_the_optimum():
    assert where_it_ends() == pytest.approx(3.0, abs=1e-3)


def test_scaffold_reaches_it_though_it_was_started_again():
    """The clients have kept their control variates, and the server has kept the mean of these."""
    assert where_it_ends(starts=(5, 35)) == where_it_ends() == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize("min_valid_replies", [1, 3])
@pytest.mark.parametrize("lost_round", [1, 4])
def test_scaffold_reaches_it_though_a_reply_is_lost(lost_round, min_valid_replies):
    """The round fails for it, or not; in round 1 the median length is small, and cuts another."""
    found = where_it_ends(lost_round=lost_round, min_valid_replies=min_valid_replies)
    assert found == pytest.approx(3.0, abs=1e-3)


def test_scaffold_reaches_it_though_a_model_was_taken_back():
    failed = []

    def evaluate(server_round, arrays):
        if server_round == 3 and not failed:
            failed.append(server_round)
            raise RuntimeError("a worker of the evaluation died")
        return MetricRecord({"weight": float(arrays["weight"].numpy()[0])})

    assert where_it_ends(evaluate) == pytest.approx(3.0, abs=1e-3)
    assert failed == [3]


def test_tasks_that_train_themselves_refuse_it(tmp_path):
    own = regression(train=lambda model, data, config: 0.0)
    for name in ("scaffold", "moon"):
        with pytest.raises(ConfigError, match=f"local-method = '{name}'"):
            run(tmp_path, own, local_method=name)


# -- MOON


def representing(weight: list[list[float]]) -> nn.Module:
    """Return a model that represents its inputs by w times them."""
    body, head = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    body.weight.data = torch.tensor(weight)
    return nn.Sequential(OrderedDict(body=body, head=head))


def vector(model: nn.Module) -> torch.Tensor:
    return parameters_to_vector(model.parameters()).detach()


def local(model: nn.Module, **memory: torch.Tensor) -> LocalRound:
    return LocalRound(model, vector(model), TrainingConfig(), memory)


@pytest.mark.parametrize("layer", ["", "body"])
def test_the_contrastive_term_by_hand(layer):
    same, turned = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [-1.0, 0.0]]
    model = representing(same)
    given = local(model, **{"moon-last-model": vector(representing(turned))})
    moon = Moon(mu=2.0, temperature=0.5, layer=layer)
    with moon.term(given) as term:
        model(torch.tensor([[1.0, 0.0]]))
        # cos 1 to the global model's, 0 to the last one's
        expected = -2.0 * math.log(math.exp(2) / (math.exp(2) + 1))
        loss = term.loss()
        assert loss.item() == pytest.approx(expected)
        loss.backward()
    assert model.body.weight.grad is not None
    assert model.head.weight.grad is None
    assert not model._forward_pre_hooks
    assert not model.head._forward_pre_hooks
    assert not model.body._forward_hooks


def test_a_representation_of_zeros_has_no_cosine_in_float16_either():
    model = representing([[1.0, 0.0], [0.0, 1.0]]).half()
    given = local(model, **{"moon-last-model": 2.0 * vector(model)})
    with Moon(mu=2.0).term(given) as term:
        model(torch.zeros(3, 2, dtype=torch.float16))
        loss = term.loss()
    # 0 and 0: either is as likely.
    assert loss.item() == pytest.approx(2.0 * math.log(2.0))


def test_the_last_model_has_its_own_statistics():
    def normed() -> nn.Module:
        norm = nn.BatchNorm1d(2, affine=False, eps=0.0)
        return nn.Sequential(norm, nn.Linear(2, 2, bias=False)).eval()

    own = normed()
    own[0].running_mean.fill_(5.0)
    own[0].running_var.fill_(4.0)
    first = local(own)
    Moon().finish(first, LocalTerm(), vector(own))
    received = normed()
    term = Moon().term(replace(local(received), memory=first.memory))
    with term:
        received(torch.tensor([[1.0, 9.0]]))
    # What the last layer is given: the received model's, the global and the last one's.
    features = [term._features[model].tolist() for model in term._models]
    assert features == [[[1.0, 9.0]], [[1.0, 9.0]], [[-2.0, 2.0]]]


def test_the_models_that_are_compared_with_do_not_train():
    """The batch of means 2 and 7, variances 1 and 4 is normed by itself in the trained one alone.

    The global model's statistics are 0 and 1, the last one's 5 and 4; no batch changes them.
    """
    norm = nn.BatchNorm1d(2, affine=False, eps=1e-12)
    received = nn.Sequential(norm, nn.Linear(2, 2, bias=False)).train()
    last = {"moon-last-model": vector(received)}
    last["moon-last-buffer.0.running_mean"] = torch.full((2,), 5.0)
    last["moon-last-buffer.0.running_var"] = torch.full((2,), 4.0)
    term = Moon().term(local(received, **last))
    batch = torch.tensor([[1.0, 9.0], [3.0, 5.0]])
    with term:
        for _ in range(2):
            received(batch)
    own, of_global, of_last = (term._features[model] for model in term._models)
    torch.testing.assert_close(own, torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))
    torch.testing.assert_close(of_global, batch)
    torch.testing.assert_close(of_last, torch.tensor([[-2.0, 2.0], [-1.0, 0.0]]))


def test_nothing_is_added_in_a_client_s_first_round():
    given = local(model := representing([[1.0, 0.0], [0.0, 1.0]]))
    term = Moon().term(given)
    assert type(term) is LocalTerm
    Moon().finish(given, term, vector(model) + 1)
    assert torch.equal(given.memory["moon-last-model"], vector(model) + 1)
    assert type(Moon().term(given)) is not LocalTerm


def test_a_layer_that_is_not_there_is_named_before_a_run_begins(tmp_path):
    bare = classes(model=lambda: nn.Sequential(nn.Conv2d(1, 1, 1)))
    with pytest.raises(ConfigError, match="no linear layer"):
        Moon().misfit(bare, None)
    with pytest.raises(ConfigError, match=r"moon\.layer = 'body'; allowed: 0"):
        run(tmp_path, bare, local_method="moon", **{"moon.layer": "body"})
    assert list(tmp_path.iterdir()) == []


class HeadForLater(nn.Linear):
    """Has a head that it calls for none of the batches."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.head = nn.Linear(2, 2)


@pytest.mark.parametrize("layer", ["", "head"])
def test_a_layer_that_training_does_not_call_is_named(layer):
    model = HeadForLater()
    term = Moon(layer=layer).term(local(model, **{"moon-last-model": vector(model)}))
    with term:
        model(torch.tensor([[1.0, 9.0]]))
        words = f"moon.layer = '{layer}': the model does not call the layer head for every batch"
        with pytest.raises(ConfigError, match=words):
            term.loss()


class SkippingBody(nn.Sequential):
    """Calls its body for the first batch alone."""

    def forward(self, inputs):
        skipped = self.body
        self.body = nn.Identity()
        return self.head(skipped(inputs))


def test_a_layer_that_a_later_batch_does_not_call_is_named():
    model = SkippingBody(OrderedDict(body=nn.Linear(2, 2), head=nn.Linear(2, 2)))
    given = local(model, **{"moon-last-model": vector(model)})
    with Moon(layer="body").term(given) as term:
        model(torch.tensor([[1.0, 9.0]]))
        term.loss().backward()
        model(torch.tensor([[1.0, 9.0]]))
        with pytest.raises(ConfigError, match=r"moon\.layer = 'body': the model does not call"):
            term.loss()


def frozen_body() -> nn.Module:
    model = representing([[1.0, 0.0], [0.0, 1.0]])
    model.body.requires_grad_(False)
    return model


@pytest.mark.parametrize("make", [frozen_body, lambda: nn.Linear(2, 2)])
def test_a_head_alone_has_no_representation_that_is_trained(tmp_path, make):
    with pytest.raises(ConfigError, match="'moon' needs a representation that is trained"):
        run(tmp_path, classes(model=make), local_method="moon")


def test_a_layer_that_nothing_trained_changes_is_named():
    model = frozen_body()
    given = local(model, **{"moon-last-model": torch.zeros(6)})
    with Moon(layer="body").term(given) as term:
        model(torch.tensor([[1.0, 0.0]]))
        with pytest.raises(
            ConfigError, match=r"moon\.layer = 'body': no parameter that is trained"
        ):
            term.loss()


def test_the_last_layer_may_be_called_by_keyword():
    class ByKeyword(nn.Sequential):
        def forward(self, inputs):
            return self.head(input=self.body(inputs))

    model = ByKeyword(OrderedDict(body=nn.Linear(2, 2), head=nn.Linear(2, 2)))
    given = local(model, **{"moon-last-model": 2.0 * vector(model)})
    with Moon().term(given) as term:
        model(torch.tensor([[1.0, 0.0]]))
        assert term.loss().requires_grad


def test_a_run_with_it_ends_elsewhere_than_one_without_from_the_second_round_on(tmp_path):
    task = classes(model=lambda: nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)))
    base = {"strategy": "fedavg", "num_server_rounds": 3, "learning_rate": 0.2}
    plain = run(tmp_path, task, **base)
    own = run(tmp_path, task, local_method="moon", **{**base, "moon.mu": 5.0})
    losses = [[float(r["test_loss"]) for r in read_rows(d / "rounds.csv")] for d in (plain, own)]
    assert losses[0][:2] == losses[1][:2]
    assert losses[0][2] != losses[1][2]
    assert losses[1][-1] < losses[1][0]
