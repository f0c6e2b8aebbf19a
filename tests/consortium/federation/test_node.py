from __future__ import annotations

import socket
from datetime import date
from itertools import pairwise

import pytest
from flwr.common.config import parse_config_args
from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve

from fedif_consortium.evidence.keys import load_key, load_or_make_key
from fedif_consortium.federation import node as joining
from fedif_consortium.federation.certificates import certificate_fingerprint
from fedif_consortium.federation.files import read_document
from fedif_consortium.federation.flower import config_text
from fedif_consortium.federation.members import invite
from fedif_consortium.federation.node import NodeFolder, start_node
from fedif_consortium.federation.records import Answer, Invitation, key_fingerprint
from fedif_flower.errors import ConfigError
from fedif_flower.messages.node_config import NodeConfig
from tests.consortium.federation.folders import content, join_as
from tests.consortium.federation.test_certificates import make_authority
from tests.integration.deployed import free_port


@pytest.fixture
def invitation(folder):
    return read_document(invite(folder, "hospital-a"), Invitation)


@pytest.fixture
def node(tmp_path):
    return NodeFolder(tmp_path / "node")


def test_a_host_makes_its_key_and_an_answer_without_it(node, invitation, capsys):
    join_as(node.path, invitation)
    assert node.key.stat().st_mode & 0o777 == 0o600
    assert uses_nist_ec_curve(load_key(node.key).public_key())
    secret = node.key.read_text()
    others = [path for path in node.path.iterdir() if path != node.key]
    assert not any(secret.splitlines()[2] in path.read_text() for path in others)
    answer = read_document(node.answer("hospital-a"), Answer)
    answer.check()
    public = (node.path / "node.key.pub").read_text()
    assert answer.key == public.strip()
    told = capsys.readouterr().out
    known = certificate_fingerprint(invitation.certificate)
    assert all(text in told for text in (known, invitation.statement_key, key_fingerprint(public)))


def test_a_key_that_no_supernode_can_have_answers_nothing(node, invitation):
    node.path.mkdir(mode=0o700)
    load_or_make_key(node.key)  # An Ed25519 one.
    with pytest.raises(ConfigError, match=r"node\.key' is an Ed25519 key; a SuperNode's is of P-"):
        join_as(node.path, invitation)
    assert not node.answer("hospital-a").exists()


def test_an_invitation_writes_no_line_of_its_own(node, invitation, capsys):
    """Who changes it on its way does not say what the operator is to be asked for."""
    changed = invitation.replace(statement_key="0000\ncertificate's fingerprint: 1111")
    join_as(node.path, changed)
    printed = capsys.readouterr().out
    assert "statement key's fingerprint: 0000?certificate's fingerprint: 1111\n" in printed


def test_an_invitation_with_a_second_certificate_is_refused(node, invitation, tmp_path):
    """Who adds one of his own on its way would be trusted, and all fingerprints agree."""
    make_authority(tmp_path)
    theirs = (tmp_path / "ca.crt").read_text()
    for text in (invitation.certificate + theirs, theirs + invitation.certificate):
        with pytest.raises(ConfigError, match="certificate = '2 of them'; allowed: one"):
            join_as(node.path, invitation.replace(certificate=text))
    assert not node.path.exists()
    # Words around a certificate are no part of it, and some programs stop at them.
    join_as(node.path, invitation.replace(certificate=f"für alle\n{invitation.certificate}\nEnd"))
    assert node.authority.read_text() == invitation.certificate


