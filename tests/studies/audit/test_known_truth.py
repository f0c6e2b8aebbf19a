"""Audit 2: graded members, members drawn, costs and tables; small federations on digits."""

from __future__ import annotations

import pytest
import torch

from fedif_flower.run.config import RunConfig, default_run_config
from fedif_studies.audit.members import AuditTask, macro_f1
from fedif_studies.audit.truth import (
    AMOUNTS,
    LABELS,
    TRUTHS,
)

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


def test_macro_f1_by_hand():
    # Class 0: one of two found, no false alarm, 2/3; class 1: found, one false alarm, 2/3.
    outputs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    assert float(macro_f1(outputs, torch.tensor([0, 0, 1]))) == pytest.approx(2 / 3)
