"""The files of path attribution, complete and in order; the secret data that pay."""

from __future__ import annotations

import logging
import re
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import t

from fedif_flower import storage
from fedif_flower.attribution.quarantine import Decision
from fedif_flower.attribution.records import ClientAttribution, RoundAttribution
from fedif_flower.errors import CheckpointError, ConfigError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.attribution import RunQuarantine, widest_share
from fedif_flower.run.checkpoint import read_checkpoint
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder, files_of_rounds
from fedif_flower.run.report import bound_in_words
from fedif_flower.run.rows import read_rows
from fedif_flower.run.secret_validation import COMMITMENT, NONCE, commitment_of, salt_of
from fedif_flower.storage import write_private
from tests.run.resuming import run, run_config
from tests.tolerance import rounding


def test_a_line_for_each_accepted_client_and_round(tmp_path):
    run_dir = run(run_config(tmp_path, attribution="trapezoid"))
    tables = ("attribution", "attribution_rounds", "clients", "rounds")
    lines, rounds, clients, measured = (read_rows(run_dir / f"{name}.csv") for name in tables)
    for line in lines:
        blocks = [float(line[f"contribution_block_{k}"]) for k in range(20)]
        assert sum(blocks) == pytest.approx(float(line["contribution"]), abs=1e-4)
    assert [row["round"] for row in rounds] == ["1", "2", "3", "4", "5"]
    who = ("round", "partition_id", "client_id")
    accepted = [[row[name] for name in who] for row in clients if not row["rejection"]]
    assert [[row[name] for name in who] for row in lines] == accepted
    for row in rounds:
        own = [float(r["contribution"]) for r in lines if r["round"] == row["round"]]
        assert float(row["attributed"]) == pytest.approx(sum(own))
        decrease = float(row["loss_before"]) - float(row["loss_after"])
        assert float(row["decrease"]) == decrease
        assert float(row["remainder"]) == pytest.approx(decrease - sum(own))
    losses = [float(row["validation_loss"]) for row in measured[1:]]
    after = [float(row["loss_after"]) for row in rounds]
    assert after == pytest.approx(losses, rel=rounding(torch.float32))
    for row in rounds:
        assert float(row["slope"]) < 0 < float(row["smoothness"])
        assert row["bound_held"] in ("0", "1")
    report = " ".join((run_dir / "report.md").read_text().split())
    assert "bound of the descent lemma held in" in report
    assert "of 5 rounds; the slope before a step foretold" in report


def test_a_run_that_was_not_attributed_is_not_resumed_with_attribution(tmp_path):
    run(run_config(tmp_path, num_server_rounds=2))
    with pytest.raises(CheckpointError, match="its rounds were not attributed"):
        run(run_config(tmp_path, attribution="simpson", num_server_rounds=2, resume="auto"))


DECISION = Decision(6, 34, 5, 5, "worth -1.00 on average")


def test_a_run_that_goes_on_leaves_out_whom_it_had_left_out(tmp_path, caplog):
    attribution = SimpleNamespace(rounds=[])

    def quarantine() -> RunQuarantine:
        return RunQuarantine(attribution, RunFolder(tmp_path))

    roster = SimpleNamespace(admit=[])
    strategy = SimpleNamespace(nodes=None, roster=roster, callbacks=[attribution])
    nodes = [ClientNode(partition, partition, is_simulated=True) for partition in range(6)]
    state = {"worths": [], "bad": [], "pause": 8, "until_round": 34}
    memory = {"judged": 4, "members": {5: state}, "decisions": [vars(DECISION)]}
    goes_on = quarantine()
    goes_on.restore([], memory, 9)
    goes_on.on_start(strategy)
    (line,) = read_rows(tmp_path / "quarantine.csv")
    assert (line["client_id"], line["until_round"]) == ("5", "34")
    assert goes_on.admit(nodes, 33) == nodes[:5]
    assert goes_on.admit(nodes, 34) == nodes
    # In the round that was interrupted somebody may have been left out: it is decided again.
    goes_on.decisions.append(DECISION)
    assert goes_on.memory(9) == memory
    goes_on.on_model(10, None)
    assert (len(goes_on.memory(9)["decisions"]), len(goes_on.memory(10)["decisions"])) == (1, 2)
    # A checkpoint of an earlier version.
    anew = quarantine()
    anew.restore([], None, 9)
    assert "did not keep who is left out" in caplog.text
    assert anew.decisions == []


def test_a_quarantine_that_can_judge_nobody_is_refused(tmp_path):
    settings = {"attribution": "simpson", "quarantine.on": True}
    words = "num-clients = 4; allowed: at least 5 with quarantine.on"
    with pytest.raises(ConfigError, match=words):
        run_config(tmp_path, num_clients=4, **settings)
    assert run_config(tmp_path, num_clients=5, **settings).num_clients == 5


