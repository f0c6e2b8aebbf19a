"""What the tutorial, the README and the demo say of their runs is so, within margins.

The margins hold with any order of summation: they are several times what another seed, thread count
or processor moved.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from client_app import app as client_app
from fedif_consortium.parts import run_parts
from fedif_consortium.statement.account import settle
from fedif_consortium.statement.records import read_run
from fedif_flower import FedIF
from fedif_flower.devices import torch_threads
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.run import StopTraining
from fedif_flower.settings import parse_overrides
from tests.consortium.commands.typed import call
from tests.strategies.lines import BASE, Movers, Threshold, threshold_validation
from tests.test_docs_names import REPOSITORY, blocks_of

pytestmark = pytest.mark.all


@pytest.fixture(autouse=True)
def one_thread():
    with torch_threads(1):
        yield


def run_of(settings: str, output_dir: Path, nodes=None) -> RunFolder:
    """Run the federation of a command's settings in this process."""
    own = {"output-dir": str(output_dir), "run-name": "run", "device": "cpu"}
    config = RunConfig.from_run_config(RunConfig.defaults() | parse_overrides(settings) | own)
    grid = LocalGrid(client_app, config.num_clients, node_configs=nodes or {})
    return RunFolder(run_federation(grid, config, parts=run_parts()))


def last_scores(run_dir: Path) -> tuple[list[float], list[float]]:
    """Return the last weight scores of honest and of malicious clients, in order."""
    last = {row["client_id"]: row for row in read_rows(run_dir / "clients.csv")}
    scores: tuple[list[float], list[float]] = ([], [])
    for row in last.values():
        scores[row["malicious"] == "1"].append(float(row["weight_score"]))
    return sorted(scores[0]), sorted(scores[1])


def test_own_app_finds_the_clients_with_wrong_labels_and_draws_curves(tmp_path, monkeypatch):
    """All its code runs; after four blocks it says who ends where."""
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "docs" / "tutorial" / "own-app.md").read_text()
    names: dict = {"__name__": "documentation"}
    for number, code in enumerate(blocks_of(page, "python"), start=1):
        exec(compile(code, "own-app.md", "exec"), names)
        if number == 4:
            scores = names["strategy"].ledger.scores
        elif "print(strategy.ledger)" in code:
            highest, *others = (
                float(line.split()[1]) for line in str(names["strategy"].ledger).split("\n")
            )
            assert highest >= max(others)
    assert "end below 0.15, all others above 0.4" in page
    assert all((score < 0.15) == (node_id < 1003) for node_id, score in scores.items())
    assert all((score > 0.4) == (node_id >= 1003) for node_id, score in scores.items())
    kept_parts = {name: names[name].ledger.scores for name in ("fedbn", "alike", "apart")}
    assert page.count("end below 0.15, all others above 0.2. A warning says") == 1
    for name in ("fedbn", "alike"):
        assert max(kept_parts[name][node_id] for node_id in range(1000, 1003)) < 0.15
        assert min(kept_parts[name][node_id] for node_id in range(1003, 1010)) > 0.2
    of_wrong = [kept_parts["apart"][node_id] for node_id in range(1000, 1003)]
    assert min(kept_parts["apart"].values()) < min(of_wrong)
    losses = iter([1.0, 0.9, 1.1, 1.1, 1.1])
    names["validation"] = SimpleNamespace(loss=lambda params: next(losses))
    patience = names["Patience"]()
    model = SimpleNamespace(vectors=SimpleNamespace(params=None))
    for server_round in range(4):
        patience.on_model(server_round, model)
    with pytest.raises(StopTraining, match="three rounds without progress"):
        patience.on_model(4, model)
    logged: dict[str, dict[int, float]] = {}
    curves = names["Curves"](lambda name, y, x: logged.setdefault(name, {}).update({x: y}))
    strategy = FedIF(threshold_validation(), callbacks=[curves], **BASE)
    strategy.start(
        LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3),
        model_arrays(Threshold()),
        num_rounds=2,
        evaluate_fn=lambda server_round, arrays: {"half": server_round / 2},
    )
    assert logged["round/half"] == {0: 0.0, 1: 0.5, 2: 1.0}
    for client_id, score in strategy.ledger.scores.items():
        curve = logged[f"members/{client_id}/weight_score"]
        assert (set(curve), curve[2]) == ({1, 2}, score)


