"""A grid that wraps another one hands every call on."""

from __future__ import annotations

from flwr.serverapp import Grid

from fedif_flower.messages.forwarding_grid import ForwardingGrid


def test_every_method_of_flowers_grid_has_an_answer():
    assert ForwardingGrid.__abstractmethods__ == {"send_and_receive"}
    assert Grid.__abstractmethods__ - {"send_and_receive"} <= vars(ForwardingGrid).keys()
