from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedif_flower.runtime.local_grid import LocalGrid
from tests.consortium.superlink.test_reply_guard import Flower
from tests.integration.protocol import packed

GRID = LocalGrid(lambda *_: None, 0)  # Messages need a task that sends them.
MIB = 1024 * 1024


def arrays(seed: int, layers: int = 8) -> ArrayRecord:
    generator = np.random.default_rng(seed)
    return ArrayRecord(
        {f"w{i}": Array(generator.random(MIB // 4, dtype=np.float32)) for i in range(layers)}
    )


@pytest.mark.all
def test_the_largest_reply_that_is_let_through_costs_three_models_at_most():
    message = Message(RecordDict({"arrays": arrays(0)}), 1000, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    metrics = MetricRecord({"m": [1] * 250_000, "n": 1})
    content = RecordDict({"arrays": arrays(1), "metrics": metrics})
    reply, _, contents = packed(Message(content, reply_to=message))
    flower = Flower()
    flower.send(message)
    assert flower.reply(reply)
    message_id, model = reply.metadata.message_id, sum(map(len, contents.values()))
    del reply, content, metrics, flower
    tracemalloc.start()
    try:
        # What is fetched from the SuperLink is copied here, so that it counts.
        fetched = {object_id: bytes(bytearray(data)) for object_id, data in contents.items()}
        inflate_object_from_contents(message_id, fetched)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * model, (peak / model, model)
