from __future__ import annotations

import hashlib
import json

import torch

from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.provenance import code_hash, tensors_hash
from tests.run.resuming import run, run_config


def test_a_run_leaves_the_hashes_of_what_it_depends_on(tmp_path):
    config = run_config(tmp_path, num_server_rounds=1)
    found = json.loads((run(config) / "provenance.json").read_text())
    server = load_task(config)
    assert found["settings_sha256"] == server.config.digest()
    assert found["validation_sha256"] == tensors_hash(server.validation_data)
    assert found["code_sha256"] == code_hash()
    assert found["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    other = load_task(run_config(tmp_path, seed=1))
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
