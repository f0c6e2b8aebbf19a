"""Models that give every input the same answer: their loss may be low, and nothing follows on them.

A loss near ln 10 is less than that of an untrained model, and no client can train such a model
further, so a rule that looks at the loss alone may stay with it for ever. Each of four clients in
ten sends another one; what a processor's rounding makes of their sums must not matter.
"""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message

from client_app import app as client_app
from fedif_flower.messages.arrays import pack_array
from tests.strategies.named import config, run

CLASSES = 10


def spoiled(partition_id: int, name: str, trained: np.ndarray) -> np.ndarray:
    """Return what a client sends in place of an array that it trained."""
    of_outputs = trained.shape == (CLASSES,)
    of_hidden = trained.ndim == 1 and not of_outputs
    if partition_id == 0:
        return np.full_like(trained, 9e14)
    if partition_id == 1:
        return np.zeros_like(trained)
    if partition_id == 2 and of_hidden:
        return np.full_like(trained, -100.0)  # No ReLU gives anything.
    if partition_id == 3 and of_outputs:
        return np.linspace(1e4, 0.0, CLASSES, dtype=trained.dtype)  # Always the first class.
    return trained


def clients(message: Message, context: Context) -> Message:
    reply = client_app(message, context)
    partition_id = int(context.node_config["partition-id"])
    if message.metadata.message_type == "train" and partition_id < 4:
        ((record, arrays),) = reply.content.array_records.items()
        reply.content[record] = ArrayRecord(
            {
                name: pack_array(spoiled(partition_id, name, array.numpy()))
                for name, array in arrays.items()
            }
        )
    return reply


@pytest.mark.parametrize(
    ("strategy", "bounds"),
    [("fedif", "auto"), ("influence-descent", 0.0), ("fltrust", "auto"), ("afedsv", "auto")],
)
def test_constant_predictors_do_not_stop_training(tmp_path, strategy, bounds):
    settings = {"fraction-train": 1.0, "num-server-rounds": 4}
    own = {f"{strategy}.num-samples": 8} if "sv" in strategy or "s-" in strategy else {}
    chosen = config(
        tmp_path, strategy, **settings, **own, **{"update-clipping": bounds}, attack="none"
    )
    summary, _, _ = run(chosen, clients)
    assert summary["failed_rounds"] == 0
    assert summary["test_accuracy"] > 0.6
