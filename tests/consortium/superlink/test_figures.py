from __future__ import annotations

import math
from pathlib import Path

import pytest
from flwr.server.superlink.linkstate.linkstate_factory import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from fedif_consortium.federation.certificates import SERVER_DAYS
from fedif_consortium.superlink.figures import federation_figures
from tests.consortium.federation.folders import make_federation


@pytest.fixture
def state():
    factory = LinkStateFactory(
        FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
    )
    return factory.state()


def test_a_federation_is_known_without_a_run(state, tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    folder = make_federation(tmp_path / "server")
    figures = federation_figures(lambda: state, folder.certificate)
    nodes = [state.create_node("a", "a", bytes([i]), 30.0, name=f"node-{i}") for i in range(3)]
    state.activate_node(nodes[0], 30.0)
    state.delete_node("a", nodes[2])
    for _ in range(2):
        run_id = state.create_run("a/b", "1", "c", {}, NOOP_FEDERATION_ID, None, "a", "serverapp")
    [run] = state.get_run_info(run_ids=[run_id])
    state.activate_task(run.primary_task_id)
    state.finish_task(run.primary_task_id, "failed", "killed")
    seen = {name: figure() for name, figure in figures.items()}
    assert seen.pop("free_bytes") > 0
    assert SERVER_DAYS - 1 < seen.pop("certificate_days") <= SERVER_DAYS
    assert seen == {
        "members_online": 1,
        "members_registered": 2,
        "runs_unfinished": 1,
        "runs_failed": 1,
    }


def test_a_certificate_that_is_away_for_renewal_is_no_number_and_said_once(
    state, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    folder = make_federation(tmp_path / "server")
    days = federation_figures(lambda: state, folder.certificate)["certificate_days"]
    away = tmp_path / "away.crt"
    for times in (1, 2):
        folder.certificate.rename(away)
        assert math.isnan(days())
        assert math.isnan(days())
        assert caplog.text.count(f"{folder.certificate} is no certificate in PEM") == times
        away.rename(folder.certificate)
        assert SERVER_DAYS - 1 < days() <= SERVER_DAYS


def test_without_a_certificate_there_are_no_days_of_one(state):
    assert "certificate_days" not in federation_figures(lambda: state, None)
    assert "certificate_days" in federation_figures(lambda: state, Path("server.crt"))
