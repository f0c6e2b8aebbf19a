from __future__ import annotations

import threading
from time import sleep

import pytest
import torch

from fedif_flower.valuation.replica_pool import ReplicaPool


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_answers_come_in_the_order_of_the_items():
    def work(member: str, item: int) -> str:
        sleep(0.01 * (item % 3))
        return f"{item}"

    assert ReplicaPool(["a", "b", "c"]).map(work, range(9)) == [str(item) for item in range(9)]


def test_nobody_works_twice_at_a_time():
    busy, lock = set(), threading.Lock()

    def work(member: str, item: int) -> str:
        with lock:
            assert member not in busy
            busy.add(member)
        sleep(0.002)
        with lock:
            busy.remove(member)
        return member

    assert set(ReplicaPool(["a", "b"]).map(work, range(20))) == {"a", "b"}


def test_a_member_has_one_core_and_others_keep_theirs(two_threads):
    pool = ReplicaPool(["a", "b"])
    assert pool.size == 2
    assert pool.map(lambda replica, _: torch.get_num_threads(), range(4)) == [1] * 4
    assert torch.get_num_threads() == 2
    seen: list[int] = []
    newcomer = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    newcomer.start()
    newcomer.join()
    assert seen == [2]


def test_errors_are_raised_and_the_pool_goes_on():
    pool = ReplicaPool(["a"])
    with pytest.raises(ZeroDivisionError):
        pool.map(lambda replica, item: 1 / item, [1, 0])
    assert pool.map(lambda replica, item: item, [1]) == [1]
