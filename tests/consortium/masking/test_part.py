"""Masked runs from their settings to their records, and what is left of an update on the server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from client_app import app as client_app
from fedif_consortium.masking import keeper, masked_reply
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.parts import run_parts
from fedif_consortium.statement.account import settle
from fedif_consortium.statement.records import read_run
from fedif_flower.errors import ConfigError
from fedif_flower.run import held_out
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.valuation.held_out import HeldOut
from tests.run.resuming import CLIENTS, Killed, killed_at, run_config

ROUNDS = 5


def masked_config(output_dir: Path, **overrides) -> RunConfig:
    settings = {"masking.mode": "trial", "fraction_train": 1.0, "attribution": "simpson"}
    return run_config(output_dir, **{**settings, **overrides})


def run(config: RunConfig, on_row=None) -> Path:
    return run_federation(LocalGrid(client_app, CLIENTS), config, on_row, parts=run_parts())


@pytest.fixture(scope="module")
def masked(tmp_path_factory) -> tuple[Path, list[np.ndarray]]:
    """A masked run, and members' updates before they were masked, the first round's first."""
    updates: list[np.ndarray] = []
    trained_update = masked_reply.trained_update

    def remembered(*args):
        updates.append(trained_update(*args))
        return updates[-1].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masked_reply, "trained_update", remembered)
        return run(masked_config(tmp_path_factory.mktemp("masked"))), updates


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"attack": "alie"}, "attack = 'alie'; allowed: no accomplices with masking"),
        ({"masking.keeper-url": "https://k"}, "masking.keeper-url = 'https://k'; allowed: empty"),
        ({"masking.mode": "keeper"}, "masking.keeper-url = ''; allowed: needed with masking.mode"),
        ({"masking.mode": "on"}, "masking.mode = 'on'; allowed: off, trial, keeper"),
        ({"updates.keep": True}, "masking: KeptUpdates looks at each client's update"),
        ({"attribution": "adaptive"}, "masking: attribution = 'adaptive' takes several gradients"),
        ({"credit.per-class": True}, "masking: attribution by class takes a gradient for each"),
        ({"server_optimizer": "fedavgm"}, "masking: attribution beside a server optimizer"),
        ({"model": "cnn-batch-norm"}, "masking: '.*running_mean' is a batch-norm statistic"),
        ({"strategy": "afedsv"}, "masking: AFedSV weighs by the updates themselves"),
        ({"neighbour_mixing": True}, "masking: NearestNeighbours looks at each update"),
        ({"pace.late-rounds": 1}, "masking: late replies cannot be discounted"),
        ({"local_method": "scaffold"}, "masking: Scaffold: members train by SGD alone"),
        ({"num_clients": 2}, "fraction-train = 1.0: 1 of 2 have weight: .* least-members = 2; "),
        # The keeper sees as many members as reply before a round closes.
        ({"pace.quorum": 2}, "pace.quorum = 2: 1 of 2 have weight: .* least-members = 2; "),
        # The digits' perceptron has 4,810 parameters: 256 sums, and two products a round.
        ({"num_server_rounds": 1075}, r"num-server-rounds = 1075: .* asked: 2406 numbers"),
    ],
)
def test_what_cannot_be_masked_is_refused_before_anything_starts(tmp_path, settings, reason):
    with pytest.raises(ConfigError, match=f"^{reason}"):
        run(masked_config(tmp_path, **settings))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"least_effective_members": CLIENTS}, r"fraction-train = .* least-effective-members = "),
        # One for the scores, and one for the contributions.
        ({"vectors": 1}, r"strategy, attribution = 'simpson': .* vectors = 1; asked: 2 vectors"),
    ],
)
def test_a_policy_that_refuses_every_round_is_told_before_anything_starts(
    tmp_path, monkeypatch, limits, reason
):
    monkeypatch.setattr(keeper, "TRIAL_POLICY", KeeperPolicy(**limits))
    with pytest.raises(ConfigError, match=f"^{reason}"):
        run(masked_config(tmp_path))
    assert not any(tmp_path.iterdir())


def test_a_masked_run_asks_more_members_than_a_policy_needs(tmp_path):
    """Of a third of six, which are two, one alone might have weight."""
    asked = {"fraction_train": 1 / 3, "pace.ask-more": 3.0, "num_server_rounds": 1}
    run_dir = run(masked_config(tmp_path, **asked))
    assert read_rows(run_dir / "rounds.csv")[-1]["accepted"] == str(CLIENTS)


def test_a_masked_run_learns_and_its_records_say_who_kept_the_masks(masked):
    said = json.loads((masked[0] / "masking.json").read_text())
    assert said["keeper"] == "beside the server, for trial"
    assert len(bytes.fromhex(said["log"])) == 32
    assert float(read_rows(masked[0] / "rounds.csv")[-1]["test_accuracy"]) > 0.5


def test_masked_updates_have_no_contributions_at_other_shares_of_wrong_labels(
    tmp_path, monkeypatch
):
    """Each end would take another product of every update with a gradient."""
    doubtful = HeldOut(120, noise=0.2, low=0.1, high=0.3)
    monkeypatch.setattr(held_out, "examine", lambda *_: doubtful)
    run_dir = run(masked_config(tmp_path, num_server_rounds=2, **{"validation.noise": 0.2}))
    rows = read_rows(run_dir / "attribution.csv")
    assert len(rows) == 2 * CLIENTS
    assert any(float(row["contribution"]) for row in rows)
    assert {row["contribution_noise_low"] for row in rows} == {""}
    account = settle(read_run(run_dir))
    assert {member.noise_shares for member in account.members} == {()}
    assert "noise-interval" in {doubt.reason for doubt in account.held_out.doubts}


def written(run_dir: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(run_dir.rglob("*")) if path.is_file())


def test_nothing_that_is_written_holds_an_update(masked, tmp_path):
    run_dir, updates = masked
    kept = run(masked_config(tmp_path, **{"masking.mode": "off", "updates.keep": True}))
    assert len(updates) == CLIENTS * ROUNDS
    for place, update in enumerate(updates):
        # Eight entries in a row, none of them 0: they stand nowhere by chance.
        start = next(i for i in range(len(update) - 8) if (update[i : i + 8] != 0).all())
        piece = update[start : start + 8]
        for kind in ("<f4", "<f8"):
            assert piece.astype(kind).tobytes() not in written(run_dir)
        if place < CLIENTS:  # Where updates are kept, they are found.
            assert piece.astype("<f4").tobytes() in written(kept)


def test_a_masked_run_goes_on_from_a_checkpoint(masked, tmp_path):
    config = masked_config(tmp_path, resume="auto")
    with pytest.raises(Killed):
        run(config, on_row=killed_at(4))
    run(config)
    model, whole = (
        torch.load(d / "model.pt", weights_only=True) for d in (config.run_dir, masked[0])
    )
    assert all(torch.allclose(model[name], whole[name], atol=1e-5) for name in whole)


def test_each_round_of_real_nodes_has_a_checkpoint(tmp_path, monkeypatch):
    """A keeper gives no second sum of a model, so a round that was summed is not done again."""
    monkeypatch.setattr("fedif_flower.run.recorder.MOST_SAVING", 1e-9)  # None is worth its time.

    class Deployed(LocalGrid):
        reliable = False

    config = masked_config(tmp_path, checkpoint_every=10, start_without="unfit")
    grid = Deployed(client_app, CLIENTS)
    with pytest.raises(Killed):
        run_federation(grid, config, killed_at(4), parts=run_parts())
    kept = sorted(path.name for path in (config.run_dir / "checkpoints").glob("*.pt"))
    assert kept[-1] == "round-000003.pt"
