"""A statement of a run without a run config: an app of its own, with objects in its place."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import torch

from fedif_consortium.evidence.dsse import read_envelope
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.manifest import ENVELOPE, read_signed
from fedif_consortium.statement.replay import replay
from fedif_consortium.statement.verify import verify
from fedif_flower import CreditBounds, FedIF, PathAttribution, RunWriter
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.provenance import tensors_hash
from fedif_flower.runtime.local_grid import LocalGrid
from tests.consortium.commands.typed import call
from tests.strategies.lines import BASE, Movers, Threshold, threshold_validation

SCHEMA = Path(__file__).parents[3] / "docs" / "statement-v2.schema.json"


@pytest.fixture
def own(tmp_path) -> Path:
    """The folder of a federation of three in an app of its own, with bounds of credit."""
    validation = threshold_validation()
    attribution = PathAttribution(validation, bounds=CreditBounds(borrowed=0.0))
    writer = RunWriter(tmp_path / "october", title="October", validation=validation)
    strategy = FedIF(validation, callbacks=[attribution, writer], **BASE)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, model_arrays(Threshold()), num_rounds=3)
    return tmp_path / "october"


def test_it_is_made_signed_and_verified_and_what_is_not_known_is_blank(own, key):
    folder = make_statement(own, key, budget_cents=1000_00)
    verify(own)
    manifest = read_signed(folder).statement.predicate
    assert manifest.settings == ""
    inputs, targets = torch.tensor([[1.0], [1 / 2], [1 / 3], [1 / 4]]), torch.ones(4).long()
    assert manifest.validation == tensors_hash([inputs, targets])
    account = json.loads((folder / "statement.json").read_text())
    members = {member["name"]: member for member in account["members"]}
    assert set(members) == {"node 1000", "node 1001", "node 1002"}
    assert account["decrease"] > 0
    assert sum(member["cents"] for member in members.values()) + account["nobody_cents"] == 1000_00
    assert members["node 1001"]["cents"] == 0
    page = " ".join((folder / "statement.html").read_text().split())
    assert "Run <b>october</b>: FedIF, 3 rounds, 3 members" in page
    assert "counts for at most 1.25 times the usual length" in page
    assert "<tr><td>settings</td><td>\N{EN DASH}</td></tr>" in page
    envelope = read_envelope((folder / ENVELOPE).read_bytes(), ENVELOPE)
    jsonschema.validate(json.loads(envelope.payload), json.loads(SCHEMA.read_text()))


def test_it_is_verified_by_its_run_wherever_one_points(own, key):
    """A run without a run config is a run all the same."""
    folder = make_statement(own, key)
    assert verify(folder) == verify(own)
    clients = RunFolder(own).clients.path
    clients.write_text(clients.read_text() + "\n")
    with pytest.raises(StatementError, match=r"clients\.csv was changed"):
        verify(folder)


def test_the_command_says_which_games_are_open(own, tmp_path):
    made = call("statement", own, "--key", tmp_path / "operator.pem")
    assert "Left open: credit.borrowed = 0" in made
    assert "credit.length" not in made
    assert call("verify", own).startswith(f"Unchanged: {own}")


def test_a_run_that_an_error_ended_has_none(own, key):
    RunFolder(own).summary.path.unlink()
    with pytest.raises(
        ConfigError, match=r"summary\.json' is missing: it takes a run that came to"
    ):
        make_statement(own, key)


def test_its_updates_cannot_be_replayed(own):
    with pytest.raises(ConfigError, match="is of an app of its own, without a run config"):
        replay(own)
