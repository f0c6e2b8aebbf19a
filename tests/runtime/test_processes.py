from __future__ import annotations

import os
import signal

from fedif_flower.runtime.processes import StopRequest


def test_stop_request_remembers_the_signal_and_restores_handlers() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        assert stop.signal_number is None
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal_number == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before
