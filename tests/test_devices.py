from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

from fedif_flower.devices import fix_threads, select_device, torch_threads
from fedif_flower.errors import ConfigError
from fedif_flower.strategies import FedAvg, Setup


@pytest.mark.parametrize("kind", [str, torch.device])
def test_a_device_that_is_not_there_is_an_error_not_another_device(kind):
    with pytest.raises(ConfigError, match="device = 'cuda:99': this process sees"):
        select_device(kind("cuda:99"))
    assert select_device(kind("cpu")) == torch.device("cpu")


def test_weights_are_computed_where_float64_is(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert select_device("mps").type == "mps"
    assert FedAvg(setup=Setup(device="mps")).device.type == "cpu"


def test_fixed_threads_stay_whatever_another_thread_sets():
    started, change = Event(), Event()

    def work() -> int:
        started.set()
        change.wait()
        return torch.get_num_threads()

    before = torch.get_num_threads()
    with ThreadPoolExecutor(1, initializer=fix_threads, initargs=(before + 1,)) as pool:
        answer = pool.submit(work)
        started.wait()
        with torch_threads(before + 2):
            change.set()
            assert answer.result() == before + 1
    assert torch.get_num_threads() == before
