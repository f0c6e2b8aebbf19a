from __future__ import annotations

import json
import logging
from contextvars import Context
from datetime import datetime, timedelta

import pytest

from fedif_flower.run.logs import about, note, show_logs


@pytest.fixture
def shown_as_json(shown_logs):
    show_logs("json")


def lines(capsys) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_has_time_level_logger_message_run_and_round(shown_as_json, capsys):
    logger = logging.getLogger("fedif_flower.run.federation")

    def log() -> None:
        logger.info("before")
        with about(run="october"):
            logger.info("no round yet")
            note(round=3)
            logger.warning("%s is away", "ada")
        logger.info("afterwards")

    Context().run(log)  # Where nobody noted anything before.
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
