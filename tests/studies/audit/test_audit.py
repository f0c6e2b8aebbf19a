"""The audit: figures worked out by hand, and a small real one from start to page."""

from __future__ import annotations

import pytest
import torch

from fedif_flower.run.rows import read_rows
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies.audit.cases import CASES, HONEST, IDENTITIES
from fedif_studies.audit.federation import federate
from fedif_studies.audit.findings import findings
from fedif_studies.audit.measure import measure
from fedif_studies.audit.members import AuditTask
from fedif_studies.audit.page import write_audit
from fedif_studies.audit.retraining import train_coalitions
from fedif_studies.audit.valuations import EXACT, VALUATIONS
from fedif_studies.lab import run
from tests.tolerance import assert_same_step, rounding

MEMBERS, ROUNDS = 4, 2


@pytest.fixture(scope="module")
def task() -> AuditTask:
    return AuditTask.of(num_clients=MEMBERS, num_server_rounds=ROUNDS, dirichlet_alpha=100.0)


def watched(task: AuditTask, case: str, *names: str) -> dict[str, torch.Tensor]:
    _, steps = federate(task, CASES[case](task, 0), seed=0)
    return {name: VALUATIONS[name](steps) for name in names}


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


def test_path_attribution_is_the_exact_value_within_the_run(task):
    found = watched(task, HONEST, "path attribution (simpson)", EXACT)
    path, exact = found.values()
    torch.testing.assert_close(path, exact, rtol=0.0, atol=0.02 * float(exact.sum()))


def test_five_identities_share_what_their_owner_had(task):
    name = "path attribution (simpson)"
    whole = watched(task, HONEST, name)[name]
    split = watched(task, "five identities", name)[name]
    assert len(split) == MEMBERS - 1 + IDENTITIES
    own = torch.arange(len(split)) % MEMBERS == 0
    own[MEMBERS:] = True
    torch.testing.assert_close(split[own].sum(), whole[0], rtol=1e-3, atol=0.0)


def test_who_returns_the_model_contributes_exactly_nothing(task):
    found = watched(task, "returns the model", *VALUATIONS)
    for rule in ("trapezoid", "simpson"):
        assert found[f"path attribution ({rule})"][task.marked(0)].tolist() == [0.0]


def rows(values, case=HONEST, marked=()):
    """Return the lines of a federation's members."""
    place = {"case": case, "rule": "FedAvg", "seed": "0", "valuation": "v"}
    return [
        {**place, "member": str(member), "marked": str(int(member in marked)), "value": str(value)}
        for member, value in enumerate(values)
    ]


def figures(lines, retrained=()):
    return {(f.question, f.case): f.value for f in findings(lines, retrained)}


def test_detection_by_hand():
    # Of the two pairs of an honest and the marked member, one is in the right order.
    found = figures(rows([0.1, 0.5, 0.3], "label noise", marked=[2]))
    assert found["detection, ROC-AUC", "label noise"] == pytest.approx(0.5)


def test_agreement_with_retraining_by_hand():
    # An additive game: member i is worth 1, 2 and 4; so are its Shapley values.
    retrained = [
        {"case": HONEST, "seed": "0", "coalition": c, "test_loss": -c, "test_accuracy": c / 10}
        for c in range(8)
    ]
    found = figures(rows([10.0, 20.0, 40.0]), retrained)
    assert found["retraining, Pearson", HONEST] == pytest.approx(1.0)
    # Lowest first leaves .6, .4; highest first .3, .1.
    area = found["area between removal curves", HONEST]
    assert area == pytest.approx(((0.6 - 0.3) + (0.4 - 0.1)) / 2)


@pytest.mark.all
def test_an_audit_from_start_to_page_measures_nothing_twice(task, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "committed_revision", lambda: "abc")
    names = ["FedIF Omega", "path attribution (simpson)", EXACT]
    for there in (0, len(CASES) + 2):
        assert measure(task, tmp_path, valuations=names, seeds=1)
        assert f"{there} of {len(CASES) + 2} cells have a row" in capsys.readouterr().out
    assert len(read_rows(tmp_path / "retraining.csv")) == 4 * 2**MEMBERS
    page = write_audit(tmp_path, task.config)
    text = page.read_text()
    for title in ("within the run", "from scratch", "Removal", "Detection", "Manipulation"):
        assert title in text
    assert "| path attribution (simpson) |" in text
    figures = {
        (row["question"], row["case"], row["valuation"]): float(row["value"])
        for row in read_rows(tmp_path / "findings.csv")
    }
    gain = figures["share after / before", "five identities", "path attribution (simpson)"]
    assert gain == pytest.approx(1.0, abs=0.01)
    assert figures["share after / before", "five identities", "FedIF Omega"] > 1.5
