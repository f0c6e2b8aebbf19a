"""The alert rules and the dashboard: valid, and about metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fedif_consortium.watch.metrics import RunMetrics
from fedif_flower.run.config import RunConfig

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "deploy" / "monitoring"
ENDINGS = {
    "counter": ["_total"],
    "gauge": [""],
    "histogram": ["_bucket", "_count", "_sum"],
    "info": ["_info"],
}
needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool")


def rules() -> list[dict]:
    content = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def dashboard() -> dict:
    return json.loads((FOLDER / "dashboard.json").read_text())


@pytest.fixture(scope="module")
def known() -> set[str]:
    """The names under which Prometheus has a run's metrics."""
    families = list(RunMetrics(RunConfig.from_run_config({})).registry.collect())
    return {family.name + ending for family in families for ending in ENDINGS[family.type]}


def named(expression: str) -> set[str]:
    found = set(re.findall(r"\bfedif_\w+", expression))
    assert found, expression
    return found


def test_every_rule_is_about_metrics_that_there_are(known):
    assert len(rules()) == len({rule["alert"] for rule in rules()}) > 5
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert named(rule["expr"]) <= known
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


def test_every_panel_is_about_metrics_that_there_are_and_none_is_forgotten(known):
    panels = dashboard()["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    for expression in expressions:
        assert 'instance=~"$instance"' in expression
    shown = named((FOLDER / "dashboard.json").read_text())  # With variables and annotations.
    assert set.union(*map(named, expressions)) <= shown
    watched = set.union(*(named(rule["expr"]) for rule in rules()))
    assert shown <= known
    others = {name for name in known if name.endswith(("_count", "_sum"))}
    assert shown | watched | others == known


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_page_tells_of_every_metric_and_alert(known):
    page = (REPOSITORY / "docs" / "operations.md").read_text()
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in known}
    assert {name for name in names if f"`{name}" not in page} == set()
    assert set(re.findall(r"`(fedif_(?!flower)\w+)", page)) <= names
    assert [rule["alert"] for rule in rules() if f"`{rule['alert']}`" not in page] == []


@needs_promtool
@pytest.mark.parametrize("what", ["rules alerts.yml", "config prometheus.yml"])
def test_promtool_takes_the_files(what):
    done = subprocess.run(
        ["promtool", "check", *what.split()], cwd=FOLDER, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_takes_the_metrics():
    text = RunMetrics(RunConfig.from_run_config({})).page()[2]
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    labels = {"instance": "server", **labels}
    listed = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{listed}}}", "values": values}


# What a federation in trouble looks like, minute by minute, and which alert says so; a run in
# which all is well for as long sets off none.
TROUBLES = {
    "FedifRunStalled": [
        series("fedif_round_ended_timestamp_seconds", "0x120"),
        series("fedif_round_timeout_seconds", "600x120"),
    ],
    "FedifRoundFailed": [series("fedif_rounds_total", "0x60 1x60", outcome="failed")],
    "FedifMembersMissing": [
        series("fedif_members_online", "3x60 2x60"),
        series("fedif_members_expected", "3x120"),
    ],
    "FedifMostMembersMissing": [
        series("fedif_members_online", "3x60 1x60"),
        series("fedif_members_expected", "3x120"),
    ],
    "FedifRepliesRefused": [
        series("fedif_replies_total", "0+3x120", status="accepted"),
        series("fedif_replies_total", "0+1x120", status="refused"),
    ],
    "FedifAccuracyFell": [series("fedif_accuracy", "0.9x60 0.7x60", split="validation")],
    "FedifLossRose": [series("fedif_loss", "0.2x60 0.4x60", split="validation")],
    "FedifMemoryGrows": [series("fedif_memory_bytes", "1000x80 2000x40")],
    "FedifSuperLinkSlow": [
        series("fedif_superlink_seconds_bucket", "0x120", call="nodes", le="2.0"),
        series("fedif_superlink_seconds_bucket", "0+9x120", call="nodes", le="10.0"),
        series("fedif_superlink_seconds_bucket", "0+9x120", call="nodes", le="+Inf"),
    ],
    "FedifKeeperSlow": [
        series("fedif_keeper_seconds_bucket", "0x120", call="sum", le="10.0"),
        series("fedif_keeper_seconds_bucket", "0+9x120", call="sum", le="60.0"),
        series("fedif_keeper_seconds_bucket", "0+9x120", call="sum", le="+Inf"),
    ],
}
WELL = [
    series("fedif_round_ended_timestamp_seconds", "0+60x120"),
    series("fedif_round_timeout_seconds", "600x120"),
    series("fedif_rounds_total", "0x120", outcome="failed"),
    series("fedif_members_online", "3x120"),
    series("fedif_members_expected", "3x120"),
    series("fedif_replies_total", "0+9x120", status="accepted"),
    series("fedif_replies_total", "0+1x120", status="refused"),
    series("fedif_accuracy", "0.9 0.85x119", split="validation"),
    series("fedif_loss", "0.2 0.25x119", split="validation"),
    series("fedif_memory_bytes", "1000x60 1400x60"),
    series("fedif_superlink_seconds_bucket", "0+9x120", call="nodes", le="2.0"),
    series("fedif_superlink_seconds_bucket", "0+9x120", call="nodes", le="+Inf"),
    series("fedif_keeper_seconds_bucket", "0+9x120", call="sum", le="10.0"),
    series("fedif_keeper_seconds_bucket", "0+9x120", call="sum", le="+Inf"),
]


@needs_promtool
def test_each_alert_fires_in_its_trouble_and_none_where_all_is_well(tmp_path):
    assert set(TROUBLES) == {rule["alert"] for rule in rules()}

    def when(alert: str, values: list[dict[str, str]], firing: bool) -> dict:
        query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
        found = [{"labels": "{}", "value": int(firing)}]
        test = {"expr": query, "eval_time": "119m", "exp_samples": found}
        return {"interval": "1m", "input_series": values, "promql_expr_test": [test]}

    tests = [when(alert, values, True) for alert, values in TROUBLES.items()]
    tests += [when(alert, WELL, False) for alert in TROUBLES]
    content = {"rule_files": [str(FOLDER / "alerts.yml")], "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(content))
    done = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
