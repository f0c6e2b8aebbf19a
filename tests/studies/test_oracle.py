from __future__ import annotations

import pytest

from fedif_flower.run.report import require_complete
from fedif_flower.run.rows import read_rows
from fedif_flower.strategies import Setup
from fedif_studies.names import NAMES
from fedif_studies.oracle import OracleExclusion
from tests.strategies.lines import Movers, column, play, point
from tests.strategies.named import config, run

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}


def test_the_honest_by_their_examples():
    strategy = OracleExclusion(lambda node: node.node_id == 1001, **BASE)
    movers = Movers([[1.0, 0.0], [9.0, 9.0], [0.0, 1.0]], examples=[10, 50, 30])
    params, (report,) = play(strategy, point(), movers)
    assert column(report, "weight") == [0.25, 0.0, 0.75]
    assert params.tolist() == pytest.approx([0.25, 0.75])


def test_a_run_whose_rounds_rightly_give_nobody_weight_has_not_failed(tmp_path):
    chosen = config(tmp_path, NAMES["oracle"], **{"malicious-fraction": 1.0})
    summary, _, _ = run(chosen)
    require_complete(chosen.run_dir)
    rows = read_rows(chosen.run_dir / "rounds.csv")[1:]
    assert {(row["status"], row["round_failed"]) for row in rows} == {("kept", "0")}
    assert rows[-1]["reason"] == "every accepted update has weight 0"
    assert (summary["failed_rounds"], summary["kept_rounds"]) == (0, len(rows))
