from __future__ import annotations

from io import BytesIO

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.client_table import ClientTable

NODE = 2**64 - 1  # Flower's ids are unsigned 64-bit numbers.
rounds = st.lists(st.dictionaries(st.integers(0, NODE), st.floats(allow_nan=False), max_size=90))


def test_a_client_without_a_row_has_the_default():
    table = ClientTable(errors=0, score=0.5)
    table.write([NODE, 7], errors=[1, 2])
    assert table.read([7, 8, NODE], "errors").tolist() == [2, 0, 1]
    assert table.where(table.column("errors") > 1) == {7}


@given(rounds)
def test_it_holds_what_a_dict_would_before_and_after_a_checkpoint(rounds):
    table, expected = ClientTable(score=-1.0), {}
    for scores in rounds:
        table.write(list(scores), score=list(scores.values()))
        expected |= scores
    file = BytesIO()
    torch.save(table.state_dict(), file)
    again = ClientTable(score=-1.0)
    again.load_state_dict(torch.load(BytesIO(file.getvalue()), weights_only=True))
    for found in (table, again):
        assert found.client_ids == list(expected)
        assert found.column("score").tolist() == list(expected.values())
        assert found.read([5, *expected], "score").tolist() == [
            expected.get(5, -1.0),
            *expected.values(),
        ]


def test_a_client_that_is_listed_twice_has_one_row():
    table = ClientTable(score=0.0)
    table.write([7, 7], score=[0.1, 0.2])
    table.write([8], score=[0.3])
    assert table.client_ids == [7, 8]
    assert table.read([7, 8], "score").tolist() == [0.2, 0.3]


def test_later_rounds_do_not_change_a_state():
    table = ClientTable(score=0.0)
    table.write([1, 2], score=[0.1, 0.2])
    state = table.state_dict()
    table.write([2, 3], score=[0.5, 0.6])
    assert (state["client_ids"].tolist(), state["score"].tolist()) == ([1, 2], [0.1, 0.2])
