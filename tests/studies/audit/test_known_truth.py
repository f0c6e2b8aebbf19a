"""Audit 2: graded members, members drawn, costs and tables; small federations on digits."""

from __future__ import annotations

import math

import pytest
import torch

from fedif_flower.run.config import RunConfig, default_run_config
from fedif_studies.audit.cases import HONEST
from fedif_studies.audit.cost import Priced
from fedif_studies.audit.federation import federate
from fedif_studies.audit.findings import CEILING
from fedif_studies.audit.measure import RetrainedLine
from fedif_studies.audit.members import AuditTask, macro_f1
from fedif_studies.audit.tables import (
    cell,
    cost_table,
    finding_table,
    gating_table,
    objective_table,
    repeat_table,
    seldom_table,
)
from fedif_studies.audit.target import ceiling_lines, target_lines
from fedif_studies.audit.truth import (
    AMOUNTS,
    AT_RANDOM,
    EVERYBODY,
    GATED,
    LABELS,
    ORACLE,
    PER_ROUND,
    RANDOM_DRAWS,
    TRUTHS,
    Snapshots,
    truth_lines,
)
from fedif_studies.audit.valuations import EXACT, VALUATIONS, Summed, influence

MEMBERS, ROUNDS = 4, 10


@pytest.fixture(scope="module")
def task() -> AuditTask:
    settings = {"num-clients": MEMBERS, "num-server-rounds": ROUNDS, "local-epochs": 1}
    settings |= {"device": "cpu", "dirichlet-alpha": 100.0}
    return AuditTask(RunConfig.from_run_config(default_run_config() | settings))


def test_half_of_the_members_are_bad_to_their_grades(task):
    for case in (LABELS, AMOUNTS):
        members = TRUTHS[case](task, 0)
        assert sorted(member.grade for member in members) == [0.0, 0.0, 0.2, 0.4]
        assert [member.is_marked for member in members] == [m.grade > 0 for m in members]
    for member, honest in zip(members, task.members, strict=True):
        kept = round((1.0 - 0.9 * member.grade) * len(honest.labels))
        assert len(member.labels) == member.claimed == kept


def test_who_is_not_drawn_is_not_valued(task):
    summed = Summed(influence)
    snapshots = Snapshots({"influence": summed}, at=[1, 3])
    federate(task, task.members, seed=0, watchers=[summed, snapshots], per_round=1)
    (first, values), (later, after) = snapshots.taken.values()
    assert first.tolist().count(0.0) == MEMBERS - 1
    assert torch.equal(values["influence"] != 0, first > 0)
    assert float(later.sum()) == 3.0
    torch.testing.assert_close(
        after["influence" + PER_ROUND] * later.clamp_min(1.0), after["influence"]
    )


def test_a_valuation_pays_for_its_own_passes_alone(task):
    names = ("path attribution (simpson)", "FedIF Omega", "leave-one-out")
    priced = {name: Priced(VALUATIONS[name]()) for name in names}
    alone = VALUATIONS[names[0]]()
    federate(task, task.members, seed=0, watchers=[*priced.values(), alone])
    costs = [priced[name].per_round() for name in names]
    assert [cost["gradients"] for cost in costs] == [3.0, 1.0, 0.0]
    assert [cost["evaluations"] for cost in costs] == [0.0, 0.0, MEMBERS + 1.0]
    assert torch.equal(priced[names[0]].values, alone.values)


def test_every_figure_of_one_federation(task):
    lines = list(truth_lines(task, "digits", LABELS, 0, per_round=2))
    gated = [line.valuation for line in lines if line.figure == GATED]
    assert gated[: 2 + RANDOM_DRAWS] == [EVERYBODY, ORACLE, *[AT_RANDOM] * RANDOM_DRAWS]
    assert "leave-one-out" + PER_ROUND in gated
    assert "leave-one-out" not in gated
    assert {line.rounds for line in lines} == {1, 3, ROUNDS}
    rows = [{name: str(value) for name, value in line._asdict().items()} for line in lines]
    for table in (
        gating_table(rows, "digits", str(MEMBERS)),
        finding_table(rows, "digits", str(MEMBERS)),
        seldom_table(rows, "digits", str(MEMBERS), LABELS),
    ):
        assert any(line.startswith("| FedIF Omega |") for line in table)


def test_macro_f1_by_hand():
    # Class 0: one of two found, no false alarm, 2/3; class 1: found, one false alarm, 2/3.
    outputs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    assert float(macro_f1(outputs, torch.tensor([0, 0, 1]))) == pytest.approx(2 / 3)


def test_splits_with_a_score_are_the_same_splits(task):
    params = federate(task, [], seed=0)
    for part, given in enumerate((task.server.validation, task.server.test)):
        scored = task.scored(part)
        assert scored.accuracy(params) == pytest.approx(given.accuracy(params))
        assert not math.isnan(scored.evaluate(params).score)


def test_agreement_cost_and_objectives_of_one_federation(task):
    # Two additive games, member i being worth i + 1, and the reverse.
    worth = {0: [1, 2, 3, 4], 1: [4, 3, 2, 1]}
    retrained = [
        RetrainedLine(
            *(HONEST, seed, c, -float(sum(w for i, w in enumerate(own) if c >> i & 1))),
            *(0.5 + c, 0.5 - c),
        )
        for seed, own in worth.items()
        for c in range(2**MEMBERS)
    ]
    (loss, *_) = ceiling_lines("digits", HONEST, retrained)
    assert loss[:6] == ("digits", HONEST, 0, CEILING, "Pearson, test_loss", "1")
    assert loss.value == pytest.approx(-1.0)
    lines, values = target_lines(task, "digits", HONEST, 0, retrained)
    by_name = {(line.valuation, line.figure, line.target): line.value for line in lines}
    assert by_name[EXACT, "Pearson, exact in-run", ""] == pytest.approx(1.0)
    assert by_name[EXACT, "evaluations", ""] == 2**MEMBERS
    for figure in ("Pearson", "Spearman"):
        one, other = (by_name[EXACT, f"{figure}, test_loss", seed] for seed in "01")
        assert one == pytest.approx(-other)
    by_loss = [v.value for v in values if (v.valuation, v.objective) == (EXACT, "loss")]
    assert len(by_loss) == MEMBERS
    rows = [{k: str(v) for k, v in line._asdict().items()} for line in lines]
    assert any(line.startswith(f"| {EXACT} |") for line in cost_table(rows, "digits"))
    assert any(line.startswith(f"| {EXACT} |") for line in repeat_table(rows, "digits"))
    rows = [{k: str(v) for k, v in line._asdict().items()} for line in values]
    assert any(f"| {EXACT}, {HONEST} |" in line for line in objective_table(rows, "digits"))


def test_gating_is_told_beside_nobody_left_out():
    def row(seed: int, valuation: str, value: float) -> dict[str, str]:
        found = {"data": "d", "members": "4", "case": LABELS, "seed": str(seed), "rounds": "1"}
        return found | {"valuation": valuation, "figure": GATED, "value": str(value)}

    rows = [row(0, EVERYBODY, 0.5), row(1, EVERYBODY, 0.6), row(0, "v", 0.75), row(1, "v", 0.55)]
    table = gating_table(rows, "d", "4")
    assert f"| {EVERYBODY} | 55.00 (50.00 to 60.00) | - | - |" in table
    assert "| v | 10.00 (-5.00 to 25.00) | - | - |" in table


def test_a_cell_without_spread_has_none():
    assert cell([1.0, 1.0, math.nan]) == "1.00"
    assert cell([math.nan]) == "-"
