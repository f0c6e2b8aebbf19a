"""Strangers and a member flood the port of a SuperLink; the honest members' rounds go on.

How long the rounds then take is measured by ``python -m fedif_studies.benchmarks.siege``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.integration.deployed import marks
from tests.integration.siege import Siege
from tests.integration.strangers import ATTACKS

pytestmark = [
    *marks,
    pytest.mark.all,
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed"),
]

ROUNDS = 2
MORE_MEMORY = 200 * 2**20
TOGETHER = (
    ("endless_header", "many_headers"),
    ("slow_bodies",),
    ("half_open",),
    ("bombs",),
    ("member_flood",),
)


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    with Siege(tmp_path_factory.mktemp("siege")) as siege:
        yield siege


@pytest.fixture(scope="module")
def usual(siege: Siege) -> int:
    """Return what the SuperLink holds in memory when nobody attacks."""
    return siege.phase(rounds=1).peak


def test_every_attack_is_mounted() -> None:
    assert {name for names in TOGETHER for name in names} == set(ATTACKS)


@pytest.mark.parametrize("names", TOGETHER, ids="+".join)
def test_rounds_go_on_beside_it(siege: Siege, usual: int, names: tuple[str, ...]) -> None:
    phase = siege.phase(*names, rounds=ROUNDS)
    assert len(phase.seconds) >= ROUNDS, phase.found
    assert phase.peak < usual + MORE_MEMORY, (phase.peak, usual)
    for name in names:
        assert phase.found[name].get("connections"), (name, phase.found)
    # No stranger's request was answered as a node's is.
    answers = {a for name in names if name != "member_flood" for a in phase.found[name]}
    assert not {answer for answer in answers if answer.startswith("2")}


def test_who_floods_is_named(siege: Siege) -> None:
    assert "127.0.0.2: " in (siege.server / "nginx" / "slowed.log").read_text()
    for log in ("superlink", "nginx"):
        assert "Too many open files" not in siege.log(log)
