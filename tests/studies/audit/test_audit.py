"""The audit: valuations and figures worked out by hand, and a small real one to its page."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedif_flower.attribution.credit import PastSteps
from fedif_flower.cli import parse_config
from fedif_flower.errors import ConfigError
from fedif_flower.round import ModelVectors
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies import games, twins
from fedif_studies.audit import valuations
from fedif_studies.audit.cases import CASES, HONEST, IDENTITIES, LOWERED, LOWERS, RETRAINED
from fedif_studies.audit.federation import RULES, AuditStep, federate
from fedif_studies.audit.findings import findings
from fedif_studies.audit.measure import CONFIG, RETRAINING_SEEDS, measure
from fedif_studies.audit.members import AUDITED, AuditTask, require_read
from fedif_studies.audit.page import write_audit
from fedif_studies.audit.retraining import train_coalitions
from fedif_studies.audit.valuations import CONTROL, EXACT, VALUATIONS
from fedif_studies.drawn import slopes
from fedif_studies.lab import filling
from tests.rounds import a_round
from tests.tolerance import assert_same_step, rounding

MEMBERS, ROUNDS = 4, 2
SIMPSON = "path attribution (simpson)"


@pytest.fixture(scope="module")
def task() -> AuditTask:
    return AuditTask.of(num_clients=MEMBERS, num_server_rounds=ROUNDS, dirichlet_alpha=100.0)


def watched(task: AuditTask, case: str, *names: str) -> list[torch.Tensor]:
    _, steps = federate(task, CASES[case](task, 0), seed=0)
    return [VALUATIONS[name](steps) for name in names]


def test_coalitions_side_by_side_are_those_trained_alone(task):
    members = CASES["label noise"](task, 0)
    masks = all_coalitions(MEMBERS)[[0, 5, 15]]
    together = train_coalitions(task, members, masks, seed=3)
    for mask, params in zip(masks.tolist(), together, strict=True):
        chosen = [member for member, is_in in zip(members, mask, strict=True) if is_in]
        alone, _ = federate(task, chosen, seed=3)
        if not chosen:
            assert torch.equal(params, alone)
            continue
        start, _ = federate(task, [], seed=3)
        assert_same_step(params, alone, start, rounding(torch.float32, ROUNDS))


def test_path_attribution_is_the_exact_value_which_five_identities_share(task):
    path, exact = watched(task, HONEST, SIMPSON, EXACT)
    torch.testing.assert_close(path, exact, rtol=0.0, atol=0.02 * float(exact.sum()))
    (split,) = watched(task, "five identities", SIMPSON)
    assert len(split) == MEMBERS - 1 + IDENTITIES
    own = split[0] + split[MEMBERS:].sum()
    torch.testing.assert_close(own, path[0], rtol=1e-3, atol=0.0)


def test_who_returns_the_model_contributes_exactly_nothing(task):
    found = dict(zip(VALUATIONS, watched(task, "returns the model", *VALUATIONS), strict=True))
    for name in (SIMPSON, "path attribution (trapezoid)"):
        assert found[name][task.marked(0)].tolist() == [0.0]


def test_the_control_is_what_members_claim_in_every_round(task):
    (found,) = watched(task, "claims twice its examples", CONTROL)
    claims = [member.claimed for member in task.members]
    claims[0] *= 2
    assert found.tolist() == [ROUNDS * claim for claim in claims]


def test_multi_krum_leaves_out_the_two_of_ten_that_lie_apart():
    rows = torch.zeros(10, 2)
    rows[:, 0] = torch.arange(10) / 100
    rows[3], rows[7] = torch.tensor([5.0, 0.0]), torch.tensor([0.0, 9.0])
    updates = a_round(rows, model=ModelVectors(torch.ones(2), torch.zeros(0)))
    weights = RULES["Multi-Krum"](Quadratic())(updates).weights
    assert weights.tolist() == [0.0 if index in (3, 7) else 0.125 for index in range(10)]


@pytest.mark.parametrize(("m", "left_out"), [(4, 1), (5, 1), (12, 2)])
def test_multi_krum_leaves_out_a_fifth_of_however_many_members(m, left_out):
    rows = torch.zeros(m, 2)
    rows[:, 0] = torch.arange(m) / 100
    rows[:left_out, 1] = torch.tensor([5.0, -9.0])[:left_out]
    updates = a_round(rows, model=ModelVectors(torch.ones(2), torch.zeros(0)))
    weights = RULES["Multi-Krum"](Quadratic())(updates).weights
    kept = m - left_out
    torch.testing.assert_close(weights[:left_out].tolist(), [0.0] * left_out)
    torch.testing.assert_close(weights[left_out:].tolist(), [1 / kept] * kept)


@pytest.mark.parametrize(
    "setting",
    [
        "fraction-train=0.5",
        'local-method="scaffold"',
        'attack="ipm"',
        "ipm.epsilon=2",
        'strategy="fedavg"',
        "update-clipping=5.0",
        "max-update-length=1.0",
        'server-optimizer="fedadam"',
        "malicious-fraction=0.2",  # Each case says how many members misbehave.
    ],
)
def test_a_setting_that_an_audit_does_not_read_is_refused(setting):
    """It would change no row, and be noted as what the audit was of."""
    with pytest.raises(ConfigError, match="as an audit does not use this setting"):
        require_read(parse_config([AUDITED, setting], {}))


@pytest.mark.parametrize(
    "setting",
    [
        'dataset="fashion-mnist" model="mlp" learning-rate=0.01',
        "num-clients=4 num-server-rounds=2 seed=3 dirichlet-alpha=0.5",
        "poison-ratio-min=0.1 gradient-noise.std=2",
        'output-dir="elsewhere" data-dir="elsewhere"',
    ],
)
def test_what_an_audit_reads_may_be_set(setting):
    require_read(parse_config([AUDITED, setting], {}))


def test_a_model_with_statistics_of_batch_norm_is_refused():
    """Members exchange parameters alone: statistics would mix all members' data, unseen by all."""
    allowed = "model = 'cnn-batch-norm'; allowed: in an audit a model without buffers"
    with pytest.raises(ConfigError, match=allowed):
        AuditTask.of(model="cnn-batch-norm", num_clients=2)


