"""The files of path attribution: complete, in order, and the same after a crash."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from scipy.stats import t

from client_app import app as client_app
from fedif_flower.errors import CheckpointError, ConfigError
from fedif_flower.run.attribution import widest_share
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.rows import read_rows
from fedif_flower.run.strategy import build_strategy
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies.attributed import ClientAttribution, RoundAttribution
from fedif_flower.strategies.registry import STRATEGIES
from tests.run.resuming import CLIENTS, Killed
from tests.run.resuming import run_config as killable_run_config
from tests.tolerance import rounding

FILES = ("attribution.csv", "attribution_rounds.csv")


def run_config(output_dir: Path, **overrides) -> RunConfig:
    return killable_run_config(output_dir, **{"attribution": "trapezoid", **overrides})


def run(config: RunConfig, kill_at: int | None = None) -> dict[str, str]:
    def on_row(row) -> None:
        if row.round == kill_at:
            raise Killed

    if kill_at is None:
        run_federation(LocalGrid(client_app, CLIENTS), config, on_row)
    else:
        with pytest.raises(Killed):
            run_federation(LocalGrid(client_app, CLIENTS), config, on_row)
    return {name: (config.run_dir / name).read_text() for name in FILES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    config = run_config(tmp_path_factory.mktemp("whole"))
    run(config)
    return config.run_dir


def test_a_line_for_each_accepted_client_and_round(whole):
    lines, rounds = (read_rows(whole / name) for name in FILES)
    for line in lines:
        blocks = [float(line[f"contribution_block_{k}"]) for k in range(20)]
        assert sum(blocks) == pytest.approx(float(line["contribution"]), abs=1e-4)
    assert [row["round"] for row in rounds] == ["1", "2", "3", "4", "5"]
    accepted = [
        (row["round"], row["partition_id"], row["client_id"])
        for row in read_rows(whole / "clients.csv")
        if not row["rejection"]
    ]
    assert [(r["round"], r["partition_id"], r["client_id"]) for r in lines] == accepted
    for row in rounds:
        own = [float(r["contribution"]) for r in lines if r["round"] == row["round"]]
        assert float(row["attributed"]) == pytest.approx(sum(own))
        decrease = float(row["loss_before"]) - float(row["loss_after"])
        assert float(row["decrease"]) == decrease
        assert float(row["remainder"]) == pytest.approx(decrease - sum(own))
    measured = [row["validation_loss"] for row in read_rows(whole / "rounds.csv")]
    tolerance = rounding(torch.float32)
    assert [float(row["loss_after"]) for row in rounds] == pytest.approx(
        [float(loss) for loss in measured[1:]], rel=tolerance
    )


def test_attribution_leaves_the_run_as_it_was(whole, tmp_path):
    config = run_config(tmp_path, attribution="off")
    run_federation(LocalGrid(client_app, CLIENTS), config)
    assert not (config.run_dir / FILES[0]).exists()
    models = [torch.load(d / "model.pt", weights_only=True) for d in (config.run_dir, whole)]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    assert config.digest() == run_config(tmp_path).digest()


def test_with_a_server_optimizer_a_resumed_run_remembers_who_sent_what(tmp_path):
    whole = run(run_config(tmp_path / "whole", server_optimizer="fedavgm", attribution="simpson"))
    config = run_config(
        tmp_path / "resumed", server_optimizer="fedavgm", attribution="simpson", resume="auto"
    )
    run(config, kill_at=5)
    assert run(config) == whole
    rows = read_rows(config.run_dir / FILES[0])
    # Those who sent updates before are in later rounds' lines, without a coefficient of their own.
    assert any(float(r["coefficient"]) == 0.0 != float(r["contribution"]) for r in rows)
    for row in read_rows(config.run_dir / FILES[1]):
        assert float(row["attributed"]) == pytest.approx(float(row["decrease"]), rel=0.05)


def test_a_run_that_was_not_attributed_is_not_resumed_with_attribution(tmp_path):
    config = run_config(tmp_path, attribution="off", num_server_rounds=2)
    run_federation(LocalGrid(client_app, CLIENTS), config)
    with pytest.raises(CheckpointError, match="its rounds were not attributed"):
        run(run_config(tmp_path, attribution="simpson", num_server_rounds=2, resume="auto"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_run_config_knows_which_strategies_can_be_attributed(tmp_path, strategy):
    built = build_strategy(load_task(run_config(tmp_path, strategy=strategy, attribution="off")))
    if built.combines_updates:
        run_config(tmp_path, strategy=strategy, attribution="simpson")
    else:
        with pytest.raises(ConfigError, match="attribution = 'simpson'; allowed: 'off'"):
            run_config(tmp_path, strategy=strategy, attribution="simpson")


def test_how_well_shares_are_known_is_told_by_hand():
    # Sums 4 and 4 of blocks (1, 3) and (3, 1): a share moves by a quarter, with one degree.
    own = ((1.0, 3.0), (3.0, 1.0))
    clients = tuple(ClientAttribution(i, i, 0.5, 4.0, blocks=own[i]) for i in (0, 1))
    rounds = [RoundAttribution(1, 9.0, 1.0, clients)]
    assert widest_share(rounds, [0.5, 0.5]) == pytest.approx(t.ppf(0.975, 1) / 4)
    assert widest_share(rounds, [0.2] * 5) is None


def test_a_run_of_ten_rounds_says_it_once(tmp_path, caplog):
    caplog.set_level(logging.INFO, "fedif_flower")
    run(run_config(tmp_path, num_server_rounds=11))
    assert caplog.text.count("each share is known to +-") == 1
