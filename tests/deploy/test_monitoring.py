"""The alert rules and the dashboard are about metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fedif_consortium.superlink.figures import federation_figures
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


def rules() -> list[dict]:
    content = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def dashboard() -> dict:
    return json.loads((FOLDER / "dashboard.json").read_text())


@pytest.fixture(scope="module")
def known() -> set[str]:
    """The names under which Prometheus has the metrics of a run and of its federation."""
    families = list(RunMetrics(RunConfig.from_run_config({})).registry.collect())
    of_run = {family.name + ending for family in families for ending in ENDINGS[family.type]}
    of_federation = {f"fedif_{name}" for name in federation_figures(object, Path("server.crt"))}
    return of_run | of_federation | {"fedif_up"}


def named(expression: str) -> set[str]:
    found = set(re.findall(r"\bfedif_\w+", expression))
    assert found, expression
    return found


def test_every_rule_is_about_metrics_that_there_are(known):
    assert len(rules()) == len({rule["alert"] for rule in rules()})
    for rule in rules():
        assert named(rule["expr"]) <= known


def test_each_rule_is_played():
    played = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    cases = [case for test in played for case in test["alert_rule_test"]]
    fire = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert fire == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize(
    ("least", "loss", "fires"),
    [
        (0.4, 0.5, False),
        (0.4, 0.7, True),
        (-2.0, -2.0, False),
        (-2.0, -1.5, False),
        (-2.0, -0.5, True),
        (-2.0, 1.0, True),
        (0.4, float("nan"), True),
    ],
)
def test_a_loss_has_risen_wherever_its_zero_lies(least, loss, fires):
    (rule,) = (rule for rule in rules() if rule["alert"] == "FedifLossRose")
    shown = 'fedif_loss{split="validation"}'
    expression = rule["expr"].replace(f"min_over_time({shown}[6h])", "least")
    expression = expression.replace(shown, "loss")
    assert eval(expression, {"least": least, "loss": loss, "abs": abs}) == fires


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Prometheus")
def test_the_rules_fire_as_they_are_played():
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


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


def test_the_page_tells_of_every_metric_and_alert(known):
    page = (REPOSITORY / "docs" / "operations.md").read_text()
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in known}
    assert {name for name in names if f"`{name}" not in page} == set()
    assert set(re.findall(r"`(fedif_(?!flower)\w+)", page)) <= names
    assert [rule["alert"] for rule in rules() if f"`{rule['alert']}`" not in page] == []
