from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import httpx
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from client_app import app as client_app
from fedif_consortium.evidence.attempts import config_hash
from fedif_consortium.evidence.bound_rows import RUN_CONFIG
from fedif_consortium.evidence.keys import load_or_make_key
from fedif_consortium.member.outgoing import LeavesSettings, OutgoingPolicy
from fedif_consortium.page import MAX_PAGE_BYTES, PAGE_HEAD
from fedif_consortium.parts import server_parts
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.client_part import ACTION
from fedif_consortium.statement.manifest import ENVELOPE
from fedif_consortium.statement.member_pages import (
    MAX_STATEMENTS,
    UNWANTED,
    delivery,
    read_answer,
    write_statement,
)
from fedif_consortium.statement.part import Stated, deliver
from fedif_consortium.statement.undelivered import take_off_queue, write_undelivered
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from tests.consortium.statement.runs import make_run

PAGE = PAGE_HEAD.encode() + b"<title>hospital-2</title>"
REFRESH = b"<meta http-equiv='refresh' content='0;url=https://x.example'>"
SENT = {"page": PAGE, "manifest": b"{}"}


def send(content: RecordDict, **node_config: str):
    """Send a message to a node and return why it kept nothing; a guard lets that out."""
    grid = LocalGrid(client_app, 1, node_configs={0: node_config})
    message = Message(content, 1000, f"{MessageType.QUERY}.{ACTION}")
    (reply,) = grid.send_and_receive([message])
    guard = OutgoingPolicy(LeavesSettings(), None)
    return read_answer(guard.limit_reply(content, reply.content, 0, message.metadata.message_type))


def test_a_node_keeps_its_page_and_what_checks_it(tmp_path):
    folder = tmp_path / "statements"
    # The node was killed as it kept another one.
    (folder / ".statement-2026-01-01-000000-000000.0123abcd" / "members").mkdir(parents=True)
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
        ({"page": PAGE + REFRESH}, "has <meta>, which no statement has"),
        ({"page": PAGE + b"<form action='https://x.example'>"}, "has <form>, which no"),
        ({"page": PAGE + b"<A href='https://x.example' style='position:fixed'>"}, "has <A>, which"),
        # What one parser takes for a style sheet is an element to another.
        ({"page": PAGE + b"<svg><style><a href='https://x.example'>"}, "has <a>, which no"),
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


ROUNDS = [{0: 0.5, 1: 0.25, 2: 0.125}] * 5
NODE_IDS = {0: 1000, 1: 1001, 2: 1002}
NAMES = {1000: "hospital-1", 1001: "hospital-2", 1002: "hospital-3"}
# A run of real nodes counts its attempts. This is the run config that make_run writes.
AGREED = {"strategy": "fedif", "gamma": 0.3, "attribution": "simpson"}
ATTEMPT = {"run": "0" * 32, "config": config_hash(AGREED)}
COUNTED = {
    "run_id": ATTEMPT["run"],
    "attempts": {"name": "run", "attempts": [ATTEMPT]},
    RUN_CONFIG: AGREED,
}


