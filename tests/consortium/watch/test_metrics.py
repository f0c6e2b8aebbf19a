"""A run's figures as Prometheus gets them: those of its own records."""

from __future__ import annotations

import math
import socket
from collections import Counter
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from client_app import app as client_app
from fedif_consortium.parts import run_parts
from fedif_consortium.watch.metrics import RunMetrics
from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.record import ClientReport, Round
from fedif_flower.server.run import Callback
from tests.integration.deployed import free_port
from tests.run.resuming import run_config

CLIENTS, ROUNDS = 4, 2


def config(output_dir: Path, **overrides) -> RunConfig:
    own = {"num_clients": CLIENTS, "fraction_train": 1.0, "num_server_rounds": ROUNDS}
    return run_config(output_dir, attack="none", **{**own, **overrides})


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return values by name and labels' values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Scraper(Callback):
    """Asks for the figures at the end of every round."""

    def __init__(self, port: int) -> None:
        self.port = port

    def on_round_end(self, server_round: int) -> None:
        url = f"http://127.0.0.1:{self.port}/metrics"
        self.found = samples(httpx.get(url, trust_env=False, timeout=60).text)


def test_the_figures_are_those_of_the_records(tmp_path):
    scraper = Scraper(free_port())
    settings = config(tmp_path, **{"metrics.port": scraper.port, "metrics.members": True})
    grid = LocalGrid(client_app, CLIENTS, silent=[3])
    run_dir = run_federation(grid, settings, callbacks=[scraper], parts=run_parts())
    rounds, clients = (read_rows(run_dir / f"{name}.csv") for name in ("rounds", "clients"))
    found, last = scraper.found, rounds[-1]
    seconds = sum(float(line["aggregation_seconds"]) for line in rounds)
    assert found["fedif_phase_seconds_total", "aggregation"] == pytest.approx(seconds)
    for name in ("accuracy", "loss"):
        for split in ("test", "validation"):
            assert found[f"fedif_{name}", split] == float(last[f"{split}_{name}"])
    statuses = Counter(line["status"] for line in clients)
    assert (statuses["accepted"], statuses["away"]) == ((CLIENTS - 1) * ROUNDS, ROUNDS)
    for status in ("accepted", "refused", "failed", "away", "late", "revoked"):
        assert found["fedif_replies_total", status] == statuses[status]
    assert found["fedif_training_seconds",] == pytest.approx(float(last["train_seconds"]))
    assert found["fedif_round",] == found["fedif_rounds_total", "ok"] == ROUNDS
    assert found["fedif_rounds_total", "failed"] == found["fedif_rounds_total", "kept"] == 0
    assert found["fedif_members_online",] == found["fedif_members_expected",] == CLIENTS
    assert found["fedif_memory_bytes",] > 1e7
    for row in clients[-CLIENTS:-1]:  # Who gave no reply comes last.
        for name in ("weight", "weight_score"):
            assert found[f"fedif_member_{name}", row["client_id"]] == float(row[name])
        assert found["fedif_member_replies_total", row["client_id"], "accepted"] == ROUNDS


def test_a_round_that_gave_nobody_weight_is_no_round_that_went_well(tmp_path):
    figures = RunMetrics(config(tmp_path))
    for number, status in enumerate(("advanced", "kept", "failed", "kept"), 1):
        figures.add_round(Round(number, status=status))
    by_outcome = {}
    for outcome in ("ok", "kept", "failed"):
        by_outcome[outcome] = figures.registry.get_sample_value(
            "fedif_rounds_total", {"outcome": outcome}
        )
    assert by_outcome == {"ok": 1.0, "kept": 2.0, "failed": 1.0}


def test_nobody_is_called_offline_before_members_were_counted(tmp_path):
    """The alerts on members that are offline compare the number online with a larger one."""
    figures = RunMetrics(config(tmp_path))

    def num_online() -> float:
        return samples(generate_latest(figures.registry).decode())["fedif_members_online",]

    assert math.isnan(num_online())
    figures.on_asked(Round(1))
    assert num_online() == 0
    figures.on_asked(Round(2, online=[ClientNode(0, 7)]))
    assert num_online() == 1


def test_a_port_in_use_ends_the_run_before_anything_is_written(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = config(tmp_path, **{"metrics.port": port})
        with pytest.raises(ConfigError, match=rf"metrics.port = {port}: cannot listen on 127"):
            run_federation(LocalGrid(client_app, CLIENTS), settings, parts=run_parts())
    assert not any(tmp_path.iterdir())


def test_without_the_request_no_label_is_a_member_s_or_anybody_s_text(tmp_path):
    metrics = RunMetrics(config(tmp_path))
    before = len(samples(generate_latest(metrics.registry).decode()))
    metrics.add_round(Round(1, (ClientReport(ClientNode(0, 7, name="hospital-a")),)))
    text = generate_latest(metrics.registry).decode()
    assert "hospital" not in text
    assert len(samples(text)) == before
    with pytest.raises(ConfigError, match=r"metrics\.members"):
        RunMetrics(config(tmp_path, num_clients=1001), members=True)
    with pytest.raises(ConfigError, match=r"metrics\.members = True; allowed: false without"):
        config(tmp_path, **{"metrics.members": True})


def test_figures_of_the_last_round_are_none_of_an_earlier_one(tmp_path):
    """A member that is quarantined, or was not drawn, has no weight while others train."""
    metrics = RunMetrics(config(tmp_path), members=True)
    ada, bob = (ClientNode(i, 7 + i, name=name) for i, name in enumerate(("ada", "bob")))
    both = (ClientReport(ada, weight=0.75, train_seconds=2.0), ClientReport(bob, weight=0.25))
    second = ClientReport(ada, status="refused", rejection="its second reply")
    metrics.add_round(Round(1, (*both, second)))
    found = samples(generate_latest(metrics.registry).decode())
    assert found["fedif_training_seconds",] == 2.0
    assert found["fedif_member_weight", "ada"] == 0.75
    metrics.add_round(Round(2, (ClientReport(bob, weight=1.0),)))
    found = samples(generate_latest(metrics.registry).decode())
    assert found["fedif_member_weight", "ada"] == 0.0
    assert found["fedif_member_weight", "bob"] == 1.0
    assert math.isnan(found["fedif_training_seconds",])