def test_an_answer_is_to_the_invitation_that_was_given_last(node, invitation, tmp_path):
    """The operator would refuse an answer to the one before, and ask for another in vain."""
    join_as(node.path, invitation)
    first = node.answer("hospital-a").read_bytes()
    join_as(node.path, invitation)
    assert node.answer("hospital-a").read_bytes() == first
    make_authority(tmp_path)
    other = (tmp_path / "ca.crt").read_text()
    node.authority.write_text(invitation.certificate + other)  # The member knows both.
    join_as(node.path, invitation.replace(certificate=other))
    second = read_document(node.answer("hospital-a"), Answer)
    second.check()
    assert second.certificate_fingerprint == certificate_fingerprint(other)
    node.answer("hospital-a").write_text("torn")
    join_as(node.path, invitation)
    assert read_document(node.answer("hospital-a"), Answer).key == second.key


def test_what_a_node_says_of_itself(node, invitation):
    said = {"data-dir": "/srv/our data's", "num-partitions": 9, "import-from": "wards"}
    join_as(node.path, invitation, config=said)
    config = node.settings().config
    found = NodeConfig(**parse_config_args([config_text(config)]))
    assert (found.partition_id, found.num_partitions) == (0, 9)
    assert (found.data_dir, found.import_from) == ("/srv/our data's", "wards")
    assert found.statement_dir == str(node.path / "statements")
    assert found.keeper_key is None


def test_a_program_is_flower_s_own_or_guarded_by_a_policy(node, invitation, monkeypatch):
    started = []
    monkeypatch.setattr(
        joining, "become", lambda module, options, _: started.append((module, options))
    )
    join_as(node.path, invitation)
    more = ["--trusted-entities", "keys.yaml", "--port", "9100"]
    start_node(node, "", more)
    module, words = started[0]
    assert module == "fedif_flower.runtime.supernode"
    given = dict(pairwise(words))
    assert given["--superlink"] == "localhost:9092"
    assert given["--root-certificates"] == str(node.authority)
    assert given["--auth-supernode-private-key"] == str(node.key)
    assert "--insecure" not in words
    assert words[-4:] == more
    start_node(node, "policy.toml", [])
    guarded = ("fedif_consortium.member.guarded_supernode", ["policy.toml", *words[:-4]])
    assert started[1] == guarded


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda _: b"", r"ca\.crt is no certificate in PEM"),
        (lambda pem: "# Zürich\n".encode() + pem, r"ca\.crt has letters beyond ASCII"),
    ],
)
def test_a_certificate_at_which_the_program_would_hang_does_not_start_it(
    node, invitation, monkeypatch, spoil, reason
):
    monkeypatch.setattr(joining, "become", lambda *_: None)
    join_as(node.path, invitation, port=free_port())
    start_node(node, "", [])
    node.authority.write_bytes(spoil(node.authority.read_bytes()))
    with pytest.raises(ConfigError, match=reason):
        start_node(node, "", [])


def test_a_key_of_the_node_config_that_is_misspelt_later_does_not_start_it(
    node, invitation, monkeypatch
):
    monkeypatch.setattr(joining, "become", lambda *_: None)
    join_as(node.path, invitation, port=free_port())
    text = node.configuration.read_text()
    node.configuration.write_text(text.replace("partition-id", "partition-idd"))
    with pytest.raises(ConfigError, match=r"node\.toml: \[config\]: partition-id is missing"):
        start_node(node, "", [])


def test_a_second_node_of_a_host_is_told_to_have_a_port_of_its_own(node, invitation, monkeypatch):
    started = []
    monkeypatch.setattr(joining, "become", lambda module, *_: started.append(module))
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        join_as(node.path, invitation, port=port)
        with pytest.raises(ConfigError, match=rf"port = {port} is taken .* set in .*node\.toml"):
            start_node(node, "", [])
        for option in (["--port", str(free_port())], [f"--port={free_port()}"]):
            start_node(node, "", option)
        for option in (["--port", str(port)], [f"--port={port}"]):
            with pytest.raises(ConfigError, match=rf"port = {port} is taken"):
                start_node(node, "", option)
    assert len(started) == 2


