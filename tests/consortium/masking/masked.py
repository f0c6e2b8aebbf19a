"""Members of masked rounds for tests: honest ones, and some that spoil what they send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import nn

from fedif_consortium.masking.boxes import (
    BOX,
    LENGTH,
    MASK_RECORD,
    VECTOR,
    MaskingTerms,
    mask_update,
    trial_key,
)
from fedif_consortium.masking.workspace import trial_masking
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


def keeper_of(terms: MaskingTerms) -> X25519PublicKey:
    return X25519PublicKey.from_public_bytes(bytes.fromhex(terms.trial_keeper))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def validation() -> Validation:
    return Validation(model(), INPUTS, TARGETS, device="cpu")


# Takes a member's update [d] before it is masked.
Change = Callable[[np.ndarray], np.ndarray]
# Takes what is about to be sent, and the member itself, which may mask something else.
Spoil = Callable[["Members", Message, RecordDict], RecordDict | None]


class Members:
    """A ClientApp: member p takes noise of its own as its update, and claims p + 1 examples.

    Without terms it sends the model with that noise added.
    """

    def __init__(
        self,
        change: Mapping[int, Change] | None = None,
        spoil: Mapping[int, Spoil] | None = None,
        scale: float = 0.02,
    ) -> None:
        self.change, self.spoil, self.scale = change or {}, spoil or {}, scale
        self.updates: dict[tuple[int, int], np.ndarray] = {}  # By round and partition.
        self.contents: dict[int, RecordDict] = {}  # By partition: what it sent last.

    def __call__(self, message: Message, context) -> Message:
        partition_id = int(context.node_config["partition-id"])
        settings = message.content["config"]
        server_round = int(settings["server-round"])
        received = message.content["arrays"]
        update = self.update_of(partition_id, server_round, received)
        update = self.change.get(partition_id, lambda u: u)(update)
        terms = MaskingTerms.read(settings)
        metrics = MetricRecord({"num-examples": partition_id + 1, "train-loss": 1.0})
        if terms is None:
            content = RecordDict({"arrays": self.moved(received, update), "metrics": metrics})
        else:
            self.updates[server_round, partition_id] = update
            content = self.masked(message, update)
        if terms is not None and partition_id in self.spoil:
            content = self.spoil[partition_id](self, message, content) or content
        content["metrics"] = metrics
        self.contents[partition_id] = content
        return Message(content, reply_to=message)

    def update_of(self, partition_id: int, server_round: int, received: ArrayRecord) -> np.ndarray:
        generator = np.random.default_rng([partition_id, server_round])
        size = sum(array.numpy().size for array in received.values())
        return (self.scale * generator.normal(size=size)).astype(np.float32)

    def moved(self, received: ArrayRecord, update: np.ndarray) -> ArrayRecord:
        arrays, start = {}, 0
        for name, array in received.items():
            values = array.numpy()
            own = update[start : start + values.size].reshape(values.shape)
            arrays[name] = pack_array(values + own)
            start += values.size
        return ArrayRecord(arrays)

    def masked(
        self,
        message: Message,
        update: np.ndarray,
        *,
        stated: float | None = None,
        signer: int | None = None,
        **bound: Any,
    ) -> RecordDict:
        """Mask an update as the server's terms say, but for what is given."""
        settings = message.content["config"]
        terms = MaskingTerms.read(settings)
        assert terms is not None
        length = float(np.linalg.norm(update))
        if length > terms.max_length and stated is None:
            update = update * np.float32(terms.max_length / length)
        node = message.metadata.dst_node_id
        header = {"run": terms.run, "server_round": int(settings["server-round"]), "node": node}
        sent = mask_update(
            update,
            keeper_of(terms),
            trial_key(terms.trial_secret, node if signer is None else signer),
            **header | bound,
        )
        return content_of(sent.vector, sent.box, sent.length if stated is None else stated)


def content_of(vector: np.ndarray, box: bytes, length: float) -> RecordDict:
    return RecordDict(
        {
            "arrays": ArrayRecord({VECTOR: pack_array(vector)}),
            MASK_RECORD: ConfigRecord({BOX: box, LENGTH: length}),
        }
    )


def vector_of(content: RecordDict) -> np.ndarray:
    return content["arrays"][VECTOR].numpy().copy()


class Faulty:
    """A keeper that does one thing otherwise than the one behind it."""

    def __init__(self, keeper: Any, **faults: Callable[..., Any]) -> None:
        self.keeper, self.faults = keeper, faults
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*args: Any) -> Any:
            self.asked.append(name)
            true = getattr(self.keeper, name)
            return self.faults[name](true, *args) if name in self.faults else true(*args)

        return ask


def play(
    strategy_of: Callable[..., ScreenedStrategy],
    members: Members,
    *,
    masked: bool = True,
    rounds: int = 3,
    faults: Mapping[str, Callable[..., Any]] | None = None,
    num_members: int = MEMBERS,
    **base: Any,
) -> tuple[ScreenedStrategy, torch.Tensor, list[RoundReport]]:
    """Run rounds; return the strategy, the model's vector [d] and the reports."""
    masking = trial_masking() if masked else None
    if masking is not None:
        masking = replace(masking, keeper=Faulty(masking.keeper, **(faults or {})))
    setup = base.pop("setup", Setup(device="cpu", max_failed_rounds=10))
    strategy = strategy_of(setup=replace(setup, intake=masking), fraction_evaluate=0.0, **base)
    record = ArrayRecord({k: pack_array(v.numpy()) for k, v in model().state_dict().items()})
    strategy.start(LocalGrid(members, num_members), record, num_rounds=rounds)
    return strategy, strategy.model.vectors.params, strategy.history.rounds
