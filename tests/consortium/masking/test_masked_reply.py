"""A member masks for the keeper whom its own node config names, or sends nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from torch import nn

from fedif_consortium.evidence.receipts import RECEIPTS_RECORD
from fedif_consortium.masking.boxes import check_signature, open_box, read_header, vector_digest
from fedif_consortium.masking.masked_reply import content_hash, member_masking, trained_update
from fedif_consortium.masking.ring import UPDATE_BITS, decode, mask_of
from fedif_consortium.masking.terms import BOX, LENGTH, MASK_RECORD, VECTOR, MaskingTerms
from fedif_consortium.parts import client_parts
from fedif_flower.client.app import task_app
from fedif_flower.errors import ConfigError, MaskingError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import (
    ROUND_KEY,
    VECTOR_KEY,
    VECTOR_RECORD,
    instructions,
)
from fedif_flower.messages.models import model_arrays, tensor_arrays
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.task import Task

KEEPER = X25519PrivateKey.generate()
KEEPER_HEX = KEEPER.public_key().public_bytes_raw().hex()
NODE_ID = 77


class Net(nn.Module):
    """A weight under two names, and a buffer that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(3.0))


KEYS = ["first.weight"]


def terms(**changes) -> MaskingTerms:
    return MaskingTerms(**{"run": 5, "keys": KEYS, **changes})


def settings(own: MaskingTerms | None) -> ConfigRecord:
    record = ConfigRecord({"server-round": 3})
    if own is not None:
        own.write(record)
    return record


def sent_with(arrays, **changes) -> RecordDict:
    return RecordDict({"arrays": arrays, "config": settings(terms(**changes))})


def node(**changes) -> NodeConfig:
    return NodeConfig(**{"partition-id": 0, "num-partitions": 2, **changes})


@pytest.fixture
def member(tmp_path):
    """A node's config that names a keeper, and the key that it signs with."""
    key = Ed25519PrivateKey.generate()
    path = tmp_path / "member.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return node(**{"keeper-key": KEEPER_HEX, "signing-key": str(path)}), key


def moved(by: float) -> tuple:
    model = Net()
    received = model_arrays(model)
    with torch.no_grad():
        model.first.weight += by
    return received, model_arrays(model), model


def test_the_keeper_of_the_node_config_and_nobody_else_gets_the_seed(member):
    config, key = member
    masking = member_masking(settings(terms()), config, NODE_ID)
    received, trained, model = moved(0.5)
    update = trained_update(received, trained, model, terms())
    sent = masking.masked(sent_with(received), update)
    vector, box = sent["arrays"][VECTOR].numpy().copy(), sent[MASK_RECORD][BOX]
    header = read_header(box)
    assert (header.run, header.server_round, header.node, header.length) == (5, 3, NODE_ID, 4)
    assert header.digest == vector_digest(vector)
    assert header.instructions == content_hash(sent_with(received))
    check_signature(box, key.public_key())
    mask = mask_of(open_box(box, KEEPER), 4)
    assert decode(vector - mask, UPDATE_BITS).tolist() == pytest.approx([0.5] * 4)
    assert sent[MASK_RECORD][LENGTH] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("own", "named"),
    [
        (None, "masking = 'off': this node names a keeper"),
        (terms(trial_keeper=KEEPER_HEX, trial_secret="s"), "masking = 'trial': this node names"),
    ],
)
def test_a_node_that_names_a_keeper_sends_nothing_unmasked(member, own, named):
    with pytest.raises(ConfigError, match=named):
        member_masking(settings(own), member[0], NODE_ID)


def test_a_masked_run_needs_a_node_that_names_a_keeper():
    with pytest.raises(ConfigError, match="the node config needs keeper-key"):
        member_masking(settings(terms()), node(), NODE_ID)


def test_an_update_is_shortened_to_the_runs_bound():
    update = trained_update(*moved(0.5), terms(max_length=0.25))
    assert float(np.linalg.norm(update)) == pytest.approx(0.25)
    assert trained_update(*moved(0.1), terms(max_length=0.25)).tolist() == pytest.approx([0.1] * 4)


