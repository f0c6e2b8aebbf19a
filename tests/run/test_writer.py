"""``RunWriter``: the records of a federation that has no run config."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.open_games import open_games
from fedif_consortium.statement.records import read_run
from fedif_consortium.statement.verify import verify as check
from fedif_flower import CreditBounds, FedIF, PathAttribution, RunWriter, load
from fedif_flower.errors import ConfigError
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from fedif_flower.strategies.callbacks import Callback
from tests.strategies.lines import Movers, Threshold, threshold_validation


def written(directory, rounds=3, **arguments) -> RunWriter:
    writer = RunWriter(directory, **arguments)
    strategy = FedIF(
        threshold_validation(), fraction_evaluate=0.0, callbacks=[writer], setup=Setup(device="cpu")
    )
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, model_arrays(Threshold()), num_rounds=rounds)
    return writer


def test_rounds_clients_and_a_report(tmp_path, pictures):
    validation = threshold_validation()
    writer = written(
        tmp_path / "new" / "folder",
        validation=validation,
        title="Three members",
        is_malicious=lambda node: node.client_id == 1001,
    )
    rounds, clients = (read_rows(writer.run_dir / f"{name}.csv") for name in ("rounds", "clients"))
    assert [row["round"] for row in rounds] == ["0", "1", "2", "3"]
    assert float(rounds[0]["validation_accuracy"]) < float(rounds[3]["validation_accuracy"])
    assert rounds[1]["test_accuracy"] == ""
    assert [row["client_id"] for row in clients] == ["1000", "1001", "1002"] * 3
    assert [row["malicious"] for row in clients] == ["0", "1", "0"] * 3
    report = (writer.run_dir / "report.md").read_text()
    assert report.startswith("# Three members\n")
    assert "(malicious) |" in report
    for picture in ("accuracy.png", "weight-scores.png"):
        assert (writer.run_dir / picture).stat().st_size > 1000
        assert f"({picture})" in report


def attributed(directory, *more, num_rounds=2):
    """Run a writer beside an attribution, in an app of one's own."""
    validation = threshold_validation()
    attribution = PathAttribution(validation, bounds=CreditBounds(weight=0.0))
    callbacks = [RunWriter(directory), attribution, *more]
    setup = Setup(device="cpu")
    strategy = FedIF(validation, fraction_evaluate=0.0, callbacks=callbacks, setup=setup)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, model_arrays(Threshold()), num_rounds=num_rounds)
    return strategy, attribution


def test_beside_an_attribution_it_leaves_what_a_statement_needs(tmp_path):
    strategy, attribution = attributed(tmp_path)
    folder = make_statement(tmp_path, Ed25519PrivateKey.generate(), budget_cents=100)
    check(tmp_path)
    names = {member.label for member in load(tmp_path).members}
    assert names == {"node 1000", "node 1001", "node 1002"}
    assert set(attribution.contributions) == set(strategy.weight_scores) == names
    assert "node 1002" in (folder / "statement.html").read_text()
    report = (tmp_path / "report.md").read_text()
    assert report.count("1002") == 1
    assert [w for w in open_games(read_run(tmp_path).config) if "credit.w" in w] == [
        "credit.weight = 0: members are credited for any weight that they get or claim"
    ]


def test_a_run_that_an_error_ended_is_not_complete(tmp_path):
    class Failing(Callback):
        def on_round(self, report):
            if report.round == 2:
                raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        attributed(tmp_path, Failing())
    assert (tmp_path / "report.md").is_file()
    with pytest.raises(ConfigError, match="no complete run"):
        read_run(tmp_path)
