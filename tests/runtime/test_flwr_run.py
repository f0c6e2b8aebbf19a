from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.runtime.flwr_run import (
    _reason,
    _ResultFile,
    prepare,
)
from fedif_flower.runtime.processes import available_cpus
from fedif_flower.settings import Scalar


def test_nothing_depends_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    launch = prepare({"output-dir": "out", "data-dir": "data", "num-server-rounds": 7})
    assert launch.run_config["output-dir"] == str(tmp_path / "out")
    assert launch.run_config["data-dir"] == str(tmp_path / "data")
    assert launch.run_config["run-name"] == launch.run_dir.name != "auto"
    assert launch.run_dir.parent == tmp_path / "out"
    assert launch.log_path.parent == launch.run_dir
    assert launch.num_rounds == 7
    assert not (tmp_path / "out").exists()


def test_only_overrides_places_and_the_number_of_clients_are_handed_on() -> None:
    launch = prepare({"seed": 3})
    assert set(launch.run_config) == {"seed", "num-clients", "output-dir", "run-name"}


@pytest.mark.parametrize(
    ("sampled", "cpus"), [(1, 1), (10_000, available_cpus())], ids=["few", "many"]
)
def test_no_more_actors_than_sampled_clients(
    sampled: int, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    launch = prepare({"num-clients": 2 * sampled, "fraction-train": 0.5})
    assert launch.federation_config == {
        "num-supernodes": 2 * sampled,
        "client-resources-num-cpus": 1,
        "client-resources-num-gpus": 0.0,
        "init-args-num-cpus": cpus,
    }


@pytest.mark.parametrize("resume", ["", "auto", "runs/x/checkpoints/round-000010.pt"])
def test_a_checkpoint_s_path_does_not_depend_on_the_working_directory(
    resume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "/" in resume:
        (tmp_path / resume).parent.mkdir(parents=True)
        (tmp_path / resume).touch()
    expected = str(tmp_path / resume) if "/" in resume else resume
    assert prepare({"resume": resume}).run_config["resume"] == expected


@pytest.mark.parametrize(
    ("overrides", "options", "named"),
    [
        ({"fedif.gamma": 2.0}, {}, "fedif.gamma"),
        ({"no-such-key": 1}, {}, "no-such-key"),
        ({"device": "cuda:4096"}, {}, "device"),
        ({}, {"cpus_per_client": (os.cpu_count() or 1) + 1}, "--cpus-per-client"),
        ({}, {"gpus_per_client": 4096.0}, "--gpus-per-client"),
    ],
)
def test_errors_name_the_culprit(
    overrides: dict[str, Scalar], options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        prepare(overrides, **options)


def test_result_of_an_earlier_run_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "rounds.csv"
    path.write_text("round,test_accuracy\n0,0.1\n")
    os.utime(path, ns=(1, 1))
    result = _ResultFile(path)
    assert not result.is_new()
    assert result.rows() == []
    path.write_text("round,test_accuracy\n0,0.2\n")
    assert result.is_new()
    assert result.rows() == [{"round": "0", "test_accuracy": "0.2"}]


def test_result_that_was_not_there_counts_once_it_is(tmp_path: Path) -> None:
    result = _ResultFile(tmp_path / "summary.json")
    assert not result.is_new()
    (tmp_path / "summary.json").write_text("{}")
    assert result.is_new()


@pytest.mark.parametrize(
    ("details", "log", "reason"),
    [
        (
            "Simulation failed with exception: boom\nmore",
            "ValueError: boom\nmore",
            "ValueError: boom",
        ),
        ("Simulation failed with exception: 'a'", "x\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("Simulation failed with exception: b", "fedif_flower.errors.DataError: b", "DataError: b"),
        ("No heartbeat received", "nothing of the kind", "No heartbeat received"),
        ("", ": \n", ""),
    ],
)
def test_reason_is_one_line_with_the_type(details: str, log: str, reason: str) -> None:
    assert _reason(details, log) == reason
