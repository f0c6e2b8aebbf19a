from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from client_app import app as client_app
from fedif_consortium.parts import server_parts
from fedif_consortium.statement.part import deliver, state_and_deliver
from fedif_consortium.statement.verify import verify
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from tests.consortium.statement.runs import make_run

ROUNDS = [{0: 0.5, 1: 0.25, 2: 0.125}] * 5
NODE_IDS = {0: 1000, 1: 1001, 2: 1002}
NAMES = {1000: "hospital-1", 1001: "hospital-2", 1002: "hospital-3"}


@pytest.fixture(autouse=True)
def own_key(tmp_path, monkeypatch):
    """Keep the key away from the user's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def run_dir(tmp_path) -> Path:
    return make_run(tmp_path / "runs" / "run", ROUNDS, names=NAMES, node_ids=NODE_IDS)


def grid(tmp_path: Path, client=client_app, **more) -> LocalGrid:
    """Three nodes, the first two of which have a folder for statements."""
    folders = {p: {"statement-dir": str(tmp_path / f"node-{p}")} for p in (0, 1)}
    return LocalGrid(client, 3, node_configs=folders, **more)


def config(**overrides) -> RunConfig:
    return RunConfig.from_run_config(RunConfig.defaults() | overrides, server_parts())


def pages(tmp_path: Path, partition: int) -> list[Path]:
    return sorted((tmp_path / f"node-{partition}").glob("*/statement.html"))


def test_each_node_gets_its_own_page_and_can_check_it(tmp_path, run_dir, caplog):
    caplog.set_level(logging.INFO, "fedif_flower")
    settings = {"statement.budget": "100", "statement.contact": "Ada Holm, room 7"}
    state_and_deliver(grid(tmp_path), config(**settings), RunFolder(run_dir))
    for partition, name in ((0, "hospital-1"), (1, "hospital-2")):
        (page,) = pages(tmp_path, partition)
        assert f"{name}: your contribution" in page.read_text()
        assert "57.14" in pages(tmp_path, 0)[0].read_text()
        assert not any(other in page.read_text() for other in NAMES.values() if other != name)
        assert "Ada Holm, room 7" in page.read_text()
        assert verify(page).manifest.run == "run"
    assert not (run_dir / "undelivered.json").exists()  # The third wants none.
    assert "hospital-3 did not keep its statement: this node has no statement-dir" in caplog.text
    assert verify(run_dir).manifest.run == "run"


def test_a_node_that_is_away_gets_its_page_the_next_time_once(tmp_path, run_dir):
    state_and_deliver(grid(tmp_path, silent=[1]), config(), RunFolder(run_dir))
    assert pages(tmp_path, 1) == []
    assert json.loads((run_dir / "undelivered.json").read_text()) == {"1001": "members/002.html"}
    deliver(grid(tmp_path), run_dir.parent)
    assert len(pages(tmp_path, 1)) == 1
    deliver(grid(tmp_path), run_dir.parent)
    assert (len(pages(tmp_path, 0)), len(pages(tmp_path, 1))) == (1, 1)


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

    state_and_deliver(grid(tmp_path, odd), config(), RunFolder(run_dir))
    assert len(pages(tmp_path, 0)) == 1
    assert set(json.loads((run_dir / "undelivered.json").read_text())) == {"1001"}


def test_a_run_without_a_statement_says_why_and_goes_on(tmp_path, run_dir, caplog):
    (run_dir / "attribution_rounds.csv").write_text("")
    state_and_deliver(grid(tmp_path), config(), RunFolder(run_dir))
    assert "the run has no statement" in caplog.text
    assert not (run_dir / "statement").exists()
