"""The real simulation runtime: Ray actors in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from flwr.serverapp import Grid

from client_app import app as client_app
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.runtime.simulation import run_on_ray, simulate

PROJECT = Path(__file__).parents[2]
pytestmark = pytest.mark.ray


def run_config(output_dir: Path, name: str) -> RunConfig:
    settings = {
        "num-clients": 20,
        "num-server-rounds": 3,
        "fraction-train": 0.3,
        "attack": "label-noise",
        "output-dir": str(output_dir),
        "run-name": name,
        "device": "cpu",
    }
    return RunConfig.from_run_config(default_run_config() | settings)


def outcome(run_dir: Path) -> tuple[dict[str, torch.Tensor], list[tuple[str, ...]]]:
    columns = ("round", "partition_id", "malicious", "score", "weight_score", "weight")
    rows = read_rows(run_dir / "clients.csv")
    model = torch.load(run_dir / "model.pt", weights_only=True)
    return model, [tuple(row[c] for c in columns) for row in rows]


def test_one_or_two_actors_or_none_give_the_same_bits(tmp_path):
    two = outcome(simulate(run_config(tmp_path, "two"), client_app, cpus_per_client=1))
    one = outcome(simulate(run_config(tmp_path, "one"), client_app, cpus_per_client=2))
    here = outcome(run_federation(LocalGrid(client_app, 20), run_config(tmp_path, "here")))
    for other in (one, here):
        assert other[1] == two[1]
        assert all(torch.equal(other[0][key], two[0][key]) for key in two[0])


def test_a_masked_run_works_in_actors_as_it_does_here(tmp_path):
    masked = {"masking": "trial", "fraction_train": 0.4}
    config = run_config(tmp_path, "ray").replace(**masked)
    on_ray, rows = outcome(simulate(config, client_app, cpus_per_client=1))
    plain = run_config(tmp_path, "plain").replace(fraction_train=0.4)
    here, expected = outcome(run_federation(LocalGrid(client_app, 20), plain))
    assert all(torch.allclose(on_ray[key], here[key], atol=1e-5) for key in here)
    for row, other in zip(rows, expected, strict=True):
        assert row[:3] == other[:3]
        assert [float(x) for x in row[3:]] == pytest.approx([float(x) for x in other[3:]], abs=1e-5)


def test_colluders_and_attackers_with_a_memory_do_the_same_in_actors(tmp_path):
    configs = [
        run_config(tmp_path, attack).replace(attack=attack, malicious_fraction=0.5)
        for attack in ("min-max", "free-rider-step")
    ]
    on_ray: list[Path] = []

    def main(grid: Grid) -> None:
        on_ray.extend(run_federation(grid, config) for config in configs)

    run_on_ray(main, client_app, num_clients=20)
    found = [outcome(run_dir) for run_dir in on_ray]
    for config, (model, rows) in zip(configs, found, strict=True):
        name = f"{config.run_name}-here"
        here = outcome(run_federation(LocalGrid(client_app, 20), config.replace(run_name=name)))
        assert here[1] == rows
        assert all(torch.equal(here[0][key], model[key]) for key in model)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("num-server-rounds=0", "num-server-rounds = 0; allowed: an integer >= 1"),
        ("data-dir=a/b", "other strings need quotes"),
        ('dataset="image-folder" data-dir="nowhere"', "nowhere"),
    ],
)
def test_the_command_line_says_what_is_wrong_in_one_line(overrides, message, tmp_path):
    command = [sys.executable, str(PROJECT / "simulation.py"), "run", "-c", overrides]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_the_command_line_shows_warnings_and_fails_if_the_last_round_did(tmp_path):
    settings = "num-clients=4 fraction-train=0.5 local-epochs=1 num-server-rounds=1"
    command = [sys.executable, str(PROJECT / "simulation.py"), "run"]
    result = subprocess.run(
        [*command, "-c", f"{settings} learning-rate=1e38"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    assert "1, the last among them" in result.stdout
    lines = result.stderr.splitlines()
    assert lines[0] == (
        "fedif WARNING: round 1: 0 valid replies, 1 needed; the model stays as it was"
    )
    assert sum("has NaN or Inf" in line for line in lines) == 2
    assert lines[-1].startswith("error: the last round failed, as 1 of 1 did; results: ")
