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


@pytest.fixture
def run_dir(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # Not with the user's own key.
    return make_run(tmp_path / "runs" / "run", ROUNDS, names=NAMES, node_ids=NODE_IDS)


def grid(tmp_path: Path, client=client_app, **more) -> LocalGrid:
    """Three nodes, the first two of which have a folder for statements."""
    folders = {p: {"statement-dir": str(tmp_path / f"node-{p}")} for p in (0, 1)}
    return LocalGrid(client, 3, node_configs=folders, **more)


def state(grid: LocalGrid, run_dir: Path, **settings) -> None:
    config = RunConfig.from_run_config(RunConfig.defaults() | settings, server_parts())
    state_and_deliver(grid, config, RunFolder(run_dir))


def pages(tmp_path: Path, partition: int) -> list[Path]:
    return sorted((tmp_path / f"node-{partition}").glob("*/statement.html"))


def test_each_node_gets_its_own_page_and_can_check_it(tmp_path, run_dir, caplog):
    caplog.set_level(logging.INFO, "fedif_flower")
    settings = {"statement.budget": "100", "statement.contact": "Ada Holm, room 7"}
    state(grid(tmp_path), run_dir, **settings)
    for partition, name in ((0, "hospital-1"), (1, "hospital-2")):
        (page,) = pages(tmp_path, partition)
        said = (f"{name}: your contribution", "Ada Holm, room 7", "28.57" if partition else "57.14")
        assert all(words in page.read_text() for words in said)
        assert not any(other in page.read_text() for other in NAMES.values() if other != name)
        assert verify(page).manifest.run == "run"
    assert not (run_dir / "undelivered.json").exists()  # The third wants none.
    assert "hospital-3 did not keep its statement: this node has no statement-dir" in caplog.text
    assert verify(run_dir).manifest.run == "run"


def test_a_node_that_is_away_gets_its_page_the_next_time_once(tmp_path, run_dir):
    state(grid(tmp_path, silent=[1]), run_dir)
    assert pages(tmp_path, 1) == []
    assert json.loads((run_dir / "undelivered.json").read_text()) == {"1001": "members/002.html"}
    for _ in range(2):
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

    state(grid(tmp_path, odd), run_dir)
    assert len(pages(tmp_path, 0)) == 1
    assert set(json.loads((run_dir / "undelivered.json").read_text())) == {"1001"}


def test_a_run_without_a_statement_says_why_and_goes_on(tmp_path, run_dir, caplog):
    (run_dir / "attribution_rounds.csv").write_text("")
    state(grid(tmp_path), run_dir)
    assert "the run has no statement" in caplog.text
    assert not (run_dir / "statement").exists()