def test_a_part_of_a_data_set_is_the_same_in_every_audit(tmp_path, monkeypatch):
    monkeypatch.setattr(filling, "require_committed", lambda: None)
    config = AuditTask.of(num_clients=MEMBERS, num_server_rounds=1).config
    parts = [AuditTask(config, images=60) for _ in range(2)]
    for part in parts:
        assert (len(part.dataset.train), len(part.dataset.test)) == (60, 30)
        assert sum(len(member.labels) for member in part.members) == 60
        # A fifth of the test images judge, as in a run.
        assert (part.server.validation.num_examples, part.server.test.num_examples) == (6, 24)
    first, second = ([member.labels.tolist() for member in part.members] for part in parts)
    assert first == second
    with pytest.raises(ConfigError, match=r"images = 2000; allowed: at most 1197 of the train"):
        _ = AuditTask(config, images=2000)
    assert measure(parts[0], tmp_path, valuations=[CONTROL], cases=[HONEST], seeds=1, retrain=False)
    assert json.loads((tmp_path / CONFIG).read_text())["images"] == 60
    with pytest.raises(ConfigError, match="holds an audit of other settings"):
        measure(AuditTask(config), tmp_path, valuations=[CONTROL], seeds=1, retrain=False)


def folder_of_images(folder: Path, lightness: int) -> AuditTask:
    """Return a task of ten images of each of two classes, one light and one dark."""
    for split, (label, shade) in product(("train", "test"), (("dark", 0), ("light", lightness))):
        (folder / split / label).mkdir(parents=True)
        for number in range(10):
            image = Image.new("L", (4, 4), shade + number)
            image.save(folder / split / label / f"{number}.png")
    return AuditTask.of(dataset="image-folder", data_dir=str(folder), model="mlp", num_clients=2)


