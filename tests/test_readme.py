"""The README keeps its promises: its example runs as it stands, its commands are there."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from fedif_flower.runtime.local_grid import LocalGrid
from tests.strategies.hostile import Clients

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text()


def test_library_example(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    project = types.ModuleType("my_project")
    project.Net = lambda: torch.nn.Linear(2, 2)
    project.held_out_data = lambda: (torch.eye(2), torch.tensor([0, 1]))
    monkeypatch.setitem(sys.modules, "my_project", project)
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    exec(compile(code, "README.md", "exec"), namespace)
    grid = LocalGrid(Clients(), 4)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    namespace["app"](grid, context)
    assert (tmp_path / "model.pt").exists()
    assert "{'node 100" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/first-run.md"])
def test_flwr_run_has_what_it_needs(page):
    """Flower finds its programs on the path alone, and else installs every package again."""
    text = (REPOSITORY / page).read_text()
    for needed in ("flwr run . --stream", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"):
        assert needed in text
    assert "activate" in text
