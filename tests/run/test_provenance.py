from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path

import pytest
import torch

from client_app import app as client_app
from fedif_flower.run import provenance as module
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import load_task, run_federation
from fedif_flower.run.provenance import code_hash, tensors_hash
from fedif_flower.runtime.local_grid import LocalGrid


def config(output_dir, **overrides) -> RunConfig:
    settings = {"num-clients": 2, "fraction-train": 1.0, "num-server-rounds": 1, "device": "cpu"}
    return RunConfig.from_run_config(
        default_run_config() | settings | {"output-dir": str(output_dir)} | overrides
    )


def test_a_run_leaves_the_hashes_of_what_it_depends_on(tmp_path):
    run_dir = run_federation(LocalGrid(client_app, 2), config(tmp_path))
    found = json.loads((run_dir / "provenance.json").read_text())
    server = load_task(config(tmp_path))
    assert found["settings_sha256"] == server.config.digest()
    assert found["validation_sha256"] == tensors_hash(server.validation_data)
    assert found["code_sha256"] == code_hash()
    assert found["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    other = load_task(config(tmp_path, seed=1))
    assert tensors_hash(other.validation_data) != found["validation_sha256"]


def test_a_hash_is_of_types_shapes_and_values_whatever_the_layout():
    values = torch.arange(24.0).reshape(1, 2, 3, 4)
    as_channels_last = values.clone(memory_format=torch.channels_last)
    assert tensors_hash([values]) == tensors_hash([as_channels_last])
    flat = values.numpy().tobytes()
    told = hashlib.sha256(b"torch.float32 (1, 2, 3, 4)\n" + flat).hexdigest()
    assert tensors_hash([values]) == told
    others = [values.double(), values.reshape(2, 12), values + 1, values.bfloat16()]
    assert len({tensors_hash([v]) for v in [values, *others]}) == 5


@pytest.mark.parametrize(("name", "changes"), [("round.py", True), ("runtime/grid.py", False)])
def test_the_code_s_hash_is_of_what_a_bundle_holds(tmp_path, monkeypatch, name, changes):
    package = tmp_path / "package"
    (package / "runtime").mkdir(parents=True)
    (package / "round.py").write_text("a = 1")
    (package / "runtime" / "grid.py").write_text("b = 1")
    monkeypatch.setattr(module, "PACKAGE", package)
    before = code_hash.__wrapped__()
    (package / name).write_text("c = 1")
    assert (code_hash.__wrapped__() != before) == changes


def test_what_the_hash_leaves_out_is_what_bundles_leave_out():
    project = Path(module.__file__).parents[2] / "pyproject.toml"
    excluded = tomllib.loads(project.read_text())["tool"]["flwr"]["app"]["fab-exclude"]
    left_out = {path.removeprefix("/fedif_flower/").removesuffix("/**") for path in excluded}
    assert left_out == set(module._NOT_IN_BUNDLES)
