from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from client_app import app as client_app
from fedif_consortium.member.outgoing import LeavesSettings, OutgoingPolicy
from fedif_consortium.page import MAX_PAGE_BYTES, PAGE_HEAD
from fedif_consortium.statement.client_part import ACTION
from fedif_consortium.statement.manifest import ENVELOPE
from fedif_consortium.statement.member_pages import (
    MAX_STATEMENTS,
    UNWANTED,
    delivery,
    read_answer,
    write_statement,
)
from fedif_flower.errors import StorageError
from fedif_flower.runtime.local_grid import LocalGrid

PAGE = PAGE_HEAD.encode() + b"<title>hospital-2</title>"
SENT = {"page": PAGE, "manifest": b"{}"}


def send(content: RecordDict, **node_config: str):
    """Send a message to a node and return why it kept nothing; a guard lets that out."""
    grid = LocalGrid(client_app, 1, node_configs={0: node_config})
    message = Message(content, 1000, f"{MessageType.QUERY}.{ACTION}")
    (reply,) = grid.send_and_receive([message])
    guard = OutgoingPolicy(LeavesSettings(), None)
    return read_answer(guard.check(content, reply.content, 0, message.metadata.message_type))


def test_a_node_keeps_its_page_and_what_checks_it(tmp_path):
    folder = tmp_path / "statements"
    for _ in range(2):
        assert send(delivery(*SENT.values()), **{"statement-dir": str(folder)}) == ""
    assert len(list(folder.iterdir())) == 2
    for kept in folder.iterdir():
        files = {path.name: path.read_bytes() for path in kept.iterdir()}
        assert files == {"statement.html": PAGE, ENVELOPE: b"{}"}
    assert send(delivery(*SENT.values())) == UNWANTED


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"page": PAGE + b"x" * MAX_PAGE_BYTES}, "bytes; allowed: 1048576"),
        ({"page": b"<html><script>alert(1)</script>"}, "the policy that forbids scripts"),
        ({"page": PAGE + b"\xff"}, "no UTF-8"),
        ({"page": [1, 2]}, "holds no page"),
        ({"manifest": b"x" * (MAX_PAGE_BYTES + 1)}, "bytes; allowed: 1048576"),
        ({"path": "../../etc/passwd", "name": "/etc/passwd"}, ""),
    ],
)
def test_what_a_server_may_write_is_bounded(tmp_path, change, said):
    folder, content = (
        tmp_path / "statements",
        RecordDict({"statement": ConfigRecord(SENT | change)}),
    )
    refused = send(content, **{"statement-dir": str(folder)})
    assert said in refused
    assert bool(refused) == bool(said)
    # Whatever names the server sends: the node's own alone are used, in its own folder alone.
    assert {path.name for path in tmp_path.iterdir()} <= {"statements"}
    written = [path.relative_to(folder).as_posix() for path in folder.rglob("*.*")]
    assert all(name.startswith("statement-20") for name in written)
    assert bool(written) == (not said)


def test_a_full_folder_takes_no_more_and_loses_nothing(tmp_path):
    for number in range(MAX_STATEMENTS):
        (tmp_path / f"statement-{number}").mkdir()
    with pytest.raises(StorageError, match="holds 100 statements: move some away"):
        write_statement(delivery(PAGE, b"{}"), tmp_path)
    assert len(list(tmp_path.iterdir())) == MAX_STATEMENTS
