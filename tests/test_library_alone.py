"""The library works where the two other packages, or what the consortium needs, are missing."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from fedif_consortium import left_out, left_out_client, parts
from fedif_consortium.evidence.member_receipts import SIGNATURES_KEY
from fedif_consortium.extra import INSTALL
from fedif_consortium.masking.masked_reply import MASKING_KEY
from fedif_flower.client.app import task_app
from fedif_flower.errors import ConfigError
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.run import parts as library_parts
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from tests.consortium.commands.typed import call
from tests.run.test_config import FLWR_RUN

ALONE = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package in ("fedif_consortium", "fedif_studies"):
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


sys.meta_path.insert(0, Blocked())
from typer.testing import CliRunner

from client_app import app as client
from fedif_flower.cli import cli
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
import server_app

assert CliRunner().invoke(cli, ["--help"]).exit_code == 0
settings = {"dataset": "digits", "num-clients": 3, "num-server-rounds": 1, "fraction-train": 1.0}
config = RunConfig.from_run_config({**settings, "output-dir": sys.argv[1]})
assert (run_federation(LocalGrid(client, 3), config) / "summary.json").is_file()
try:
    RunConfig.from_flower({**settings, "masking.mode": "off", "masking.keeper": "x"})
except Exception as error:
    print(error)
"""


def test_the_library_runs_where_the_others_are_not_there(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "masking.keeper = 'x': this app has no part with a section [masking]" in done.stdout


SETTINGS = {
    "dataset": "digits",
    "num-clients": 3,
    "num-server-rounds": 1,
    "fraction-train": 1.0,
    "local-epochs": 1,
}
MISSING = f"needs {INSTALL}; not installed here: uvicorn"


@pytest.fixture
def without_extra(monkeypatch):
    """Take one package of the extra away, and with it the extra."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)


def test_a_run_without_the_extra_says_so_in_one_line(without_extra, tmp_path, caplog):
    caplog.set_level(logging.INFO, "fedif_consortium")
    told = {**FLWR_RUN, **SETTINGS, "output-dir": str(tmp_path)}
    config = RunConfig.from_flower(told, parts.server_parts())
    grid = LocalGrid(task_app(parts=parts.client_parts()), 3)
    run_dir = run_federation(grid, config, parts=parts.server_parts())
    assert RunFolder(run_dir).is_complete()
    (line,) = (r.getMessage() for r in caplog.records if r.name == left_out.__name__)
    sections = "metrics, masking, evidence, gradients, statement"
    words = "they need packages that are not installed here (uvicorn)"
    assert line == f"left out: {sections}: {words}: {INSTALL}"


def test_what_is_left_out_are_the_sections_of_the_consortium():
    of_library = {part.settings for part in library_parts.run_parts()}
    sections = [p.settings for p in parts.server_parts() if p.settings not in of_library]
    named = [section.section_name() for section in sections if section is not None]
    assert sorted(left_out.SECTIONS) == sorted(named)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("masking.mode", "trial"),
        ("masking.mode", "off"),
        ("evidence.receipts", True),
        ("gradients.publish", True),
        ("metrics.port", 9100),
        ("statement.budget", "1000"),
    ],
)
def test_a_key_of_what_is_left_out_says_what_to_install(without_extra, key, value):
    with pytest.raises(ConfigError) as refused:
        RunConfig.from_run_config({**SETTINGS, key: value}, parts.server_parts())
    assert str(refused.value) == f"{key} = {value!r} {MISSING}"


@pytest.mark.parametrize(
    "words",
    [
        ("statement", "runs/october"),
        ("federation", "status"),
        ("keeper", "--policy", "keeper.toml"),
        ("verify", "runs/october"),
        ("arena",),
    ],
)
def test_a_command_of_what_is_left_out_says_what_to_install(without_extra, words):
    with pytest.raises(ConfigError, match=f" {MISSING.replace('[', '.')}$"):
        call(*words)
    assert "Usage:" in call(*words, "--help")


NODE = {"partition-id": 0, "num-partitions": 3}
KEEPER = {"keeper-key": 64 * "a", "signing-key": "key"}


@pytest.mark.parametrize(
    ("node", "told", "key"),
    [
        (KEEPER, {}, "keeper-key"),
        ({"receipts-dir": "receipts"}, {}, "receipts-dir"),
        ({}, {MASKING_KEY: "trial"}, MASKING_KEY),
        ({}, {SIGNATURES_KEY: True}, SIGNATURES_KEY),
    ],
)
def test_a_member_does_not_train_without_what_it_or_the_run_asks_for(
    without_extra, node, told, key
):
    """Its update would leave without a mask, or without evidence."""
    (part,) = parts.client_parts()
    own, settings = NodeConfig.from_node_config({**NODE, **node}), ConfigRecord(told)
    (finding,) = part.checks(own, settings)
    assert (finding.check, finding.status, finding.words) == ("node", "failed", f"{key} {MISSING}")
    (mod,) = part.mods(None)
    LocalGrid(task_app(), 1)  # Flower lets nobody make messages outside of a run.
    context = Context(1, 1, {**NODE, **node}, RecordDict(), {})
    message = Message(RecordDict({"config": settings}), 1, MessageType.TRAIN)
    with pytest.raises(ConfigError) as refused:
        mod(message, context, lambda *_: pytest.fail("it trains"))
    assert str(refused.value) == f"{key} {MISSING}"


def test_the_keys_that_a_member_may_name_are_keys_of_a_node():
    assert set(left_out_client.NODE_KEYS) <= set(NodeConfig.key_names())
