"""Structures of dicts, lists and tuples keep their classes while their tensors are changed."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict

import pytest
import torch

from fedif_flower.tasks.rows import join, take_rows
from fedif_flower.tasks.structures import map_tensors

LOGITS = torch.arange(6.0).view(3, 2)


class Encoding(UserDict):
    """As a tokenizer's batch is: its items are attributes, too."""

    def __init__(self, data, encodings=None):
        super().__init__(data)
        self.encodings = encodings

    def __getattr__(self, name):
        if name not in vars(self).get("data", {}):
            raise AttributeError(name)
        return self.data[name]


class Output(OrderedDict):
    """As a model's outputs are; what was not computed is an attribute alone."""

    def __init__(self, items):
        super().__init__(items)
        self.loss = None
        vars(self).update(items)


class Shared(dict):
    """Its attributes are its items."""

    def __init__(self, items):
        super().__init__(items)
        self.__dict__ = self


@pytest.mark.parametrize("kind", [Encoding, Output, Shared])
def test_items_can_be_read_as_attributes_of_some_rows_and_of_joined_ones(kind):
    whole = kind({"logits": LOGITS})
    second = take_rows(whole, torch.tensor([1]))
    assert type(second) is kind
    assert second.logits.tolist() == second["logits"].tolist() == [[2.0, 3.0]]
    joined = join([second, whole])
    assert type(joined) is kind
    assert joined.logits.tolist() == [[2.0, 3.0], *LOGITS.tolist()]
    assert whole.logits is LOGITS


def test_a_mapping_whose_tensors_stay_is_returned_itself():
    """A tokenizer's batch has more than its items, which one made of these would lack."""
    batch = Encoding({"ids": LOGITS}, encodings=["a", "b", "c"])
    assert map_tensors(lambda tensor: tensor, batch) is batch


class Scaled(dict):
    """Has a setting of its own, which a mapping made of its items alone would lack."""

    def __init__(self, items, scale=1.0):
        super().__init__(items)
        self.scale = scale


@pytest.mark.parametrize(
    "mapping",
    [Scaled({"x": LOGITS}, scale=5.0), defaultdict(list, x=LOGITS), Encoding({"x": LOGITS}, ["a"])],
)
def test_what_cannot_be_made_of_its_items_alone_becomes_a_dict(mapping):
    rows = take_rows(mapping, torch.tensor([0]))
    assert type(rows) is dict
    assert rows["x"].tolist() == [[0.0, 1.0]]
