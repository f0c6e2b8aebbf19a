from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedif_flower.attacks import ATTACKS, Colluder
from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import ACCOMPLICE_KEY
from fedif_flower.run.collusion import Agreement, ColludingGrid
from fedif_flower.run.config import RunConfig
from fedif_flower.run.parts import run_parts
from fedif_flower.runtime.local_grid import LocalGrid


class SwapAndDouble(Colluder):
    """Each sends twice the update of the next one; with a draw, to see the generator."""

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        return 2 * updates.roll(-1, dims=0) + torch.rand((), generator=generator)


@pytest.fixture(autouse=True)
def more_attacks(monkeypatch):
    monkeypatch.setattr(ATTACKS, "built_in", {**ATTACKS.built_in, "swap": SwapAndDouble})


def reply_to(message: Message, values: list[float], *, accomplice: int | None) -> Message:
    arrays = ArrayRecord({"w": Array(torch.tensor(values).numpy())})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
    if accomplice is not None:
        content[ACCOMPLICE_KEY] = ConfigRecord({"partition-id": accomplice})
    return Message(content, reply_to=message)


def exchange(client, order=(1000, 1001, 1002, 1003)) -> dict[int, list[float]]:
    own = ClientConfig(attack="swap", seed=3, num_clients=4)
    grid = ColludingGrid(LocalGrid(client, 4), Agreement(own), ["w"], {})
    arrays = ArrayRecord({"w": Array(torch.tensor([1.0, 1.0]).numpy())})
    config = ConfigRecord({"server-round": 5})
    content = RecordDict({"arrays": arrays, "config": config})
    replies = grid.send_and_receive([Message(content, node, "train") for node in order])
    told = {r.metadata.src_node_id: r.content for r in replies if r.has_content()}
    assert all(ACCOMPLICE_KEY not in content for content in told.values())
    return {node: content["arrays"]["w"].numpy().tolist() for node, content in told.items()}


def worth(message, context) -> Message:
    """Partitions 1 and 3 collude; client p's update is [p, 10 p]."""
    partition = context.node_config["partition-id"]
    values = [1.0 + partition, 1.0 + 10 * partition]
    return reply_to(message, values, accomplice=partition if partition % 2 else None)


def test_accomplices_see_each_other_and_honest_replies_pass():
    values = exchange(worth)
    assert values[1000] == [1, 1]
    assert values[1002] == [3, 21]
    draw = values[1001][0] - 1 - 2 * 3  # the same in both: one generator for the round
    assert 0 <= draw < 1
    assert values[1001] == pytest.approx([1 + 6 + draw, 1 + 60 + draw])
    assert values[1003] == pytest.approx([1 + 2 + draw, 1 + 20 + draw])


def test_a_diverged_accomplice_and_one_that_fails_stop_nobody():
    def client(message, context):
        partition = context.node_config["partition-id"]
        if partition == 0:
            raise RuntimeError("out of memory")
        values = [float("nan"), 1.0] if partition == 1 else [1.0 + partition, 1.0]
        return reply_to(message, values, accomplice=partition)

    values = exchange(client)
    assert set(values) == {1001, 1002, 1003}
    assert values[1001][0] != values[1001][0]  # NaN, for the server to refuse
    draw = values[1002][1] - 1
    assert values[1002] == pytest.approx([1 + 2 * 3 + draw, 1 + draw])


class Counted(Colluder):
    """Each sends how often they have met, in a tensor that is written to."""

    def __init__(self) -> None:
        self.met = torch.zeros(2)

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        self.met += 1
        return self.met.expand_as(updates)


def test_a_run_that_goes_on_begins_with_what_accomplices_remembered_then(monkeypatch):
    monkeypatch.setattr(ATTACKS, "built_in", {"none": Colluder, "count": Counted})
    own = ClientConfig(attack="count", num_clients=4)

    def met(agreement: Agreement, server_round: int) -> float:
        return agreement.collude(torch.zeros(2), torch.zeros(1, 2), server_round, 0)[0, 0].item()

    whole = Agreement(own)
    assert [met(whole, t) for t in (1, 2, 4)] == [1, 2, 3]
    for last, known in ((4, 3), (3, 2)):  # The fourth round may not be part of the checkpoint.
        resumed = Agreement(own)
        resumed.restore([], whole.memory(last), last)
        assert [met(resumed, t) for t in (4, 5)] == [known + 1, known + 2]
    old = Agreement(own)
    old.restore([], None, 4)
    assert met(old, 5) == 1


class Averaging(Colluder):
    """Remembers a mean, which NumPy gives as a number of its own, and how often they met."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.met = 0

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        self.mean = np.mean([0.5, float(updates.norm())])
        self.met += 1
        return updates


def test_a_number_of_numpy_s_is_not_kept(monkeypatch):
    monkeypatch.setattr(ATTACKS, "built_in", {"none": Colluder, "average": Averaging})
    agreement = Agreement(ClientConfig(attack="average", num_clients=4))
    agreement.collude(torch.zeros(2), torch.zeros(1, 2), 1, 0)
    assert agreement.memory(1) == {"met": 1}


def test_a_quorum_which_would_close_rounds_without_accomplices_is_refused():
    settings = {"fraction-train": 1.0, "malicious-fraction": 0.3, "pace.quorum": 0.5}
    words = (
        r"^pace\.quorum = 0\.5; allowed: 0 with attack = 'alie': accomplices' updates come after"
    )
    with pytest.raises(ConfigError, match=words):
        RunConfig.from_run_config({**settings, "attack": "alie"}, run_parts())
    RunConfig.from_run_config({**settings, "attack": "sign-flip"}, run_parts())


class Handing(Colluder):
    """Hands back what it was made for."""

    answer: object = None

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "NoneType"),
        (np.zeros((2, 2)), r"NumPy array float64 \[2, 2\]"),
        (torch.zeros(2), r"float32 \[2\]"),
    ],
    ids=["nothing", "an array", "one for all"],
)
def test_what_accomplices_agree_on_are_as_many_updates(answer, words, monkeypatch):
    monkeypatch.setattr(Handing, "answer", answer)
    monkeypatch.setattr(ATTACKS, "built_in", {**ATTACKS.built_in, "swap": Handing})
    words = rf"attack 'swap' must return updates of shape \[2, 2\], not {words}"
    with pytest.raises(ConfigError, match=words):
        exchange(worth)
