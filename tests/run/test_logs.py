from __future__ import annotations

import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.errors import ConfigError
from fedif_flower.run.logs import LOGGER, JsonFormatter, about, note, show_logs


def test_a_message_is_shown_once_however_often_the_doors_ask(shown_logs, capsys):
    show_logs()
    logging.getLogger("fedif_flower.aggregators.krum").warning("no guarantee for %d", 3)
    assert capsys.readouterr().err == "fedif WARNING: no guarantee for 3\n"


def test_information_is_shown_and_debugging_is_not(shown_logs, capsys):
    logger = logging.getLogger("fedif_flower.tasks")
    logger.debug("asking")
    logger.info("downloading")
    assert capsys.readouterr().err == "fedif INFO: downloading\n"


def test_each_thread_names_its_own_cell(shown_logs, capsys):
    def work(name: str) -> None:
        with about(cell=name):
            logging.getLogger(LOGGER).warning("refused")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, ["krum_seed0", "fedif_seed1"]))
    logging.getLogger(LOGGER).warning("afterwards")
    lines = capsys.readouterr().err.splitlines()
    assert sorted(lines[:2]) == [
        "fedif WARNING: [fedif_seed1] refused",
        "fedif WARNING: [krum_seed0] refused",
    ]
    assert lines[2:] == ["fedif WARNING: afterwards"]


@pytest.mark.parametrize(
    ("configuration", "printed"),
    [
        ("", ["uniform weights"]),
        ("logging.basicConfig(format='mine: %(message)s')", ["mine: uniform weights"]),
    ],
    ids=["without-configuration", "with-the-user's"],
)
def test_the_library_alone_shows_its_warnings_once(configuration, printed):
    code = f"""
import logging
{configuration}
import fedif_flower
logging.getLogger("fedif_flower.valuation").info("nothing to see")
logging.getLogger("fedif_flower.valuation").warning("uniform weights")
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stderr.splitlines() == printed


@pytest.fixture
def shown_as_json(shown_logs):
    show_logs("json")


def lines(capsys) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_has_time_level_logger_message_run_and_round(shown_as_json, capsys):
    logger = logging.getLogger("fedif_flower.run.federation")
    logger.info("before")
    with about(run="october"):
        logger.info("no round yet")
        note(round=3)
        logger.warning("%s is away", "ada")
    logger.info("afterwards")
    found = lines(capsys)
    times = [datetime.fromisoformat(line.pop("time")) for line in found]
    assert all(when.utcoffset() == timedelta(0) for when in times)
    assert times == sorted(times)
    own = {"level": "INFO", "logger": "fedif_flower.run.federation"}
    assert found == [
        {**own, "message": "before"},
        {**own, "message": "no round yet", "run": "october"},
        {**own, "level": "WARNING", "message": "ada is away", "run": "october", "round": 3},
        {**own, "message": "afterwards"},
    ]


@given(st.text(max_size=50))
def test_a_message_is_one_line_of_printable_ascii(text):
    record = logging.LogRecord(LOGGER, logging.INFO, "", 0, "%s", (text,), None)
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == text


def test_an_exception_is_in_the_line(shown_as_json, capsys):
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger(LOGGER).exception("failed")
    (line,) = lines(capsys)
    assert line["message"] == "failed"
    assert line["exception"].endswith("ValueError: two\nlines")


def test_who_asks_for_no_format_leaves_it(shown_as_json, capsys):
    show_logs()
    logging.getLogger(LOGGER).info("json still")
    assert lines(capsys)[0]["message"] == "json still"


def test_the_environment_decides_over_the_setting(shown_logs, capsys, monkeypatch):
    monkeypatch.setenv("FEDIF_LOG_FORMAT", "json")
    show_logs("text")
    logging.getLogger(LOGGER).info("json")
    assert lines(capsys)[0]["message"] == "json"
    monkeypatch.setenv("FEDIF_LOG_FORMAT", "xml")
    with pytest.raises(ConfigError, match="FEDIF_LOG_FORMAT = 'xml'; allowed: text, json"):
        show_logs()


def test_a_run_s_lines_name_it_and_its_round(shown_as_json, capsys, tmp_path):
    from client_app import app
    from fedif_flower.run.config import RunConfig, default_run_config
    from fedif_flower.run.federation import run_federation
    from fedif_flower.runtime.local_grid import LocalGrid

    short = {"num-clients": 2, "fraction-train": 1.0, "num-server-rounds": 2, "local-epochs": 1}
    place = {"run-name": "october", "output-dir": str(tmp_path), "device": "cpu"}
    config = RunConfig.from_run_config(default_run_config() | short | place)
    run_federation(LocalGrid(app, 2, silent=[1]), config)
    away = [line for line in lines(capsys) if str(line["message"]).startswith("round ")]
    assert [(line["run"], line["round"]) for line in away] == [("october", 1), ("october", 2)]