def test_checkpoints_have_what_the_quarantine_knows(tmp_path):
    config = run_config(tmp_path, **{"attribution": "simpson", "quarantine.on": True})
    run(config, kill_at=5)
    after_round_4 = files_of_rounds(config.run_dir / "checkpoints")[4]
    memory = read_checkpoint(after_round_4).records["quarantine"]
    # Round 4 was drawn by what the rounds 1 and 2 had shown.
    assert memory["judged"] == 2
    assert {len(member["worths"]) for member in memory["members"].values()} <= {1, 2}


@pytest.mark.parametrize(
    ("key", "value", "default"),
    [
        ("credit.per-class", True, "false"),
        ("credit.secret-validation", True, "false"),
        ("credit.class-shift", 0.25, "0.11"),
        ("credit.length", 2.0, "1.25"),
        ("credit.borrowed", 0.0, "1.6"),
        ("credit.weight", 3.0, "2.0"),
    ],
)
def test_what_contributions_are_made_of_is_refused_without_any(tmp_path, key, value, default):
    words = f"{key} = {value}; allowed: {default} with attribution = 'off'"
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}"):
        run(run_config(tmp_path, **{key: value}))
    with_classes = {"credit.per-class": True} | {key: value}
    run_config(tmp_path, **with_classes, attribution="simpson")


def test_a_shift_of_classes_is_refused_where_nothing_is_split_by_class(tmp_path):
    words = "credit.class-shift = 0.3; allowed: 0.11 without credit.per-class"
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}"):
        run_config(tmp_path, attribution="simpson", **{"credit.class-shift": 0.3})


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_a_nonce_has_one_salt_which_its_commitment_does_not_tell(tmp_path):
    secret = tmp_path / "secret"
    salt = salt_of("a", secret)
    assert salt == salt_of("a", secret) != commitment_of(salt)
    assert salt not in (salt_of("b", secret), salt_of("a"))
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_secret_that_another_run_makes_at_the_same_moment_is_taken(tmp_path, monkeypatch):
    secret = tmp_path / "secret"

    def make_after_another(path: Path, content: bytes) -> None:
        write_private(path, b"ab" * 32)
        write_private(path, content)

    monkeypatch.setattr(storage, "write_private", make_after_another)
    salt = salt_of("a", secret)
    assert secret.read_bytes() == b"ab" * 32
    assert salt == salt_of("a", secret)


def test_a_run_that_goes_on_keeps_its_salt_and_one_that_begins_has_a_new_one(tmp_path):
    def config(secret: bool = True, resume: str = "auto") -> RunConfig:
        own = {"attribution": "trapezoid", "checkpoint_every": 1, "num_server_rounds": 3}
        return run_config(tmp_path, **own, resume=resume, **{"credit.secret-validation": secret})

    def published() -> tuple[str, str]:
        origin = RunFolder(config().run_dir).provenance.read()
        return origin[NONCE], origin[COMMITMENT]

    run(config(), kill_at=2)
    first = published()
    with pytest.raises(CheckpointError, match=r"set credit.secret-validation as it was"):
        run(config(secret=False))
    run(config())
    assert published() == first
    run(config(resume="").replace(overwrite=True))
    assert published() != first


def test_how_well_shares_are_known_is_told_by_hand():
    # Sums 4 and 4 of blocks (1, 3) and (3, 1): a share moves by a quarter, with one degree.
    own = ((1.0, 3.0), (3.0, 1.0))
    clients = tuple(ClientAttribution(i, i, 0.5, 4.0, blocks=own[i]) for i in (0, 1))
    rounds = [RoundAttribution(1, 9.0, 1.0, clients)]
    assert widest_share(rounds, [0.5, 0.5]) == pytest.approx(t.ppf(0.975, 1) / 4)
    assert widest_share(rounds, [0.2] * 5) is None


def test_a_run_of_ten_rounds_says_it_once(tmp_path, caplog):
    caplog.set_level(logging.INFO, "fedif_flower")
    run(run_config(tmp_path, attribution="trapezoid", num_server_rounds=11))
    assert caplog.text.count("share is known to within") == 1


def test_the_bound_in_words_by_hand():
    """Slopes of -2, -3 and -1 where the loss fell by 1, 2 and not at all; a round had no step."""
    steps = [(-2.0, 1.0, 1), (-3.0, 2.0, 1), (-1.0, 0.0, 0), (None, 0.5, None)]
    names = ("slope", "decrease", "bound_held")
    words = bound_in_words([dict(zip(names, step, strict=True)) for step in steps])
    assert words.startswith("The one-step bound of the descent lemma held in 2 of 3 rounds; the")
    assert "foretold 1.8 times the change (median)." in words  # Between 2 and 1.5.
    # The tables of earlier versions have no such columns.
    assert bound_in_words([{"decrease": 1.0}]) == ""
