"""Rounds that sum updates as they come: the models and records of stacked ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import nn

from fedif_flower import (
    AFedSV,
    FedAvg,
    FedIF,
    FedProx,
    FLTrust,
    Krum,
    PathAttribution,
    RobustRule,
    Validation,
)
from fedif_flower.errors import ConfigError, TrainingFailedError
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import LossBound, MaxLength, NearestNeighbours, ServerMomentum
from fedif_flower.strategies import RootTraining, Setup, Weighting
from fedif_flower.strategies.reports import RoundReport
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.streaming import StreamedRound
from fedif_flower.valuation import InfluenceValuation
from tests.tolerance import rounding

CLIENTS = 6
GENERATOR = torch.Generator().manual_seed(0)
INPUTS, TARGETS = torch.randn(40, 3, generator=GENERATOR), torch.arange(40) % 2


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


class Noisy:
    """A ClientApp: client p adds noise of its own, counts a batch, and claims p + 1 examples."""

    def __init__(self, bad: int | None = None, jumps: int | None = None) -> None:
        self.bad, self.jumps = bad, jumps

    def __call__(self, message: Message, context) -> Message:
        partition_id = int(context.node_config["partition-id"])
        server_round = int(message.content["config"]["server-round"])
        generator = np.random.default_rng([partition_id, server_round])
        arrays = {}
        for name, array in message.content["arrays"].items():
            values = array.numpy()
            if values.dtype.kind == "i":
                step = 10**6 if partition_id == self.jumps else 1
                arrays[name] = pack_array(values + step)
                continue
            noise = 0.1 * generator.normal(size=values.shape).astype(values.dtype)
            if partition_id == self.bad and values.ndim:
                noise[...] = np.nan
            arrays[name] = pack_array(np.abs(values + noise) if "var" in name else values + noise)
        metrics = MetricRecord({"num-examples": partition_id + 1})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=message)


def judged(**settings) -> Validation:
    return Validation(model(), INPUTS, TARGETS, device="cpu")


STRATEGIES = {
    "fedif": lambda **base: FedIF(judged(), stages=(), **base),
    "fedif of the population": lambda **base: FedIF(
        judged(), stages=(), weighting=Weighting(weight_scope="population", num_clients=50), **base
    ),
    "fedif, no division": lambda **base: FedIF(
        InfluenceValuation(judged(), weight_normalization=False),
        stages=(),
        weighting=Weighting(smooth_update=False),
        **base,
    ),
    "fedif, short updates": lambda **base: FedIF(judged(), stages=[MaxLength(0.3)], **base),
    "fedif, momentum": lambda **base: FedIF(judged(), stages=[ServerMomentum(0.5)], **base),
    "fedif, bounded loss": lambda **base: FedIF(judged(), stages=[LossBound()], **base),
    "fedavg": lambda **base: FedAvg(
        **base | {"setup": replace(base["setup"], max_examples_ratio=0)}
    ),
    "fedprox": lambda **base: FedProx(
        **base | {"setup": replace(base["setup"], max_examples_ratio=0)}
    ),
    "fltrust": lambda **base: FLTrust(RootTraining(model(), INPUTS, TARGETS), **base),
}


def run(
    name: str, aggregation: str, app: Noisy | None = None
) -> tuple[torch.Tensor, list[RoundReport], ScreenedStrategy]:
    strategy = STRATEGIES[name](
        fraction_evaluate=0.0,
        fraction_train=0.7,
        setup=Setup(aggregation=aggregation, device="cpu"),
    )
    grid = LocalGrid(app or Noisy(), CLIENTS)
    result = strategy.start(grid, model_arrays(model()), num_rounds=3)
    arrays = [
        torch.from_numpy(array.numpy()).flatten().double() for array in result.arrays.values()
    ]
    return torch.cat(arrays), strategy.history.rounds, strategy


@pytest.mark.parametrize("name", STRATEGIES)
def test_same_model_and_records_as_stacked(name):
    (stacked, told, one), (streamed, also_told, other) = (
        run(name, aggregation) for aggregation in ("stacked", "streaming")
    )
    allowed = rounding(torch.float32)
    torch.testing.assert_close(streamed, stacked, rtol=allowed, atol=allowed)
    assert len(told) == len(also_told) == 3
    for expected, found in zip(told, also_told, strict=True):
        for column in ("score", "normalized", "weight_score", "weight", "accumulative"):
            values, others = (
                [getattr(client, column) for client in report.clients]
                for report in (expected, found)
            )
            assert others == [v if v is None else pytest.approx(v, 1e-3, 1e-5) for v in values]
    assert one.workspace.updates.shape[0] == 4
    assert other.workspace.updates.shape[0] == 1


def test_a_refused_reply_is_in_no_sum():
    (stacked, told, _), (streamed, also_told, _) = (
        run("fedavg", aggregation, Noisy(bad=2)) for aggregation in ("stacked", "streaming")
    )
    torch.testing.assert_close(streamed, stacked, rtol=1e-4, atol=1e-5)
    assert [r.num_rejected for r in also_told] == [r.num_rejected for r in told]
    assert sum(r.num_rejected for r in told) > 0


def test_counters_that_jump_are_not_believed():
    streamed, reports, _ = run("fedavg", "streaming", Noisy(jumps=2))
    assert [report.num_rejected for report in reports] == [0, 0, 0]
    # A batch a round: the jump of a million is nowhere.
    assert streamed.max() < 100


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda **base: AFedSV(judged(), **base), "AFedSV weighs all updates at once"),
        (lambda **base: RobustRule(Krum(), **base), "RobustRule weighs all updates at once"),
        (lambda **base: FedIF(judged(), **base), "Clip takes the median length"),
        (lambda **base: FedAvg(**base), "max_examples_ratio takes the median"),
        (
            lambda **base: FedAvg(
                stages=[NearestNeighbours(0.2)],
                **base | {"setup": replace(base["setup"], max_examples_ratio=0)},
            ),
            "NearestNeighbours looks for",
        ),
        (
            lambda **base: FedIF(
                judged(), stages=(), weighting=Weighting(round_normalization=False), **base
            ),
            "without round_normalization",
        ),
        (
            lambda **base: FedIF(
                judged(), stages=(), weighting=Weighting(bias_correction=True), **base
            ),
            "bias_correction",
        ),
        (
            lambda **base: FedIF(
                judged(), stages=(), callbacks=[PathAttribution(judged())], **base
            ),
            "PathAttribution looks at each client's update",
        ),
    ],
)
def test_what_needs_all_updates_says_so_before_anybody_is_asked(build, reason):
    strategy = build(fraction_evaluate=0.0, setup=Setup(aggregation="streaming", device="cpu"))
    with pytest.raises(ConfigError, match=f"aggregation = 'streaming': {reason}"):
        strategy.start(LocalGrid(Noisy(), CLIENTS), model_arrays(model()), num_rounds=1)


def test_auto_streams_where_updates_would_take_much_of_the_memory(monkeypatch):
    rows = {}
    for share in (0.25, 0.0):
        monkeypatch.setattr("fedif_flower.strategies.streaming.SHARE_OF_MEMORY", share)
        rows[share] = run("fedavg", "auto")[2].workspace.updates.shape[0]
    assert rows == {0.25: 4, 0.0: 1}


def test_auto_stacks_what_cannot_stream(monkeypatch):
    monkeypatch.setattr("fedif_flower.strategies.streaming.SHARE_OF_MEMORY", 0.0)
    strategy = RobustRule(
        Krum(), fraction_evaluate=0.0, setup=Setup(aggregation="auto", device="cpu")
    )
    strategy.start(LocalGrid(Noisy(), CLIENTS), model_arrays(model()), num_rounds=1)
    assert strategy.workspace.updates.shape[0] == CLIENTS


def test_an_unknown_mode_is_named():
    with pytest.raises(ConfigError, match="aggregation = 'flowing'; allowed: stacked, streaming"):
        run("fedavg", "flowing")


def test_a_rules_own_error_fails_the_round_and_blames_nobody():
    class Broken(FedAvg):
        def stream_rule(self, server_round):
            raise RuntimeError("out of order")

    strategy = Broken(
        fraction_evaluate=0.0,
        setup=Setup(aggregation="streaming", max_examples_ratio=0, device="cpu"),
    )
    with pytest.raises(TrainingFailedError, match="6 valid replies of 6"):
        strategy.start(LocalGrid(Noisy(), CLIENTS), model_arrays(model()), num_rounds=5)
    assert [report.num_rejected for report in strategy.history.rounds] == [0, 0, 0]
    assert "out of order" in strategy.history.rounds[0].reason


class OneByOne(LocalGrid):
    """Its nodes answer when their replies are looked at."""

    def send_and_receive(self, messages, *, timeout=None):
        for message_id in self.push_messages(messages):
            yield from self.pull_messages([message_id])


def test_one_reply_is_in_memory_at_a_time():
    """Where replies come one by one, each is in the sums before the next is asked for."""
    rounds: list[StreamedRound] = []
    summed: list[int] = []

    class Watching(Noisy):
        def __call__(self, message, context):
            summed.append(len(rounds[-1]))
            return super().__call__(message, context)

    class Kept(StreamedRound):
        def __init__(self, begin):
            super().__init__(begin)
            rounds.append(self)

    strategy = FedAvg(
        fraction_evaluate=0.0,
        setup=Setup(aggregation="streaming", max_examples_ratio=0, device="cpu"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedif_flower.strategies.screened.StreamedRound", Kept)
        strategy.start(OneByOne(Watching(), CLIENTS), model_arrays(model()), num_rounds=1)
    assert summed == list(range(CLIENTS))
