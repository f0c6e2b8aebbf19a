from __future__ import annotations

import hashlib

import torch

from fedif_flower.run.provenance import tensors_hash


def test_a_hash_is_of_types_shapes_and_values_whatever_the_layout():
    values = torch.arange(24.0).reshape(1, 2, 3, 4)
    as_channels_last = values.clone(memory_format=torch.channels_last)
    assert tensors_hash([values]) == tensors_hash([as_channels_last])
    flat = values.numpy().tobytes()
    told = hashlib.sha256(b"torch.float32 (1, 2, 3, 4)\n" + flat).hexdigest()
    assert tensors_hash([values]) == told
    others = [values.double(), values.reshape(2, 12), values + 1, values.bfloat16()]
    assert len({tensors_hash([v]) for v in [values, *others]}) == 5
