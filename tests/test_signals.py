"""Signals that ask a process to end."""

from __future__ import annotations

import signal

from fedif_flower.signals import ended_as_interrupted


def test_a_handler_that_was_not_set_from_python_stays(monkeypatch):
    """As in a program that embeds Python: ``getsignal`` cannot tell it, nor can it be put back."""
    changed = []
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda *arguments: changed.append(arguments))
    with ended_as_interrupted():
        pass
    assert changed == []
