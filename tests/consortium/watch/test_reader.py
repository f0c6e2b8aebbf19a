"""A run's tables as they grow."""

from __future__ import annotations

import pytest

from fedif_consortium.watch.reader import MemberTotals, read_records
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
    with folder.clients.path.open("ab") as file:
        file.write(b"4,7,7,0,")  # A line that is still being written.
    found = read_records(folder)
    assert found.members == {
        7: MemberTotals(
            client_id=7,
            partition_id=7,
            malicious=True,
            asked=3,
            accepted=2,
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
            asked=3,
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
        read_records(folder)
