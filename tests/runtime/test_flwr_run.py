from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedif_flower.errors import ConfigError
from fedif_flower.run.round_progress import RoundProgress
from fedif_flower.runtime.flwr_run import (
    Interrupted,
    _reason,
    _ResultFile,
    _Rounds,
    _Warnings,
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


def test_run_name_is_kept(tmp_path: Path) -> None:
    launch = prepare({"output-dir": str(tmp_path), "run-name": "mine"})
    assert launch.run_dir == tmp_path / "mine"


def test_only_overrides_places_and_the_number_of_clients_are_handed_on() -> None:
    launch = prepare({"seed": 3})
    assert set(launch.run_config) == {"seed", "num-clients", "output-dir", "run-name"}


@pytest.mark.parametrize("overrides", [{}, {"num-clients": "auto"}, {"num-clients": 100}])
def test_a_hundred_nodes_are_simulated_unless_it_is_told_another_number(
    overrides: dict[str, Scalar],
) -> None:
    launch = prepare(overrides)
    assert launch.run_config["num-clients"] == launch.federation_config["num-supernodes"] == 100


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


def test_a_named_ray_cluster_has_its_own_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    federation = prepare({}, cpus_per_client=1000, gpus_per_client=1.0).federation_config
    assert "init-args-num-cpus" not in federation
    assert federation["client-resources-num-cpus"] == 1000


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


def test_warnings_in_flowers_log_are_shown_once(tmp_path: Path) -> None:
    output = io.StringIO()
    with (tmp_path / "flwr.log").open("w+b") as log:
        warnings = _Warnings(log, Console(file=output, width=20))
        for written in (
            b"INFO : nothing\nfedif WARNING: no guarantee holds\nfedif WARN",
            b"ING: cut in two\nfedif INFO: a round\n",
            b"\x1b[36m(ClientAppActor pid=5)\x1b[0m fedif ERROR: from [a] client\n",
            b"fedif WARNING: no guarantee holds\n",
            b"(ClientAppActor pid=6) fedif ERROR: from [a] client\x1b[32m [repeated 2x across "
            b"cluster]\x1b[0m\n",
        ):
            log.write(written)
            log.flush()
            warnings.show()
    assert output.getvalue().splitlines() == [
        "fedif WARNING: no guarantee holds",
        "fedif WARNING: cut in two",
        "fedif ERROR: from [a] client",
    ]


def test_rounds_are_shown_as_their_lines_come(tmp_path: Path) -> None:
    output = io.StringIO()
    path = tmp_path / "rounds.csv"
    with RoundProgress(2, Console(file=output, width=80)) as progress:
        rounds = _Rounds(_ResultFile(path), progress)
        rounds.show()
        path.write_text("round,test_accuracy,test_loss\n0,0.25,2.1\n1,,\n")
        rounds.show()
        rounds.show()
    assert output.getvalue().splitlines() == ["round 0/2 test accuracy 25.0%", "round 1/2"]


def test_interruption_ends_with_the_shell_convention() -> None:
    assert Interrupted("stopped", 2).exit_code == 130