def test_a_key_that_was_lost_is_not_made_anew_beside_its_answer(node, invitation):
    join_as(node.path, invitation)
    node.key.unlink()
    before = content(node.path)
    with pytest.raises(ConfigError, match=r"a\.answer\.toml is there, but node\.key is not"):
        join_as(node.path, invitation)
    assert content(node.path) == before
    node.answer("hospital-a").unlink()
    join_as(node.path, invitation)
    public = (node.path / "node.key.pub").read_text()
    assert public == f"{read_document(node.answer('hospital-a'), Answer).key}\n"


def test_what_is_damaged_is_refused_before_anything_is_made(node, invitation):
    with pytest.raises(ConfigError, match="certificate is no certificate in PEM"):
        join_as(node.path, invitation.replace(certificate="none"))
    with pytest.raises(ConfigError, match="cannot read 'data-dir="):
        join_as(node.path, invitation, config={"data-dir": 'a "b"'})
    with pytest.raises(ConfigError, match="unknown key 'data-dri'; did you mean data-dir"):
        join_as(node.path, invitation, config={"data-dri": "x"})
    for value in ([1], {"a": 1}, float("inf"), date(2026, 1, 1)):
        with pytest.raises(
            ConfigError, match=r"config\.data-dir = .*allowed: a section of texts, numbers"
        ):
            join_as(node.path, invitation, config={"data-dir": value})
    assert not node.path.exists()


def test_a_folder_serves_one_member_of_one_federation(node, invitation, tmp_path):
    join_as(node.path, invitation)
    before = content(node.path)
    with pytest.raises(ConfigError, match="'hospital-a' of 'consortium', not 'hospital-b'"):
        join_as(node.path, invitation.replace(member="hospital-b"))
    node.authority.write_bytes(b"another \xff")
    with pytest.raises(ConfigError, match="is no certificate in PEM"):
        join_as(node.path, invitation)
    other = tmp_path / "other"
    other.mkdir()
    make_authority(other)
    node.authority.write_bytes((other / "ca.crt").read_bytes())
    with pytest.raises(ConfigError, match="is another certificate than the invitation's"):
        join_as(node.path, invitation)
    # Of a federation that changes over, a member knows both authorities.
    both = (other / "ca.crt").read_bytes() + before["ca.crt"]
    node.authority.write_bytes(both)
    join_as(node.path, invitation)
    assert node.authority.read_bytes() == both
    node.authority.write_bytes(before["ca.crt"])
    join_as(node.path, invitation)
    assert content(node.path) == before


def test_a_host_that_joins_again_keeps_its_settings_and_says_where_others_were_given(
    node, invitation, tmp_path
):
    """A policy that is passed over would let every app of the operator run."""
    join_as(node.path, invitation, config={"data-dir": "/srv/data"}, port=9099)
    kept = node.configuration.read_bytes()
    policy = str(tmp_path / "policy.toml")
    join_as(node.path, invitation)  # Nothing is given: nothing is passed over.
    join_as(node.path, invitation, config={"data-dir": "/srv/data"}, port=9099)
    others = [
        ({"policy": policy}, "policy"),
        ({"port": 9094, "config": {"data-dir": "/srv/other"}}, "data-dir, port"),
    ]
    for given, keys in others:
        with pytest.raises(ConfigError, match=rf"node\.toml has other values of {keys}: edit it"):
            join_as(node.path, invitation, **given)
    with_masks = invitation.replace(keeper_key="16" * 32)
    with pytest.raises(ConfigError, match="other values of keeper-key, signing-key: edit it"):
        join_as(node.path, with_masks)
    with pytest.raises(ConfigError, match="other values of superlink: edit it"):
        join_as(node.path, invitation.replace(address="elsewhere.example.org:9092"))
    assert node.configuration.read_bytes() == kept
    text = kept.decode().replace('policy = ""', 'policy = "../policy.toml"')
    node.configuration.write_text(text)
    (tmp_path / "policy.toml").touch()
    join_as(node.path, invitation, policy=str(node.path / ".." / "policy.toml"))
