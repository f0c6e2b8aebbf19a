from __future__ import annotations

import os
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.runtime.local_superlink import LaunchError, LocalSuperLink, _toml


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IO[bytes]]:
    with (tmp_path / "flwr.log").open("w+b") as file:
        yield file


def never() -> None:
    """Nobody asks for an end."""


@pytest.mark.all
def test_two_run_side_by_side_and_leave_nothing(log: IO[bytes]) -> None:
    with LocalSuperLink(log, never) as first, LocalSuperLink(log, never) as second:
        homes = [Path(link.processes.environment["FLWR_HOME"]) for link in (first, second)]
        assert homes[0] != homes[1]
        assert all(home.is_dir() for home in homes)
        first.check()
        second.check()
    assert first.processes.alive() == second.processes.alive() == []
    assert not any(home.exists() for home in homes)


@pytest.mark.all
def test_death_of_the_superlink_is_noticed(log: IO[bytes]) -> None:
    with LocalSuperLink(log, never) as superlink:
        os.kill(superlink._superlink.pid, signal.SIGKILL)
        superlink._superlink.wait(timeout=30)
        with pytest.raises(LaunchError, match="SuperLink ended"):
            superlink.check()
    assert superlink.processes.alive() == []


@pytest.mark.all
def test_a_stop_during_the_start_leaves_nothing(log: IO[bytes]) -> None:
    def stop() -> None:
        raise LaunchError("stop")

    superlink = LocalSuperLink(log, stop)
    with pytest.raises(LaunchError, match="stop"), superlink:
        pytest.fail("it started")
    assert superlink.processes.alive() == []
    assert not Path(superlink.processes.environment["FLWR_HOME"]).exists()


@pytest.mark.all
def test_refused_run_ends_the_cli_with_its_reason_last(log: IO[bytes], tmp_path: Path) -> None:
    app = tmp_path / "empty"
    app.mkdir()
    with LocalSuperLink(log, never) as superlink:
        stream = superlink.submit(app, {"seed": 1}, {"num-supernodes": 2})
        assert wait(stream) != 0
        words = superlink.last_words()
        assert words.startswith("Failed to load Flower App configuration")
        assert str(app / "pyproject.toml") in words.replace(" ", "")


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]+(-[a-z]+)*", fullmatch=True),
        st.one_of(
            st.booleans(),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f")),
        ),
    )
)
def test_toml_keeps_values_and_types(values: dict[str, object]) -> None:
    parsed = tomllib.loads(_toml(values))
    assert parsed == values
    assert [type(v) for v in parsed.values()] == [type(v) for v in values.values()]


def wait(process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + 60
    while process.poll() is None:
        assert time.monotonic() < deadline, "flwr run did not end"
        time.sleep(0.1)
    return process.returncode