def test_an_audit_s_folder_takes_no_other_data_and_no_edited_code(tmp_path, monkeypatch):
    monkeypatch.setattr(filling, "require_committed", lambda: None)
    only = {"valuations": [CONTROL], "cases": [HONEST], "seeds": 1, "retrain": False}
    first, second = (folder_of_images(tmp_path / str(shade), shade) for shade in (100, 200))
    for task in (first, first):
        assert measure(task, tmp_path / "audit", **only)
    with pytest.raises(ConfigError, match="holds an audit of other settings: data was"):
        measure(second, tmp_path / "audit", **only)
    noted = tmp_path / "audit" / CONFIG
    settings = json.loads(noted.read_text())
    noted.write_text(json.dumps({**settings, "code of my_method": "0123456789ab"}))
    with pytest.raises(ConfigError, match="code of my_method was '0123456789ab' and is None"):
        measure(first, tmp_path / "audit", **only)


def test_an_audit_that_noted_no_data_goes_on_where_the_data_have_a_name(task, tmp_path):
    only = {"valuations": [CONTROL], "cases": [], "retrain": False}
    for of, is_named in ((task, True), (folder_of_images(tmp_path / "images", 100), False)):
        folder = tmp_path / str(is_named)
        measure(of, folder, **only)
        settings = json.loads((folder / CONFIG).read_text())
        del settings["data"]
        (folder / CONFIG).write_text(json.dumps(settings))
        if is_named:
            assert measure(of, folder, **only)
            continue
        with pytest.raises(ConfigError, match="data was None"):
            measure(of, folder, **only)


def test_coalitions_of_cases_that_are_not_asked_for_are_not_trained(task, tmp_path, monkeypatch):
    monkeypatch.setattr(filling, "require_committed", lambda: None)
    (case, *_) = [case for case in CASES if case not in RETRAINED]
    assert measure(task, tmp_path, valuations=[CONTROL], cases=[case], seeds=1)
    assert {row["case"] for row in read_rows(tmp_path / "values.csv")} == {case}
    assert read_rows(tmp_path / "retraining.csv") == []


