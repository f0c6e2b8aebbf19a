"""A run's figures as Prometheus gets them: those of its own records."""

from __future__ import annotations

import socket
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from client_app import app as client_app
from fedif_consortium.parts import run_parts, server_parts
from fedif_consortium.watch.metrics import RunMetrics
from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.reports import ClientReport, RoundReport
from tests.integration.deployed import free_port

CLIENTS, ROUNDS = 4, 3


def run_config(output_dir: Path, **overrides) -> RunConfig:
    short = {"num-clients": CLIENTS, "fraction-train": 1.0, "num-server-rounds": ROUNDS}
    place = {"run-name": "run", "output-dir": str(output_dir), "device": "cpu", "local-epochs": 1}
    return RunConfig.from_run_config(
        RunConfig.defaults() | short | place | overrides, server_parts()
    )


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return values by name and labels' values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Scraper(Callback):
    """Asks for a page at the end of every round; a first scrape hangs all the time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.found: list[dict[tuple[str, ...], float]] = []

    def on_start(self, strategy) -> None:
        self.hanging = socket.create_connection(("127.0.0.1", self.port))
        self.hanging.sendall(b"GET /metrics HTTP/1.1\r\n")

    def on_round_end(self, server_round: int) -> None:
        url = f"http://127.0.0.1:{self.port}/metrics"
        answer = httpx.get(url, trust_env=False, timeout=60)
        self.found.append(samples(answer.text))

    def on_end(self) -> None:
        self.hanging.close()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory) -> tuple[Path, Scraper]:
    """A run, one of whose members never answers, scraped at the end of each round."""
    port = free_port()
    config = run_config(
        tmp_path_factory.mktemp("runs"), **{"metrics.port": port, "metrics.members": True}
    )
    scraper = Scraper(port)
    grid = LocalGrid(client_app, CLIENTS, silent=[3])
    return run_federation(grid, config, callbacks=[scraper], parts=run_parts()), scraper


def test_the_figures_are_those_of_the_records(scraped):
    run_dir, scraper = scraped
    rounds, clients = (read_rows(run_dir / f"{name}.csv") for name in ("rounds", "clients"))
    assert len(scraper.found) == ROUNDS + 1
    for done, found in enumerate(scraper.found):
        past, row = rounds[: done + 1], rounds[done]
        assert found["fedif_round",] == done
        assert found["fedif_rounds_total", "ok"] == done
        assert found["fedif_rounds_total", "failed"] == 0
        seconds = sum(float(line["aggregation_seconds"]) for line in past)
        assert found["fedif_phase_seconds_total", "aggregation"] == pytest.approx(seconds)
        for split in ("test", "validation"):
            assert found["fedif_accuracy", split] == float(row[f"{split}_accuracy"])
            assert found["fedif_loss", split] == float(row[f"{split}_loss"])
        statuses = Counter(line["status"] for line in clients if int(line["round"]) <= done)
        for status in ("accepted", "refused", "failed", "away", "late", "revoked"):
            assert found["fedif_replies_total", status] == statuses[status]
    assert statuses["accepted"] == (CLIENTS - 1) * ROUNDS
    assert statuses["away"] > 0
    assert found["fedif_training_seconds",] == pytest.approx(float(rounds[-1]["train_seconds"]))
    assert found["fedif_members_online",] == found["fedif_members_expected",] == CLIENTS
    assert found["fedif_rounds_planned",] == ROUNDS
    assert found["fedif_memory_bytes",] > 1e7
    assert abs(found["fedif_round_ended_timestamp_seconds",] - time.time()) < 600


def test_members_are_named_on_request(scraped):
    run_dir, scraper = scraped
    rows, found = read_rows(run_dir / "clients.csv"), scraper.found[-1]
    for row in rows[-(CLIENTS - 1) :]:
        assert row["status"] == "accepted"
        for name in ("weight", "weight_score"):
            assert found[f"fedif_member_{name}", row["client_id"]] == float(row[name])
    for (key, status), count in Counter((row["client_id"], row["status"]) for row in rows).items():
        assert found["fedif_member_replies_total", key, status] == count


def test_a_port_in_use_ends_the_run_before_anything_is_written(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = run_config(tmp_path, **{"metrics.port": port})
        with pytest.raises(ConfigError, match=rf"metrics.port = {port}: cannot listen on 127"):
            run_federation(LocalGrid(client_app, CLIENTS), config, parts=run_parts())
    assert not any(tmp_path.iterdir())


def report(*clients: ClientReport) -> RoundReport:
    return RoundReport(1, clients)


def test_without_the_request_no_label_is_a_member_s_or_anybody_s_text(tmp_path):
    metrics = RunMetrics(run_config(tmp_path))
    before = len(samples(generate_latest(metrics.registry).decode()))
    metrics.on_round(report(ClientReport(ClientNode(0, 7, name="hospital-a"))))
    text = generate_latest(metrics.registry).decode()
    assert "hospital" not in text
    assert len(samples(text)) == before
