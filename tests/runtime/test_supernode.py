from __future__ import annotations

import socket
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from httpx import Request, Response

from fedif_consortium.member import guarded_supernode
from fedif_flower.runtime import supernode
from fedif_flower.runtime.supernode import NOT_KNOWN, NOT_LET_IN, say_why_it_is_refused

CONNECTION = import_module("flwr.supernode.fleet_http_connection")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([("pull-messages", 401), ("send-node-heartbeat", 401)], [NOT_KNOWN]),
        ([("activate-node", 412)], [NOT_LET_IN]),
        ([("activate-node", 200), ("pull-messages", 503), ("push-messages", 412)], []),
    ],
)
def test_a_node_whose_key_is_not_registered_is_told_so_once(monkeypatch, caplog, answers, said):
    monkeypatch.setattr(CONNECTION, "NodeAuthHttpInterceptor", CONNECTION.NodeAuthHttpInterceptor)
    say_why_it_is_refused()
    key = ec.generate_private_key(ec.SECP256R1())
    signing = CONNECTION.NodeAuthHttpInterceptor(key, key.public_key())
    for name, status in answers:
        context = SimpleNamespace(request=Request("POST", f"https://a/v1/fleet/{name}"))
        answer = Response(status)
        assert signing.intercept(context, lambda _, answer=answer: answer) is answer
    assert [record.getMessage() for record in caplog.records] == said


@pytest.mark.parametrize("guarded", [False, True])
def test_what_keeps_a_node_from_starting_is_a_sentence(monkeypatch, tmp_path, guarded):
    policy = tmp_path / "policy.toml"
    policy.touch()
    module = guarded_supernode if guarded else supernode
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        words = [*([str(policy)] if guarded else []), "--insecure", "--port", port]
        monkeypatch.setattr(sys, "argv", ["supernode", *words])
        with pytest.raises(SystemExit, match=f"error: this node cannot listen .*{port}: .*in use"):
            module.main()
    monkeypatch.setenv("FEDIF_LOG_FORMAT", "xml")
    monkeypatch.setattr(sys, "argv", ["supernode", str(policy)])
    with pytest.raises(SystemExit, match="error: FEDIF_LOG_FORMAT = 'xml'"):
        module.main()