def test_training_that_changes_more_than_parameters_is_an_error():
    received, trained, model = moved(0.5)
    model.table += 1
    trained = model_arrays(model)
    with pytest.raises(ConfigError, match="training changed 'table'"):
        trained_update(received, trained, model, terms())


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        pytest.param(Net(), [*KEYS, "third.weight"], id="one that the model does not have"),
        pytest.param(Net(), KEYS * 4, id="one four times"),
        pytest.param(Net(), [*KEYS, "second.weight"], id="one under its second name too"),
        pytest.param(nn.Linear(2, 2), ["bias", "weight"], id="another order"),
    ],
)
def test_the_vector_has_the_models_own_parameters_once_and_in_their_order(model, keys):
    with pytest.raises(ConfigError, match="other parameters than this client's model trains"):
        trained_update(model_arrays(model), model_arrays(model), model, terms(keys=keys))


@pytest.mark.parametrize("by", [float("nan"), 3e20])
def test_an_update_that_no_mask_fits_is_an_error_that_tells_nothing_of_it(member, by):
    masking = member_masking(settings(terms()), member[0], NODE_ID)
    received, trained, model = moved(by)
    update = trained_update(received, trained, model, terms())
    with pytest.raises(MaskingError, match=r"^the update is not finite, or not shorter than 1024$"):
        masking.masked(sent_with(received), update)


# -- a server that deviates


def ask(node_config: NodeConfig, beside: RecordDict, **config) -> Message:
    """Have a member train on what a server sends, and return its reply."""
    task = Task(
        name="tiny",
        model=lambda: nn.Linear(2, 2),
        client_data=lambda site: (torch.eye(2), torch.arange(2)),
        validation_data=lambda site: (torch.eye(2), torch.arange(2)),
        test_data=lambda site: (torch.eye(2), torch.arange(2)),
        num_classes=2,
    )
    told = instructions(ClientConfig(num_clients=2, device="cpu", **config), task, run="r")
    told[ROUND_KEY] = 1
    terms(keys=["weight", "bias"]).write(told)
    torch.manual_seed(0)
    content = RecordDict({"config": told, "arrays": model_arrays(nn.Linear(2, 2)), **beside})
    own = {key: v for key, v in node_config.to_mapping().items() if v not in (None, "")}
    grid = LocalGrid(task_app(task, parts=client_parts()), 1, node_configs={0: own})
    (reply,) = grid.send_and_receive([Message(content, 1000, MessageType.TRAIN)])
    return reply


def beside(value: float) -> RecordDict:
    return RecordDict({VECTOR_RECORD: tensor_arrays({VECTOR_KEY: torch.full((6,), value)})})


def test_a_masked_reply_is_the_masked_vector_its_box_and_three_figures(member):
    content = ask(member[0], RecordDict()).content
    assert {name: sorted(record) for name, record in content.items()} == {
        "arrays": [VECTOR],
        MASK_RECORD: [BOX, LENGTH],
        "metrics": ["num-examples", "train-loss", "train-seconds"],
    }


@pytest.mark.parametrize(
    "config",
    [
        # SCAFFOLD's change of its control variate is the update, and leaves without a mask.
        {"local_method": "scaffold"},
        {"local_method": "moon"},  # Remembers rounds in which members may have got other models.
        {"local_method": "fedif_studies.local_methods.fedcorr:FedCorr"},
        # Malicious by their partition, all but one member would send what the server knows.
        {"attack": "sign-flip", "malicious_fraction": 0.5},
    ],
)
def test_a_masked_member_does_nothing_but_train_honestly_by_sgd(member, config):
    reply = ask(member[0], beside(0.0), **config)
    assert reply.has_error()
    assert "masking: " in reply.error.reason


def test_what_a_server_sends_beside_the_model_is_in_the_hash_that_everybody_got_the_same(member):
    boxes = [ask(member[0], own).content[MASK_RECORD][BOX] for own in map(beside, (0.0, 0.0, 1e6))]
    one, same, other = (read_header(box).instructions for box in boxes)
    assert one == same != other


def test_another_model_or_setting_has_another_hash():
    received, _, model = moved(0.5)
    own = content_hash(sent_with(received))
    assert content_hash(sent_with(received)) == own
    assert content_hash(sent_with(received, max_length=2.0)) != own
    assert content_hash(sent_with(model_arrays(model))) != own
    # Each member has its own.
    receipts = RecordDict({RECEIPTS_RECORD: ConfigRecord({"head": b"1"})})
    assert content_hash(RecordDict({**sent_with(received), **receipts})) == own
