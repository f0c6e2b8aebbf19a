"""A member masks for the keeper whom its own node config names, or sends nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from torch import nn

from fedif_consortium.evidence.keys import load_or_make_key
from fedif_consortium.evidence.receipts import RECEIPTS_RECORD
from fedif_consortium.masking import boxes
from fedif_consortium.masking.masked_reply import (
    MASKING_KEY,
    MaskedReplies,
    content_hash,
    trained_update,
)
from fedif_consortium.parts import client_parts
from fedif_flower.client.app import task_app
from fedif_flower.errors import ConfigError
from fedif_flower.messages import instructions as instructed
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.models import model_arrays, tensor_arrays
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import Status
from fedif_flower.runtime.local_grid import LocalGrid
from tests.consortium.masking.masked import TASK, model

KEEPER = X25519PrivateKey.generate()
NODE_ID = 1000


def terms(keys, **changes) -> boxes.MaskingTerms:
    return boxes.MaskingTerms(run=5, keys=keys, **changes)


@pytest.fixture
def member(tmp_path):
    """A node's config that names a keeper, and the key that it signs with."""
    path = tmp_path / "member.pem"
    key = load_or_make_key(path)
    keeper = KEEPER.public_key().public_bytes_raw().hex()
    return {"keeper-key": keeper, "signing-key": str(path)}, key


def ask(node, beside: RecordDict | None = None, told_terms=True, secret="", **config) -> Message:
    """Have a member train on what a server sends, and return its reply."""
    settings = ClientConfig(num_clients=2, device="cpu", **config)
    told = instructed.instructions(settings, TASK, run="r")
    told[instructed.ROUND_KEY] = 3
    if told_terms:
        told[boxes.TERMS_KEY] = terms(
            ["weight", "bias"], trial_secret=secret, server_round=3
        ).model_dump_json()
    content = {"config": told, "arrays": model_arrays(model()), **(beside or {})}
    node_configs = {0: {"partition-id": 0, "num-partitions": 2, **node}}
    grid = LocalGrid(task_app(TASK, parts=client_parts()), 1, node_configs=node_configs)
    (reply,) = grid.send_and_receive([Message(RecordDict(content), NODE_ID, MessageType.TRAIN)])
    return reply


def vector_beside(value: float) -> RecordDict:
    arrays = tensor_arrays({instructed.VECTOR_KEY: torch.full((2020,), value)})
    return RecordDict({instructed.VECTOR_RECORD: arrays})


def test_a_masked_reply_is_the_vector_its_box_for_the_nodes_own_keeper_and_three_figures(member):
    node, key = member
    content = ask(node).content
    assert {name: sorted(record) for name, record in content.items()} == {
        "arrays": [boxes.VECTOR],
        boxes.MASK_RECORD: [boxes.BOX, boxes.LENGTH],
        "metrics": ["num-examples", "train-loss", "train-seconds"],
    }
    box = content[boxes.MASK_RECORD][boxes.BOX]
    assert boxes.read_header(box)[:4] == (5, 3, NODE_ID, 2020)
    assert len(boxes.open_box(box, key.public_key(), KEEPER)) == 32


@pytest.mark.parametrize(
    ("named", "asked", "reason"),
    [
        (True, {"told_terms": False}, "masking.mode = 'off'; allowed: 'keeper' where"),
        (True, {"secret": "01" * 32}, "masking.mode = 'trial'; allowed"),
        (False, {}, "masking.mode = 'keeper'; allowed"),
        # SCAFFOLD's change of its control variate is the update, and leaves without a mask.
        (True, {"local_method": "scaffold"}, "local-method = 'scaffold'"),
        # Remembers rounds in which members may have got other models.
        (True, {"local_method": "moon"}, "local-method = 'moon'"),
        (True, {"local_method": "fedif_studies.local_methods.fedcorr:FedCorr"}, "local-method = "),
        # Malicious by their partition, all but one member would send what the server knows.
        (True, {"attack": "sign-flip", "malicious_fraction": 0.5}, "attack = 'sign-flip'"),
    ],
)
def test_a_member_sends_nothing_unmasked_and_trains_honestly_by_sgd(member, named, asked, reason):
    reply = ask(member[0] if named else {}, vector_beside(0.0), **asked)
    assert reply.has_error()
    assert reason in reply.error.reason


def test_before_a_run_a_node_says_that_its_signing_key_cannot_be_read(member, tmp_path):
    """Otherwise it would fail in each round."""
    node = NodeConfig(partition_id=0, num_partitions=2, **member[0])
    asked = ConfigRecord({MASKING_KEY: "keeper"})
    [before] = MaskedReplies().checks(node, asked)
    assert (before.check, before.status) == ("masking", Status.OK)
    path = tmp_path / "member.pem"
    path.unlink()
    [after] = MaskedReplies().checks(node, asked)
    assert (after.check, after.status) == ("masking", Status.FAILED)
    assert after.words.startswith(f"signing-key = {str(path)!r} cannot be read: ")


def test_all_that_a_server_sends_is_in_the_hash_that_everybody_got_the_same(member):
    same, other = vector_beside(0.0), vector_beside(1e6)
    receipts = RecordDict({**same, RECEIPTS_RECORD: ConfigRecord({"head": b"1"})})  # A member's.
    given = [
        ask(member[0], own).content[boxes.MASK_RECORD][boxes.BOX]
        for own in (same, same, receipts, other)
    ]
    first, again, with_receipts, another = (boxes.read_header(box).instructions for box in given)
    assert first == again == with_receipts != another
    settings = [RecordDict({"config": ConfigRecord({"a": value})}) for value in (1.0, 2.0)]
    models = [RecordDict({"arrays": model_arrays(nn.Linear(n, n))}) for n in (2, 3)]
    assert len({content_hash(one) for one in settings + models}) == 4


class Net(nn.Module):
    """A weight under two names, and a buffer that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(3.0))


KEYS = ["first.weight"]


def trained(by: float, table: float = 0.0, **changes) -> np.ndarray:
    net = Net()
    received = model_arrays(net)
    with torch.no_grad():
        net.first.weight += by
        net.table += table
    return trained_update(received, model_arrays(net), net, terms(KEYS, **changes))


def test_an_update_is_shortened_to_the_runs_bound():
    assert float(np.linalg.norm(trained(0.5, max_length=0.25))) == pytest.approx(0.25)
    assert trained(0.1, max_length=0.25).tolist() == pytest.approx([0.1] * 4)


def test_training_that_changes_more_than_parameters_is_an_error():
    with pytest.raises(ConfigError, match="training changed 'table'"):
        trained(0.5, table=1.0)


@pytest.mark.parametrize(
    ("net", "keys"),
    [
        pytest.param(Net(), [*KEYS, "third.weight"], id="one that the model does not have"),
        pytest.param(Net(), KEYS * 4, id="one four times"),
        pytest.param(Net(), [*KEYS, "second.weight"], id="one under its second name too"),
        pytest.param(nn.Linear(2, 2), ["bias", "weight"], id="another order"),
    ],
)
def test_a_server_that_names_other_parameters_gets_nothing(net, keys):
    with pytest.raises(ConfigError, match="other parameters than this client's model trains"):
        trained_update(model_arrays(net), model_arrays(net), net, terms(keys))
