"""A registered member that speaks the protocol itself does its worst; two honest ones learn on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedif_flower.run.rows import read_rows
from tests.integration.deployed import marks
from tests.integration.protocol_arena import HONEST, NAMES, PROCESSES, Arena, Played
from tests.integration.protocol_attacks import ATTACKS, GUESSES, in_turn

pytestmark = [*marks, pytest.mark.all]

# What the last sweep, aggregation and evaluation may need beyond the deadline on a busy machine.
# Rounds that waited for what never came took 196 s where 60 were allowed.
GRACE = 30.0
# An answer counts surely if it was there this long before the deadline.
IN_TIME = 0.75
MAX_RESIDENT_BYTES = 1.5e9
# Every attack once. Those that use up the message to their sender are the last of a turn; the last
# turn takes a timeout.
TURNS = (
    ("guesses_ids", "forges"),
    ("deletes_others", "no_message", "long_request", "chunk_bomb"),
    ("many_objects", "wrong_tree", "small_chunk_bomb"),
    ("heavy_arrays",),
    ("heavy_metrics",),
    ("heavy_config",),
    ("odd_metadata", "sends_twice"),
    ("spoils_content",),
    ("other_content", "reports_an_error"),
    ("says_nothing", "announces_only", "uploads_half"),
)


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with Arena(tmp_path_factory.mktemp("protocol")) as arena:
        yield arena


# On a busy machine an attack may take longer than its round, and miss the next.
SPARE_ROUNDS = 4


@pytest.fixture(scope="module")
def played(arena: Arena) -> Played:
    """Every attack once, then a member that only fails."""
    turns = (*TURNS, *[()] * SPARE_ROUNDS)
    return arena.play("every", len(turns), lambda turn: in_turn(*turns[turn]))


def rows_of(played: Played, name: str) -> list[dict[str, str]]:
    return read_rows(played.run_dir / f"{name}.csv")


def test_every_attack_was_mounted(played: Played) -> None:
    assert {name for turn in TURNS for name in turn} == set(ATTACKS)
    assert played.attacks >= len(TURNS)


def test_replies_in_time_count(played: Played) -> None:
    rows = {(int(r["round"]), int(r["partition_id"])): r for r in rows_of(played, "clients")}
    in_time = [key for key, took in played.answered.items() if took < IN_TIME * played.timeout]
    # Or the machine was too busy to say anything.
    assert len(in_time) > 0.5 * len(HONEST) * len(rows_of(played, "rounds"))
    for server_round, name in in_time:
        row = rows[server_round, NAMES.index(name)]
        assert row["rejection"] == "", (server_round, name, row["rejection"])


def test_rounds_keep_their_timeout(played: Played) -> None:
    rounds = rows_of(played, "rounds")[1:]
    late = {row["round"]: row["round_seconds"] for row in rounds}
    assert all(float(seconds) < played.timeout + GRACE for seconds in late.values()), late


def test_the_model_learns(played: Played) -> None:
    accuracies = [float(row["test_accuracy"]) for row in rows_of(played, "rounds")]
    assert accuracies[-1] > accuracies[0] + 0.3


def test_nobody_answers_in_anothers_name(played: Played) -> None:
    assert played.guesses >= GUESSES
    assert played.hits == 0


def test_a_message_holds_no_other_members_id(played: Played) -> None:
    assert played.leaked == set()


def test_the_server_stays_small(played: Played) -> None:
    assert played.peaks.keys() == set(PROCESSES)
    assert max(played.peaks.values()) < MAX_RESIDENT_BYTES, played.peaks