def test_a_valuation_without_values_in_a_federation_that_has_rows_is_missing(
    task, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(filling, "require_committed", lambda: None)
    only = {"cases": ["returns the model"], "seeds": 1, "retrain": False}
    assert measure(task, tmp_path, valuations=[CONTROL], **only)
    added = [CONTROL, "CGSV"]
    assert not measure(task, tmp_path, valuations=added, **only)
    told = "Missing in rows that were there: values of CGSV; --again measures them\n"
    assert told in capsys.readouterr().out
    assert measure(task, tmp_path, valuations=added, **only, again=True)
    assert measure(task, tmp_path, valuations=added, **only)
    assert "Missing" not in capsys.readouterr().out


def test_of_who_lowers_another_the_one_or_the_other_is_marked(task):
    for seed in (0, MEMBERS - 1):  # The last and the first: those in league come in order.
        lowers, lowered = (CASES[case](task, seed) for case in (LOWERS, LOWERED))
        marked = [[m.identity for m in members if m.is_marked] for members in (lowers, lowered)]
        assert marked == [[0], [MEMBERS - 1 if seed else 1]]
        acting = [member for member in lowers if member.behaviour is lowers[0].behaviour]
        assert len(acting) == 2


def test_games_are_played_in_runs_and_told_by_their_statements(monkeypatch):
    configs = []

    def noted(grid, config, **more):
        configs.append(config)
        return run_federation(grid, config, **more)

    monkeypatch.setattr(games, "MEMBERS", 3)
    monkeypatch.setattr(games, "ROUNDS", 2)
    monkeypatch.setattr(games, "run_federation", noted)
    cell = {"epochs": 1, "strategy": "fedavg", "seed": 0}
    (row,) = games.measure({**cell, "game": LOWERED})
    assert 0 < float(row["share"]) < float(row["honest_share"])
    assert row["verdicts"] == "review"  # Too few rounds.
    # As the committed rows were measured: nothing examines the held-out labels.
    for settings in (config.to_mapping() for config in configs):
        assert (settings["validation.noise"], settings["validation.vet"]) == ("off", False)
    own = {**cell, **row, "game": LOWERED, "share": "0.5", "honest_share": "0.25"}
    assert games.gain(own) == 2.0
    (line,) = (line for line in games.table([own]).lines if line[0] == LOWERED)
    assert line[1] == "2.00 (2.00\N{EN DASH}2.00), 0"


def rows(values, case=HONEST, marked=()):
    """Return the lines of a federation's members."""
    place = {"case": case, "rule": "FedAvg", "seed": "0", "valuation": "v"}
    return [{**place, "marked": i in marked, "value": value} for i, value in enumerate(values)]


def figures(lines, retrained=()):
    return {(f.question, f.case): f.value for f in findings(lines, retrained)}


def test_findings_by_hand():
    # Of the two pairs of an honest and the marked member, one is in the right order.
    found = figures(rows([0.1, 0.5, 0.3], "label noise", marked=[2]))
    assert found["detection, ROC-AUC", "label noise"] == pytest.approx(0.5)
    # An additive game: member i is worth 1, 2 and 4; so are its Shapley values.
    place = {"case": HONEST, "seed": "0"}
    retrained = [{**place, "test_loss": -c, "test_accuracy": c / 10} for c in range(8)]
    found = figures(rows([10.0, 20.0, 40.0]), retrained)
    assert found["retraining, Pearson", HONEST] == pytest.approx(1.0)
    # Lowest first leaves .6, .4; highest first .3, .1.
    area = found["area between removal curves", HONEST]
    assert area == pytest.approx(((0.6 - 0.3) + (0.4 - 0.1)) / 2)


def test_a_federation_that_diverged_detects_nobody():
    lines = rows([float("nan"), 0.5, 0.3], "label noise", marked=[2])
    assert ("detection, ROC-AUC", "label noise") not in figures(lines)
    lines = rows([float("inf"), 0.5, float("-inf")], "label noise", marked=[2])
    assert figures(lines)["detection, ROC-AUC", "label noise"] == 1.0


@pytest.mark.all
def test_an_audit_from_start_to_page_measures_nothing_twice(task, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(filling, "require_committed", lambda: None)
    names = ["FedIF Omega", SIMPSON, EXACT]
    num_cells = len(CASES) + len(RULES) - 1
    for there in (0, num_cells):
        assert measure(task, tmp_path, valuations=names, seeds=1)
        assert f"{there} of {num_cells} cells have a row" in capsys.readouterr().out
    assert len(read_rows(tmp_path / "retraining.csv")) == 2 * RETRAINING_SEEDS * 2**MEMBERS
    page = write_audit(tmp_path, task.config)
    text = page.read_text()
    for title in ("within the run", "from scratch", "Removal", "Detection", "Manipulation"):
        assert title in text
    assert "| path attribution (simpson) |" in text
    figures = {
        (row["question"], row["case"], row["valuation"]): float(row["value"])
        for row in read_rows(tmp_path / "findings.csv")
    }
    gain = figures["share after / before", "five identities", SIMPSON]
    assert gain == pytest.approx(1.0, abs=0.01)
    assert figures["share after / before", "five identities", "FedIF Omega"] > 1.5


CURVATURE = torch.tensor([2.0, 4.0])


class Quadratic:
    """l(w) = w_1^2 + 2 w_2^2."""

    def loss(self, params):
        return float(0.5 * (CURVATURE * params.square()).sum())

    def gradient(self, params):
        return CURVATURE * params

    def means(self, params, buffers, metrics):
        return torch.tensor([self.loss(params)], dtype=torch.float64)


def step_of(rows, coefficients, ids=(0, 1, 2), members=None):
    updates, weights = torch.tensor(rows), torch.tensor(coefficients, dtype=torch.float64)
    m, model = len(rows), ModelVectors(torch.ones(2), torch.zeros(0))
    updates = a_round(updates, model=model, client_ids=tuple(ids[:m]))
    return AuditStep(updates, weights, weights, Quadratic(), Quadratic(), PastSteps(), members or m)


def test_in_run_data_shapley_of_both_orders():
    # g = (2, 4); s = (-1, -.5); H s = (-2, -2); half of it (-1, -1).
    step = step_of([[-2.0, 0.0], [0.0, -1.0]], [0.5, 0.5])
    assert valuations.first_order(step).tolist() == pytest.approx([2.0, 2.0])
    # -.5 <(-2, 0), (1, 3)> = 1; -.5 <(0, -1), (1, 3)> = 1.5.
    assert valuations.second_order(step).tolist() == pytest.approx([1.0, 1.5], abs=1e-4)
    # A quadratic loss is its own expansion: so they are the exact values.
    torch.testing.assert_close(
        valuations.second_order(step), valuations.shapley_of(step.game), rtol=0.0, atol=1e-4
    )


def test_fedfomo_is_a_decrease_over_a_distance():
    # From (1, 1) the loss is 3; at (-1, 1) as well, at (1, .5) 1.5 over .5.
    step = step_of([[-2.0, 0.0], [0.0, -0.5], [0.0, 0.0]], [0.3, 0.3, 0.3])
    assert valuations.fedfomo(step).tolist() == pytest.approx([0.0, 3.0, 0.0])


def test_cgsv_smooths_cosines_with_the_sum_of_unit_updates():
    # Units (1, 0) and (0, 1) have their sum at 45 degrees; the third stands against it.
    step = step_of([[3.0, 0.0], [0.0, 2.0]], [0.5, 0.5])
    assert valuations.cgsv([step], smoothing=0.5).tolist() == pytest.approx([0.5, 0.5])
    step = step_of([[1.0, 0.0], [1.0, 0.0], [-2.0, 0.0]], [0.3] * 3)
    assert valuations.cgsv([step], smoothing=0.0).tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_banzhaf_counts_every_coalition_alike():
    # Three members, the unanimity game of the first two and one more from the third alone.
    coalitions = range(8)
    game = torch.tensor([float(c & 3 == 3) + 2.0 * bool(c & 4) for c in coalitions])
    assert valuations.banzhaf_of(game).tolist() == pytest.approx([0.5, 0.5, 2.0])


def test_comfedsv_gives_who_was_not_drawn_what_low_rank_says():
    rows = [[-1.0, 0.0], [0.0, -1.0]]
    first = step_of(rows, [0.5, 0.5])
    # The loss falls from 3 to 2 by the first, to 1 by the second, to .75 at their mean.
    assert valuations.comfedsv([first]).tolist() == pytest.approx([(1 + 0.25) / 2, (2 + 1.25) / 2])
    # The second round is as the first by what is known of it: so is the whole of it.
    steps = [first, step_of(rows[:1], [1.0], ids=(0,), members=2)]
    found = valuations.comfedsv(steps, rank=1, ridge=1e-8, sweeps=500)
    torch.testing.assert_close(found, torch.tensor([1.25, 3.25]).double(), rtol=1e-2, atol=0.0)


def test_slopes_over_all_coalitions_are_banzhaf_values():
    # v(0) = 1, alone 2 and 4, together 9: the first adds 1 or 5, the second 3 or 7.
    masks = all_coalitions(2)
    worth = {(False, False): 1.0, (True, False): 2.0, (False, True): 4.0, (True, True): 9.0}
    utilities = torch.tensor([worth[tuple(row)] for row in masks.tolist()], dtype=torch.float64)
    assert slopes(masks, utilities).tolist() == pytest.approx([3.0, 5.0])


def test_one_owner_under_three_names_is_told_by_the_statements_measure(monkeypatch):
    monkeypatch.setattr(twins, "MEMBERS", 4)
    monkeypatch.setattr(twins, "ROUNDS", 6)
    cell = {"seed": 0, "epochs": 1, "alpha": 100.0, "case": "three identities, noise 0.25"}
    found = twins.measure(cell)
    assert [row["marked"] for row in found] == [1, 0, 0, 0, 1, 1]
    marked, others = ([float(r["likeness"]) for r in found if r["marked"] == m] for m in (1, 0))
    assert min(marked) > 0.9 > max(others)
