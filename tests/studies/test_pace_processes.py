from __future__ import annotations

import pytest

from fedif_studies.pace_processes import ASLEEP, CLIENTS, PACES, RATIO, seconds_of


def test_the_slowest_takes_ten_times_as_long_and_all_paces_have_the_same_replies():
    assert seconds_of(CLIENTS - 1) / seconds_of(0) == pytest.approx(RATIO)
    waits, buffered = PACES.values()
    assert waits["num-server-rounds"] * CLIENTS == (
        buffered["num-server-rounds"] * buffered["buffer-size"]
    )


def test_only_client_apps_sleep(monkeypatch):
    import sys

    monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/flower-supernode"])
    before = list(sys.meta_path)
    exec(ASLEEP, {})
    assert sys.meta_path == before