@pytest.fixture
def run_dir(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # Not with the user's own key.
    folder = tmp_path / "runs" / "run"
    return make_run(folder, ROUNDS, names=NAMES, node_ids=NODE_IDS, provenance=COUNTED)


def grid(tmp_path: Path, client=client_app, **more) -> LocalGrid:
    """Three nodes, the first two of which have a folder for statements."""
    folders = {p: {"statement-dir": str(tmp_path / f"node-{p}")} for p in (0, 1)}
    return LocalGrid(client, 3, node_configs=folders, **more)


def state(grid: LocalGrid, run_dir: Path, **settings) -> None:
    given = RunConfig.defaults() | {"attribution": "simpson"} | settings
    config = RunConfig.from_run_config(given, server_parts())
    Stated().finished(SimpleNamespace(grid=grid, config=config, folder=RunFolder(run_dir)))


def pages_of(tmp_path: Path, partition: int) -> list[Path]:
    return sorted((tmp_path / f"node-{partition}").glob("*/statement.html"))


@pytest.mark.parametrize(
    ("key", "value"),
    [("statement.budget", "1000"), ("statement.pay-by", "draw"), ("statement.ties", "alike")],
)
def test_terms_of_pay_are_refused_where_there_will_be_no_statement(key, value):
    """The run would go on for hours, and end without one and without a word."""
    given = RunConfig.defaults() | {key: value}
    with pytest.raises(ConfigError, match=rf"{key} = '{value}'; allowed: '' with attribution ="):
        RunConfig.from_run_config(given, server_parts())
    RunConfig.from_run_config(given | {"attribution": "simpson"}, server_parts())


def test_each_node_gets_its_own_page_and_can_check_it(tmp_path, run_dir, caplog):
    caplog.set_level(logging.INFO, "fedif_flower")
    settings = {"statement.budget": "100", "statement.contact": "Ada Holm, room 7"}
    state(grid(tmp_path), run_dir, **settings)
    for partition, name in ((0, "hospital-1"), (1, "hospital-2")):
        (page,) = pages_of(tmp_path, partition)
        said = (f"{name}: your contribution", "Ada Holm, room 7", "28.57" if partition else "57.14")
        assert all(words in page.read_text() for words in said)
        assert not any(other in page.read_text() for other in NAMES.values() if other != name)
        assert verify(page).manifest.run == "run"
    assert not (run_dir / "undelivered.json").exists()  # The third wants none.
    assert "hospital-3 did not keep its statement: this node has no statement-dir" in caplog.text
    assert verify(run_dir).manifest.run == "run"


def test_a_node_that_is_away_gets_its_page_the_next_time_once(tmp_path, run_dir):
    state(grid(tmp_path, silent=[1]), run_dir)
    assert pages_of(tmp_path, 1) == []
    assert json.loads((run_dir / "undelivered.json").read_text()) == {"1001": "members/002.html"}
    for _ in range(2):
        deliver(grid(tmp_path), run_dir.parent)
    assert (len(pages_of(tmp_path, 0)), len(pages_of(tmp_path, 1))) == (1, 1)


def test_a_page_that_is_erased_while_pages_are_delivered_stays_erased(tmp_path, run_dir):
    state(grid(tmp_path, silent=[0, 1]), run_dir)
    assert take_off_queue(RunFolder(run_dir), {1002}) is False  # It wanted none, and got none.

    def meanwhile(message: Message, context):
        assert take_off_queue(RunFolder(run_dir), {1001})
        return client_app(message, context)

    deliver(grid(tmp_path, meanwhile, silent=[1]), run_dir.parent)
    assert len(pages_of(tmp_path, 0)) == 1
    assert not (run_dir / "undelivered.json").exists()


def test_a_superlink_that_fails_at_the_end_fails_no_run(tmp_path, run_dir, caplog, monkeypatch):
    request = httpx.Request("POST", "http://127.0.0.1:9091/pull")
    lost = httpx.HTTPStatusError("500", request=request, response=httpx.Response(500))
    broken = grid(tmp_path)
    monkeypatch.setattr(broken, "get_node_ids", Mock(side_effect=lost))
    state(broken, run_dir)
    assert f"{run_dir}: statements cannot be delivered: HTTPStatusError('500')" in caplog.text
    assert (run_dir / "statement").is_dir()
    assert set(json.loads((run_dir / "undelivered.json").read_text())) == {"1000", "1001", "1002"}


@pytest.mark.parametrize(
    "answer", [RecordDict({"statement": ConfigRecord({"refused": 5})}), RuntimeError("no")]
)
def test_a_hostile_node_stops_nothing(tmp_path, run_dir, answer):
    def odd(message: Message, context):
        if context.node_id != 1001:
            return client_app(message, context)
        if isinstance(answer, Exception):
            raise answer
        return Message(answer, reply_to=message)

    state(grid(tmp_path, odd), run_dir)
    assert len(pages_of(tmp_path, 0)) == 1
    assert set(json.loads((run_dir / "undelivered.json").read_text())) == {"1001"}


def test_a_run_without_a_statement_says_why_and_goes_on(tmp_path, run_dir, caplog):
    (run_dir / "attribution_rounds.csv").write_text("")
    state(grid(tmp_path), run_dir)
    assert "the run has no statement" in caplog.text
    assert not (run_dir / "statement").exists()


# A set that is not to be paid by: more of its labels are surely wrong than the loss allows for.
WRONG = {"corrected_noise": 0.0, "examples": 90, "noise": 0.3, "low": 0.2, "high": 0.4}


@pytest.fixture
def operator(tmp_path):
    return load_or_make_key(tmp_path / "operator.pem")


def deployed(tmp_path: Path, *, is_counted: bool = True, **more) -> Path:
    """A run of real nodes, whose attempts are counted, that ended without a statement."""
    provenance = {"held_out": WRONG, "run_id": "0" * 32}
    if is_counted:
        provenance |= COUNTED
    run = tmp_path / "runs" / "run"
    make_run(run, ROUNDS, names=NAMES, node_ids=NODE_IDS, provenance=provenance, **more)
    state(grid(tmp_path), run)
    assert not (run / "statement").exists()
    assert not (run / "undelivered.json").exists()
    return run


def test_pages_of_a_statement_that_came_later_are_delivered_by_the_next_run(
    tmp_path, run_dir, operator, caplog
):
    run_dir = deployed(tmp_path)
    assert "the run has no statement: the held-out set is not to be paid by" in caplog.text
    make_statement(run_dir, operator, accept_held_out=True)
    deliver(grid(tmp_path), run_dir.parent)
    for partition in (0, 1):
        (page,) = pages_of(tmp_path, partition)
        assert "pays by the held-out set all the same" in " ".join(page.read_text().split())
        assert verify(page).manifest.run == "run"
    assert not (run_dir / "undelivered.json").exists()


def test_a_statement_made_again_is_delivered_again_to_everybody(tmp_path, run_dir, operator):
    run_dir = deployed(tmp_path)
    make_statement(run_dir, operator, accept_held_out=True)
    deliver(grid(tmp_path, silent=[1]), run_dir.parent)
    assert [len(pages_of(tmp_path, partition)) for partition in (0, 1)] == [1, 0]
    make_statement(run_dir, operator, accept_held_out=True, budget_cents=700, again=True)
    deliver(grid(tmp_path), run_dir.parent)
    # Who was away gets the new page alone: 2/7 of the budget is the second member's.
    assert [len(pages_of(tmp_path, partition)) for partition in (0, 1)] == [2, 1]
    assert "2.00" in pages_of(tmp_path, 1)[0].read_text()


def test_a_statement_made_again_while_pages_are_delivered_is_delivered_too(
    tmp_path, run_dir, operator
):
    run_dir = deployed(tmp_path)
    make_statement(run_dir, operator, accept_held_out=True)

    def meanwhile(message: Message, context):
        if not (run_dir / "statement-1").exists():
            make_statement(run_dir, operator, accept_held_out=True, budget_cents=700, again=True)
        return client_app(message, context)

    deliver(grid(tmp_path, meanwhile), run_dir.parent)
    deliver(grid(tmp_path), run_dir.parent)
    assert [len(pages_of(tmp_path, partition)) for partition in (0, 1)] == [2, 2]


def test_pages_of_a_simulation_are_for_nobody(tmp_path, run_dir, operator):
    run_dir = deployed(tmp_path, is_counted=False)
    make_statement(run_dir, operator, accept_held_out=True)
    assert not (run_dir / "undelivered.json").exists()


def test_a_run_that_began_anew_has_no_page_to_deliver_yet(tmp_path, run_dir, caplog):
    state(grid(tmp_path, silent=[1]), run_dir)
    RunFolder(run_dir).begin()  # Its statement is set aside.
    deliver(grid(tmp_path), run_dir.parent)
    assert "cannot be delivered" not in caplog.text
    assert pages_of(tmp_path, 1) == []


def test_a_run_beside_another_one_may_have_delivered_everything_first(
    tmp_path, run_dir, caplog, monkeypatch
):
    """Its file is listed, and gone as it is looked at."""
    state(grid(tmp_path, silent=[1]), run_dir)
    glob = Path.glob

    def with_one_that_is_gone(folder: Path, pattern: str):
        if folder == run_dir.parent:
            yield folder / "gone" / "undelivered.json"
        yield from glob(folder, pattern)

    monkeypatch.setattr(Path, "glob", with_one_that_is_gone)
    deliver(grid(tmp_path), run_dir.parent)
    assert len(pages_of(tmp_path, 1)) == 1
    write_undelivered(RunFolder(run_dir), {})  # A second time.
    assert "cannot be delivered" not in caplog.text
