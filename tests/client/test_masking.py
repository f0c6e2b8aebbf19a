"""A member masks for the keeper whom its own node config names, or sends nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import ConfigRecord
from torch import nn

from fedif_flower.client.masking import content_hash, member_masking, trained_update
from fedif_flower.errors import ConfigError, MaskingError
from fedif_flower.masking import UPDATE_BITS, decode, read_header
from fedif_flower.masking.boxes import check_signature, open_box, vector_digest
from fedif_flower.masking.masks import add_mask
from fedif_flower.messages.masking_terms import BOX, LENGTH, MASK_RECORD, VECTOR, MaskingTerms
from fedif_flower.messages.models import model_arrays
from fedif_flower.messages.node_config import NodeConfig

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
    return received, model


def test_the_keeper_of_the_node_config_and_nobody_else_gets_the_seed(member):
    config, key = member
    masking = member_masking(settings(terms()), config, NODE_ID)
    received, model = moved(0.5)
    sent = masking.masked(received, settings(terms()), model)
    vector, box = sent["arrays"][VECTOR].numpy().copy(), sent[MASK_RECORD][BOX]
    header = read_header(box)
    assert (header.run, header.server_round, header.node, header.length) == (5, 3, NODE_ID, 4)
    assert header.digest == vector_digest(vector)
    assert header.instructions == content_hash(received, settings(terms()))
    check_signature(box, key.public_key())
    add_mask(unmask := np.zeros(4, np.uint64), open_box(box, KEEPER))
    assert decode(vector - unmask, UPDATE_BITS).tolist() == pytest.approx([0.5] * 4)
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


def test_a_run_that_is_not_masked_needs_nothing():
    assert member_masking(settings(None), node(), NODE_ID) is None


def test_terms_that_cannot_be_read_are_the_servers_fault():
    with pytest.raises(ConfigError, match="the server's terms cannot be read"):
        member_masking(ConfigRecord({"masking": "{}"}), node(), NODE_ID)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"keeper-key": "12"}, "keeper-key = '12'; allowed: 64 hexadecimal digits"),
        ({"keeper-key": KEEPER_HEX}, "signing-key = None; allowed: a path, with keeper-key"),
    ],
)
def test_a_wrong_node_config_is_refused(changes, named):
    with pytest.raises(ConfigError, match=named):
        node(**changes)


@pytest.mark.parametrize(("content", "named"), [(None, "cannot be read"), (b"x", "no private key")])
def test_a_wrong_signing_key_is_named(tmp_path, content, named):
    path = tmp_path / "key"
    if content:
        path.write_bytes(content)
    config = node(**{"keeper-key": KEEPER_HEX, "signing-key": str(path)})
    with pytest.raises(ConfigError, match=f"signing-key = .*{path.name}.* {named}"):
        member_masking(settings(terms()), config, NODE_ID)


def test_an_update_is_shortened_to_the_runs_bound():
    update = trained_update(*moved(0.5), terms(max_length=0.25))
    assert float(np.linalg.norm(update)) == pytest.approx(0.25)
    assert trained_update(*moved(0.1), terms(max_length=0.25)).tolist() == pytest.approx([0.1] * 4)


def test_training_that_changes_more_than_parameters_is_an_error():
    received, model = moved(0.5)
    model.table += 1
    with pytest.raises(ConfigError, match="training changed 'table'"):
        trained_update(received, model, terms())


def test_parameters_that_the_model_does_not_have_are_an_error():
    with pytest.raises(ConfigError, match="no parameter 'third\\.weight'"):
        trained_update(*moved(0.5), terms(keys=["third.weight"]))


def test_nan_is_named_and_nothing_is_sent(member):
    masking = member_masking(settings(terms()), member[0], NODE_ID)
    received, model = moved(float("nan"))
    with pytest.raises(MaskingError, match="nan at place 0"):
        masking.masked(received, settings(terms()), model)


def test_a_node_keeps_its_own_updates_where_it_says(member, tmp_path):
    config = member[0].replace(own_updates_dir=str(tmp_path / "mine"))
    masking = member_masking(settings(terms()), config, NODE_ID)
    received, model = moved(0.5)
    masking.masked(received, settings(terms()), model)
    with np.load(tmp_path / "mine" / "0000000000000005" / "round-000003.npz") as kept:
        assert kept["update"].tolist() == pytest.approx([0.5] * 4)
        assert (int(kept["node_id"]), int(kept["partition_id"])) == (NODE_ID, 0)


def test_terms_come_back_as_they_were_sent():
    for own in (terms(), terms(max_length=2.5, trial_keeper="ab", trial_secret="cd")):
        assert MaskingTerms.read(settings(own)) == own


def test_another_model_or_setting_has_another_hash():
    received, model = moved(0.5)
    own = content_hash(received, settings(terms()))
    assert content_hash(received, settings(terms())) == own
    assert content_hash(received, settings(terms(max_length=2.0))) != own
    assert content_hash(model_arrays(model), settings(terms())) != own
