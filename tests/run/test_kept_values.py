"""What a checkpoint can have, and how what it cannot have is named."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch

from fedif_flower.run.kept_values import unreadable_in

Point = namedtuple("Point", "x")


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 0.5, True, "x", None], 2: (torch.ones(2), OrderedDict(weight=torch.ones(1)))},
        {"size": torch.Size([1]), "type": torch.float32, "device": torch.device("cpu")},
    ],
)
def test_what_can_be_read_back_is_fine(value):
    assert unreadable_in(value) is None
    buffer = BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    torch.load(buffer, weights_only=True)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (np.float64(0.5), ", a numpy.float64"),
        ({"a": [1, (2, np.float32(3))]}, "['a'][1][1], a numpy.float32"),
        ({np.str_("x"): 1}, "'s key np.str_('x'), a numpy.str_"),
        ({"x": np.ones(1)}, "['x'], a numpy.ndarray"),
        ([defaultdict(list)], "[0], a collections.defaultdict"),
        ([Point(1)], f"[0], a {__name__}.Point"),
        ({"run": Path("/x")}, f"['run'], a {type(Path()).__module__}.{type(Path()).__name__}"),
        ([print], "[0], a builtins.builtin_function_or_method"),
    ],
)
def test_what_cannot_is_named(value, named):
    assert unreadable_in(value) == named