def test_own_app_goes_as_far_as_a_statement(tmp_path, monkeypatch):
    """Its code up to the statement runs, then its commands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    page = (REPOSITORY / "docs" / "tutorial" / "own-app.md").read_text()
    names: dict = {"__name__": "documentation"}
    for code in blocks_of(page.partition("## What members are called")[0], "python"):
        exec(compile(code, "own-app.md", "exec"), names)
    (block,) = (block for block in blocks_of(page, "sh") if "fedif statement" in block)
    shown, stated, verified = (call(*shlex.split(line)[1:]) for line in block.strip().split("\n"))
    assert "Ten clients in October, 10 rounds, complete)" in shown
    assert "Left open: credit.secret-validation" in stated
    assert stated.count("Left open") == 1
    assert verified.startswith("Unchanged: runs/october")
    account = settle(read_run(Path("runs/october")), 1000_00)
    paid = {member.client_id: member.cents for member in account.members}
    assert [node_id for node_id, cents in sorted(paid.items()) if not cents] == [1000, 1001, 1002]
    assert "the three clients with wrong labels are paid nothing" in page
    assert account.widest_share is not None


def test_the_statement_pays_free_riders_nothing(tmp_path):
    page = (REPOSITORY / "docs" / "consortium.md").read_text()
    (settings,) = re.findall(r"^fedif run -c '([^']*)'", page, flags=re.M)
    run = run_of(settings, tmp_path)
    honest, malicious = last_scores(run.path)
    members = settle(read_run(run.path), 100_000).members
    idle = [member for member in members if member.contribution == 0]
    assert len(idle) == len(malicious) == 2
    assert [member.cents for member in idle] == [0, 0]
    assert sum(score < min(malicious) for score in honest) > len(honest) / 2


def test_the_first_run_ends_as_the_readme_shows(tmp_path):
    (settings,) = re.findall(r"^CONFIG \?= (.*)", (REPOSITORY / "Makefile").read_text(), flags=re.M)
    summary = run_of(settings, tmp_path).summary.read()
    readme = (REPOSITORY / "README.md").read_text()
    (accuracy,) = re.findall(r"test accuracy +│ +([\d.]+) %", readme)
    assert summary["test_accuracy"] == pytest.approx(float(accuracy) / 100, abs=0.02)
    assert summary["detection_auc"] > 0.97


def test_the_demo_shows_who_lies(tmp_path):
    script = (REPOSITORY / "deploy" / "demo.sh").read_text().replace("\\\n", "")
    (rounds,) = re.findall(r"ROUNDS:-(\d+)", script)
    commands = re.findall(r"federation run --in \S+ (.*)", script)
    (command,) = [text for text in commands if 'run-name="deploy-demo"' in text]
    settings = " ".join(shlex.split(command.replace("$rounds", rounds)))
    settings = re.sub(r'(output-dir|run-name)="[^"]*"', "", settings)
    of_real_nodes = "late-rounds|quorum|least-participation|start-without|receipts|budget"
    settings = re.sub(rf"([a-z]+\.)?({of_real_nodes})=\S+", "", settings)
    run = run_of(settings, tmp_path, {3: {"attack": "label-noise"}})
    honest, (liar,) = last_scores(run.path)
    assert liar < 0.5 * min(honest)
    assert json.loads(run.summary.path.read_text())["test_accuracy"] > 0.85
    contributions = {m.partition_id: m.contribution for m in settle(read_run(run.path)).members}
    assert contributions.pop(3) < 0.2 * min(contributions.values())
