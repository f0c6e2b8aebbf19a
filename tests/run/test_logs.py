from __future__ import annotations

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedif_flower.run.logs import LOGGER, about_cell, show_logs


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
        with about_cell(name):
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
