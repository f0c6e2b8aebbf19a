"""A run's tables as they grow."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedif_consortium.watch.reader import STATUSES, MemberTotals, RunReader
from fedif_flower.errors import ConfigError
from tests.consortium.watch.made import client, make_folder

LARGE = 2**63 + 7  # A node id beyond signed numbers, which a float would round.
LINES = [
    client(1, 7, weight=0.75, weight_score=0.5),
    client(1, LARGE, "refused", rejection='a, "quoted" reason'),
    client(2, 7, weight=0.25),
    client(2, LARGE, "away"),
    client(3, LARGE, "late"),
    client(3, 7, "failed", malicious=True),
]


def test_a_member_s_lines_are_summed_up(tmp_path):
    folder = make_folder(
        tmp_path, LINES, contributions={(1, 7): 0.5, (2, 7): -0.125}, names={7: "Köln"}
    )
    found = RunReader(folder).read()
    zero = dict.fromkeys(STATUSES, 0)
    assert found.members == {
        7: MemberTotals(
            client_id=7,
            partition_id=7,
            malicious=True,
            counts=zero | {"accepted": 2, "failed": 1},
            misses=1,
            last_round=3,
            last_status="failed",
            answered=3,
            rejection="why",
            rejected=3,
            weight=1.0,
            weight_score=0.5,
            contribution=0.375,
        ),
        LARGE: MemberTotals(
            client_id=LARGE,
            partition_id=LARGE % 100,
            counts=zero | {"refused": 1, "away": 1, "late": 1},
            misses=3,
            last_round=3,
            last_status="late",
            answered=1,
            rejection="why",
            rejected=3,
        ),
    }
    assert found.names == {7: "Köln"}
    assert found.config["num-server-rounds"] == 10


@settings(max_examples=25)
@given(
    lines=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(STATUSES), st.sampled_from([None, 0.5, 2.0])),
        max_size=12,
    ),
    cut=st.integers(0, 12),
)
def test_what_is_read_in_two_parts_is_what_is_read_at_once(tmp_path_factory, lines, cut):
    path = tmp_path_factory.mktemp("run")
    made = [
        client(number, who, status, weight_score=score)
        for number, (who, status, score) in enumerate(lines, start=1)
    ]
    folder = make_folder(path, made[:cut])
    reader = RunReader(folder)
    reader.read()
    folder.clients.append(made[cut:])
    assert reader.read().members == RunReader(folder).read().members


def test_a_half_written_line_waits_for_its_other_half(tmp_path):
    folder = make_folder(tmp_path, LINES[:1])
    whole = folder.clients.path.read_bytes()
    reader = RunReader(folder)
    folder.clients.append([client(2, 7)])
    grown = folder.clients.path.read_bytes()
    folder.clients.path.write_bytes(grown[: len(whole) + 5])
    assert reader.read().members[7].asked == 1
    with folder.clients.path.open("ab") as file:
        file.write(grown[len(whole) + 5 :])
    assert reader.read().members[7].asked == 2


def test_tables_that_were_replaced_are_read_from_their_beginning(tmp_path):
    folder = make_folder(tmp_path, LINES, contributions={(1, 7): 0.5})
    reader = RunReader(folder)
    assert len(reader.read().members) == 2
    make_folder(tmp_path, LINES[:1], contributions={(1, 7): 0.25})
    members = reader.read().members
    assert set(members) == {7}
    assert (members[7].asked, members[7].contribution) == (1, 0.25)
    folder.clients.path.unlink()
    assert reader.read().members[7].asked == 0  # What it contributed is still there.


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("clients.csv", "round,client_id,status\n1,7,excellent\n", "excellent"),
        ("quarantine.csv", "client_id,until_round\n7,1\n", "quarantine.csv"),
        ("state.json", "{", "state.json"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(tmp_path, file, content, named):
    folder = make_folder(tmp_path, LINES)
    (tmp_path / file).write_text(content)
    with pytest.raises(ConfigError, match=named):
        RunReader(folder).read()
