"""Each example is a complete app, and runs, and finds what it says it finds."""

from __future__ import annotations

import io
import zipfile

import pytest
import torch
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

from fedif_consortium.statement.account import settle
from fedif_consortium.statement.records import read_run
from fedif_flower.run.config import RunConfig
from fedif_flower.run.rows import read_rows
from fedif_flower.tasks.config import OWN
from hospitals import task as hospitals
from quickstart import task as quickstart
from tests.examples.apps import EXAMPLES, NAMES, project, run, weights
from time_series import task as time_series

FREE_RIDER = 3  # The hospital that seed 0 chooses.


@pytest.mark.all
def test_the_hospitals_statement_finds_each(tmp_path):
    records = read_run(run("hospitals", tmp_path, device="cpu"))
    members = {member.partition_id: member for member in settle(records).members}
    verdicts = {partition_id: member.verdict for partition_id, member in members.items()}
    assert verdicts[hospitals.UNIT_ERROR].level == "quarantine"
    assert members[hospitals.UNIT_ERROR].contribution < 0
    assert members[FREE_RIDER].contribution == 0
    assert "exactly 0" in verdicts[FREE_RIDER].reason
    for copied in (hospitals.COPY, hospitals.ORIGINAL):
        assert verdicts[copied].level == "review"
        assert "same own part" in verdicts[copied].reason
    found = {hospitals.UNIT_ERROR, FREE_RIDER, hospitals.COPY, hospitals.ORIGINAL}
    assert {i for i, verdict in verdicts.items() if verdict.level != "accept"} == found
    last = records.folder.rounds.read()[-1]
    assert float(last["test_accuracy"]) > 0.9


@pytest.mark.all
def test_the_stations_learn_and_the_shifted_one_hardly_counts(tmp_path):
    run_dir = run("time-series", tmp_path, device="cpu", num_server_rounds=3)
    rounds = read_rows(run_dir / "rounds.csv")
    assert float(rounds[-1]["test_loss"]) < 0.5 * float(rounds[0]["test_loss"])
    counted = weights(run_dir)
    assert counted.pop(time_series.SHIFTED) < 0.1 * min(counted.values())


@pytest.mark.all
def test_the_quickstart_learns_and_the_mislabelled_have_the_lowest_scores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # It writes its model where it runs.
    torch.manual_seed(0)
    run_dir = run("quickstart", tmp_path, num_clients=10)
    losses = [float(row["validation_loss"]) for row in read_rows(run_dir / "rounds.csv")]
    assert losses[-1] < 0.5 * losses[0]
    scores = {
        int(row["client_id"]) - 1000: float(row["weight_score"])
        for row in read_rows(run_dir / "clients.csv")
        if row["weight_score"]
    }
    assert set(sorted(scores, key=scores.__getitem__)[:2]) == set(quickstart.MISLABELLED)


@pytest.mark.parametrize("name", NAMES)
def test_flower_builds_exactly_the_app(name):
    metadata = normalize_and_validate_fab_format(project(name))
    assert (metadata.fab_format_version, metadata.flwr_version_target) == (1, "1.41.0")
    module = name.replace("-", "_")
    files = [path for path in (EXAMPLES / name / module).iterdir() if path.is_file()]
    own = {f"{module}/{path.name}" for path in files}
    assert {f"{module}/{part}.py" for part in ("task", "server_app", "client_app")} < own
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(EXAMPLES / name))) as fab:
        assert set(fab.namelist()) == own | {
            *(".info/CONTENT", "LICENSE", "README.md", "pyproject.toml")
        }


@pytest.mark.parametrize("name", NAMES)
def test_the_license_is_the_projects(name):
    assert (EXAMPLES / name / "LICENSE").read_bytes() == (EXAMPLES.parent / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"quickstart"}))
def test_every_key_of_the_run_config_is_one(name):
    config = project(name)["tool"]["flwr"]["app"]["config"]
    assert RunConfig.from_run_config(config | {"task": OWN + name}).run_name == name
    # Flower accepts on its command line what is listed: so a run can go on, or be replaced.
    assert {"run-name", "resume", "overwrite"} <= config.keys()
