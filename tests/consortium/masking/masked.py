"""Members of masked rounds for tests: honest ones, and some that spoil what they send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import nn

from fedif_consortium.masking import boxes
from fedif_consortium.masking.boxes import MaskingTerms, mask_update, trial_keys
from fedif_consortium.masking.part import trial_masking
from fedif_flower import Validation
from fedif_flower.messages.arrays import pack_array
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from fedif_flower.strategies.base import ScreenedStrategy
from fedif_flower.strategies.reports import RoundReport

MEMBERS = 6
FEATURES, CLASSES = 100, 20  # d = 2,020: lengths are known to 31 %.
_GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(60, FEATURES, generator=_GENERATOR)
TARGETS = torch.arange(60) % CLASSES


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def validation() -> Validation:
    return Validation(model(), INPUTS, TARGETS, device="cpu")


# Takes what a member was asked, and its update [d]; returns what it sends in its place.
Spoil = Callable[[Message, np.ndarray], RecordDict]


class Members:
    """A ClientApp: member p takes noise of its own as its update, and claims p + 1 examples.

    Without terms it sends the model with that noise added.
    """

    def __init__(self, spoil: Mapping[int, Spoil] | None = None, scale: float = 0.02) -> None:
        self.spoil, self.scale = spoil or {}, scale
        self.updates: dict[tuple[int, int], np.ndarray] = {}  # By round and partition.
        self.contents: dict[int, RecordDict] = {}  # By partition: what it sent last.

    def __call__(self, message: Message, context) -> Message:
        partition_id = int(context.node_config["partition-id"])
        settings, received = message.content["config"], message.content["arrays"]
        place = int(settings["server-round"]), partition_id
        update = self.updates[place] = self.update_of(*place, received)
        if MaskingTerms.read(settings) is None:
            content = moved(message, update)
        else:
            content = self.spoil.get(partition_id, masked)(message, update)
        claimed = {"num-examples": partition_id + 1, "train-loss": 1.0}
        content["metrics"] = MetricRecord(claimed)
        self.contents[partition_id] = content
        return Message(content, reply_to=message)

    def update_of(self, server_round: int, partition_id: int, received: ArrayRecord) -> np.ndarray:
        generator = np.random.default_rng([partition_id, server_round])
        size = sum(array.numpy().size for array in received.values())
        return (self.scale * generator.normal(size=size)).astype(np.float32)


def moved(message: Message, update: np.ndarray) -> RecordDict:
    """Return the model that was received and an update, as members send it without masks."""
    values = {name: array.numpy() for name, array in message.content["arrays"].items()}
    ends = np.cumsum([one.size for one in values.values()])
    pieces = zip(values.items(), np.split(update, ends[:-1]), strict=True)
    arrays = {name: pack_array(one + piece.reshape(one.shape)) for (name, one), piece in pieces}
    return RecordDict({"arrays": ArrayRecord(arrays)})


def masked(message: Message, update, stated: float | None = None, **bound: Any) -> RecordDict:
    """Mask an update as the server's terms say, but for what is given."""
    settings, node = message.content["config"], message.metadata.dst_node_id
    terms = MaskingTerms.read(settings)
    length = float(np.linalg.norm(update))
    if length > terms.max_length and stated is None:
        update = update * np.float32(terms.max_length / length)
    keeper, key = trial_keys(terms.trial_secret)
    header = {"run": terms.run, "server_round": int(settings["server-round"]), "node": node}
    sent = mask_update(update, keeper.public_key(), key, **header | bound)
    return content_of(sent.vector, sent.box, sent.length if stated is None else stated)


def content_of(vector: np.ndarray, box: bytes, length: float) -> RecordDict:
    return RecordDict(
        {
            "arrays": ArrayRecord({boxes.VECTOR: pack_array(vector)}),
            boxes.MASK_RECORD: ConfigRecord({boxes.BOX: box, boxes.LENGTH: length}),
        }
    )


class Faulty:
    """A keeper that does one thing otherwise than the one behind it."""

    def __init__(self, keeper: Any, **faults: Callable[..., Any]) -> None:
        self.keeper, self.faults = keeper, faults
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        true = getattr(self.keeper, name)
        self.asked.append(name)
        return (lambda *args: self.faults[name](true, *args)) if name in self.faults else true


def play(
    strategy_of: Callable[..., ScreenedStrategy],
    members: Members,
    *,
    is_masked: bool = True,
    rounds: int = 3,
    faults: Mapping[str, Callable[..., Any]] | None = None,
    num_members: int = MEMBERS,
    setup: Setup | None = None,
    **base: Any,
) -> tuple[ScreenedStrategy, torch.Tensor, list[RoundReport]]:
    """Run rounds; return the strategy, the model's vector [d] and the reports."""
    masking = trial_masking() if is_masked else None
    if masking is not None:
        masking = replace(masking, keeper=Faulty(masking.keeper, **(faults or {})))
    setup = replace(setup or Setup(device="cpu", max_failed_rounds=10), intake=masking)
    strategy = strategy_of(setup=setup, fraction_evaluate=0.0, **base)
    record = ArrayRecord({k: pack_array(v.numpy()) for k, v in model().state_dict().items()})
    strategy.start(LocalGrid(members, num_members), record, num_rounds=rounds)
    return strategy, strategy.model.vectors.params, strategy.history.rounds
