from __future__ import annotations

import pytest
from flwr.common.config import parse_config_args
from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve

from fedif_consortium.federation.documents import read_document
from fedif_consortium.federation.invitation import Answer, Invitation, key_fingerprint
from fedif_consortium.federation.members import invite
from fedif_consortium.federation.node import (
    NodeFolder,
    node_config_text,
    node_program,
)
from fedif_flower.errors import ConfigError
from fedif_flower.messages.node_config import NodeConfig
from tests.consortium.federation.folders import content, join_as


@pytest.fixture
def invitation(folder):
    return read_document(invite(folder, "hospital-a"), Invitation)


def after(words, option):
    return words[len(words) - 1 - words[::-1].index(option) + 1]


def test_a_host_makes_its_key_and_an_answer_without_it(tmp_path, invitation, capsys):
    join_as(tmp_path / "node", invitation)
    node = NodeFolder(tmp_path / "node")
    assert node.key.stat().st_mode & 0o777 == 0o600
    assert uses_nist_ec_curve(node.read_key().public_key())
    secret = node.key.read_text()
    others = [path for path in node.path.iterdir() if path != node.key]
    assert not any(secret.splitlines()[2] in path.read_text() for path in others)
    answer = read_document(node.answer("hospital-a"), Answer)
    answer.check()
    public = (node.path / "node.key.pub").read_text()
    assert answer.key == public.strip()
    told = capsys.readouterr().out
    for compared in (invitation.certificate_fingerprint, invitation.statement_key):
        assert compared in told
    assert key_fingerprint(public) in told


def test_what_a_node_says_of_itself(tmp_path, invitation):
    join_as(
        tmp_path / "node", invitation, config={"data-dir": "/srv/our data", "num-partitions": 9}
    )
    folder = NodeFolder(tmp_path / "node")
    _, config = folder.read()
    found = NodeConfig(**parse_config_args([node_config_text(config)]))
    assert (found.partition_id, found.num_partitions) == (0, 9)
    assert found.data_dir == "/srv/our data"
    assert found.statement_dir == str(folder.path / "statements")
    assert found.keeper_key is None


def test_a_program_is_flower_s_own_or_guarded_by_a_policy(tmp_path, invitation):
    join_as(tmp_path / "node", invitation)
    folder = NodeFolder(tmp_path / "node")
    program = node_program(folder, "", ["--trusted-entities", "keys.yaml", "--port", "9100"])
    words = list(program.options)
    assert program.module == "fedif_flower.runtime.supernode"
    assert after(words, "--superlink") == "localhost:9092"
    assert after(words, "--root-certificates") == str(folder.authority)
    assert after(words, "--auth-supernode-private-key") == str(folder.key)
    assert "--insecure" not in words
    assert words[-4:] == ["--trusted-entities", "keys.yaml", "--port", "9100"]
    policy = tmp_path / "policy.toml"
    with pytest.raises(ConfigError, match=r"policy\.toml is no file"):
        node_program(folder, str(policy), [])
    policy.touch()
    guarded = node_program(folder, str(policy), [])
    assert guarded.module == "fedif_consortium.member.guarded_supernode"
    assert list(guarded.options) == [str(policy), *words[:-4]]


def changed(invitation, **changes):
    return type(invitation)(**{**invitation.to_mapping(), **changes})


def test_a_damaged_invitation_is_refused_before_anything_is_made(tmp_path, invitation):
    with pytest.raises(ConfigError, match="certificate is no certificate in PEM"):
        join_as(tmp_path / "node", changed(invitation, certificate="none"))
    with pytest.raises(ConfigError, match=r"\[config\] data-dir = .*without apostrophes"):
        join_as(tmp_path / "node", invitation, config={"data-dir": "it's"})
    assert not (tmp_path / "node").exists()


def test_a_folder_serves_one_member_of_one_federation(tmp_path, invitation):
    join_as(tmp_path / "node", invitation)
    before = content(tmp_path / "node")
    with pytest.raises(ConfigError, match="'hospital-a' of 'consortium', not 'hospital-b'"):
        join_as(tmp_path / "node", changed(invitation, member="hospital-b"))
    (tmp_path / "node" / "ca.crt").write_text("another")
    with pytest.raises(ConfigError, match="is another certificate than the invitation's"):
        join_as(tmp_path / "node", invitation)
    (tmp_path / "node" / "ca.crt").write_bytes(before["ca.crt"])
    join_as(tmp_path / "node", invitation)
    assert content(tmp_path / "node") == before
