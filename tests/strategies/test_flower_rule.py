"""Any of Flower's strategies behind our screening: the model is the one that Flower makes."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import strategy as flower
from torch import nn

from fedif_flower.errors import ConfigError
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import FedAvg, FlowerRule, Setup
from fedif_flower.strategies.callbacks import OnRound
from fedif_flower.strategies.reports import RoundReport
from fedif_flower.tasks.modules import trainable_names
from tests.strategies.hostile import HOSTILE, Clients, spoiled_reply, step_reply

RULES = {
    "FedAvg": flower.FedAvg,
    "FedMedian": flower.FedMedian,
    "FedTrimmedAvg": flower.FedTrimmedAvg,
    "MultiKrum": lambda **k: flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3, **k),
    "Bulyan": lambda **k: flower.Bulyan(num_malicious_nodes=0, **k),
    "FedProx": lambda **k: flower.FedProx(proximal_mu=0.5, **k),
    "FedAdagrad": flower.FedAdagrad,
    "FedAdam": flower.FedAdam,
    "FedYogi": flower.FedYogi,
    "FedAvgM": lambda **k: flower.FedAvgM(server_learning_rate=0.5, server_momentum=0.9, **k),
    "QFedAvg": lambda **k: flower.QFedAvg(client_learning_rate=0.1, q=0.5, **k),
}
OPTIMIZERS = ["FedAdagrad", "FedAdam", "FedYogi", "FedAvgM", "QFedAvg"]
NUM_CLIENTS = 5


def going_to(target: float, loss_name: str = "train_loss"):
    """A client that goes half of the way to ``target``, from wherever it is."""

    def reply(message, context):
        arrays = message.content.array_records["arrays"]
        answer = step_reply(message, 0.0)
        answer.content["arrays"] = ArrayRecord(
            {
                name: pack_array(
                    array.numpy() + np.float32(0.5) * (np.float32(target) - array.numpy())
                )
                for name, array in arrays.items()
            }
        )
        answer.content["metrics"] = MetricRecord({"num-examples": 10, loss_name: abs(target)})
        return answer

    return reply


def honest(loss_name: str = "train_loss") -> dict:
    return {i: going_to(1.0 + i, loss_name) for i in range(NUM_CLIENTS)}


def zeros() -> ArrayRecord:
    return ArrayRecord({"a": pack_array(np.zeros(3, np.float32)), "b": pack_array(np.float32([4]))})


def values(result) -> np.ndarray:
    return np.concatenate([array.numpy().ravel() for array in result.arrays.values()])


def screened(rule, clients=None, rounds=4, arrays=None, num_clients=NUM_CLIENTS, **base):
    strategy = FlowerRule(
        RULES[rule](),
        fraction_evaluate=0.0,
        **{"setup": Setup(device="cpu")} | base,
    )
    grid = LocalGrid(Clients(clients or honest()), num_clients)
    return strategy, strategy.start(grid, arrays or zeros(), num_rounds=rounds)


@pytest.mark.parametrize("rule", RULES)
def test_the_model_is_flowers_own(rule):
    own = RULES[rule](fraction_evaluate=0.0)
    expected = own.start(LocalGrid(Clients(honest()), NUM_CLIENTS), zeros(), num_rounds=4)
    _, result = screened(rule)
    # Flower adds up in an order of its own: five terms, four rounds.
    np.testing.assert_allclose(values(result), values(expected), rtol=1e-5)
    assert not np.allclose(values(result), [0, 0, 0, 4])


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_an_optimiser_learns_beside_a_client_that_sends_nan(rule):
    clients = honest() | {NUM_CLIENTS: lambda m, _: spoiled_reply(m, HOSTILE["nan"])}
    reports: list[RoundReport] = []
    _, result = screened(
        rule, clients, num_clients=NUM_CLIENTS + 1, callbacks=[OnRound(reports.append)]
    )
    _, expected = screened(rule)
    np.testing.assert_array_equal(values(result), values(expected))
    assert not any(report.failed for report in reports)


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_batch_norm_statistics_are_averaged_not_stepped(rule):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))

    def shrinking(message, context):
        """Variances go down, which a stepped one would follow below 0."""
        arrays = message.content.array_records["arrays"]
        answer = step_reply(message, 0.1)
        answer.content["arrays"]["1.running_var"] = pack_array(
            arrays["1.running_var"].numpy() * np.float32(0.1)
        )
        return answer

    reports: list[RoundReport] = []
    _, result = screened(
        rule,
        dict.fromkeys(range(NUM_CLIENTS), shrinking),
        arrays=model_arrays(model),
        callbacks=[OnRound(reports.append)],
        setup=Setup(trainable_keys=trainable_names(model)),
    )
    assert [report.failed for report in reports] == [False] * 4
    np.testing.assert_allclose(result.arrays["1.running_var"].numpy(), 1e-4, rtol=1e-5)
    assert result.arrays["1.num_batches_tracked"].numpy().item() == 4
    assert np.isfinite(values(result)).all()


@pytest.mark.parametrize("rule", ["FedAdam", "FedAvgM"])
def test_moments_go_on_after_a_restart(rule):
    _, expected = screened(rule, rounds=4)
    first, half = screened(rule, rounds=2)
    second = FlowerRule(RULES[rule](), fraction_evaluate=0.0, setup=Setup(device="cpu"))
    second.load_state_dict(first.state_dict())
    second.completed_rounds = 2
    grid = LocalGrid(Clients(honest()), NUM_CLIENTS)
    result = second.start(grid, half.arrays, num_rounds=2)
    np.testing.assert_array_equal(values(result), values(expected))


def test_the_rule_may_add_to_what_clients_are_told():
    told = []

    def listening(message, context):
        told.append(message.content.config_records["config"]["proximal-mu"])
        return going_to(1.0)(message, context)

    screened("FedProx", dict.fromkeys(range(NUM_CLIENTS), listening), rounds=1)
    assert told == [0.5] * NUM_CLIENTS


def test_qfedavg_refuses_replies_without_a_loss_and_takes_either_spelling():
    clients = honest("train-loss") | {4: going_to(5.0, "other")}
    reports: list[RoundReport] = []
    _, result = screened("QFedAvg", clients, rounds=1, callbacks=[OnRound(reports.append)])
    (refused,) = (client for client in reports[0].clients if client.rejection)
    assert refused.rejection == "metric 'train_loss' is None; required: a number >= 0"
    assert len(result.arrays) == 2


def test_what_a_rule_raises_fails_the_round_and_keeps_the_model():
    class Broken(flower.FedAdam):
        def aggregate_train(self, server_round, replies):
            super().aggregate_train(server_round, replies)
            if server_round == 2:
                raise KeyError("boom")
            return super().aggregate_train(server_round, replies)

    reports: list[RoundReport] = []
    strategy = FlowerRule(
        Broken(),
        fraction_evaluate=0.0,
        callbacks=[OnRound(reports.append)],
        setup=Setup(device="cpu"),
    )
    result = strategy.start(LocalGrid(Clients(honest()), NUM_CLIENTS), zeros(), num_rounds=3)
    assert [report.failed for report in reports] == [False, True, False]
    assert np.isfinite(values(result)).all()


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        (flower.FedXgbBagging(), "it aggregates trees"),
        (flower.FedXgbCyclic(), "it aggregates trees"),
        (FedAvg(setup=Setup(device="cpu")), "it screens replies already"),
        (
            flower.DifferentialPrivacyServerSideFixedClipping(flower.FedAvg(), 1.0, 1.0, 2),
            "allowed: FedAvg and its subclasses",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_construction(inner, reason):
    with pytest.raises(ConfigError, match=f"inner = {type(inner).__name__}.*{reason}"):
        FlowerRule(inner)


class Watching(flower.FedAvg):
    """Notes what the garbage collector was kept off while the rule was at work."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.frozen: list[int] = []

    def aggregate_train(self, server_round, replies):
        self.frozen.append(gc.get_freeze_count())
        if self.error:
            raise self.error
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_the_collections_that_flower_asks_for_pass_over_what_is_alive(error):
    inner = Watching(error)
    before = gc.get_freeze_count()
    try:
        FlowerRule(inner).start(LocalGrid(Clients(), 3), zeros(), num_rounds=1)
    except KeyboardInterrupt:
        assert error
    assert inner.frozen[0] > 10_000
    assert gc.get_freeze_count() == before
