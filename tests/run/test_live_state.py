"""``state.json``: what a run says of itself while it goes on."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest

from fedif_flower.errors import StorageError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.live_state import LiveState
from fedif_flower.strategies.callbacks import Question

NODES = [ClientNode(0, 70, name="Graz"), ClientNode(1, 71), ClientNode(2, 72)]


def test_it_says_who_was_asked_and_who_answered(tmp_path):
    live = LiveState(RunFolder(tmp_path), ExitStack())
    live.on_asked(Question(4, asked=NODES[:2], at_work=NODES[2:], online=NODES, paused={9, 8}))
    live.on_reply(4, NODES[0], failed=False)
    live.on_reply(4, NODES[1], failed=True)
    live.write()
    said = RunFolder(tmp_path).live.read()
    assert said["asked"][0] == {"client_id": 70, "partition_id": 0, "name": "Graz"}
    assert [node["client_id"] for node in said["at_work"]] == [72]
    expected = {"phase": "training", "round": 4, "num_asked": 2, "num_answered": 2}
    expected |= {"num_online": 3, "online": [70, 71, 72], "paused": [8, 9]}
    assert said.items() >= (expected | {"answered": [70], "failed": [71]}).items()


@pytest.mark.parametrize(
    ("error", "phase", "reason"),
    [
        (None, "finished", None),
        (StorageError("disk \x1b für Köln full"), "failed", "disk ? für Köln full"),
        (KeyboardInterrupt(), "stopped", None),
    ],
)
def test_its_last_word_is_how_the_run_ended(tmp_path, error, phase, reason):
    with suppress(StorageError, KeyboardInterrupt), ExitStack() as stack:
        LiveState(RunFolder(tmp_path), stack).on_start(None)
        if error is not None:
            raise error
    said = RunFolder(tmp_path).live.read()
    assert (said["phase"], said.get("reason")) == (phase, reason)
