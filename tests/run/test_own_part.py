"""A part of one's own needs no change of the package: that of the page, as it stands there."""

from __future__ import annotations

import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.parts import run_parts
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from tests.test_docs_names import DOCS, blocks_of


def test_a_part_beside_the_package_has_settings_a_callback_a_table_and_a_mod(tmp_path):
    *_, code = blocks_of((DOCS / "tutorial" / "own-parts.md").read_text(), "python")
    names: dict = {"__name__": "own"}
    exec(compile(code, "own.py", "exec"), names)
    settings = {"num-clients": 4, "fraction-train": 1.0, "num-server-rounds": 2, "cost.note": True}
    settings |= {"local-epochs": 1, "device": "cpu", "output-dir": str(tmp_path)}
    parts = [*run_parts(), names["Cost"]()]
    config = RunConfig.from_run_config(settings, parts)
    run_dir = run_federation(LocalGrid(names["client"], 4), config, parts=parts)
    spent = read_rows(run_dir / "cost.csv")
    assert [row["client_id"] for row in spent] == ["1000", "1001", "1002", "1003"] * 2
    assert all(float(row["seconds"]) > 0 for row in spent)
    with pytest.raises(ConfigError, match=r"cost.note = True: this app has no part"):
        run_federation(LocalGrid(names["client"], 4), config)
    off = RunConfig.from_run_config({**settings, "cost.note": False}, parts)
    assert off.digest() != config.digest()
