from __future__ import annotations

import pytest
from flwr.app import Error
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.errors import ReplyError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screening import RefusedReply
from fedif_flower.messages.text import MAX_LENGTH, one_line, printable, reason_of


@given(st.text(st.characters(codec=None)))  # halves of surrogate pairs too
def test_any_text_becomes_short_printable_ascii(text):
    clean = printable(text)
    assert len(clean) <= MAX_LENGTH
    assert all(" " <= character <= "~" for character in clean)
    assert printable(clean) == clean


def test_by_hand():
    assert printable("a\ud800\x1b[2J\r\n\tZoë") == "a??[2J???Zo?"
    assert printable("x" * (20 << 20)) == "x" * 197 + "..."
    assert printable(ValueError("no\nline")) == "no?line"


@pytest.mark.parametrize("error", [KeyError("no\n'key'>"), ReplyError("<class 'int'>:<'1'>")])
def test_an_app_s_exception_is_told_without_flower_s_marks(error):
    told = f"{type(error)}:<'{error}'>"
    assert reason_of(Error(2, told)) == f"{type(error).__name__}: {error}"
    assert reason_of(Error(2, told[1:])) == told[1:]


@given(st.text(st.characters(codec=None)))
def test_the_operator_s_own_text_is_one_line_with_all_its_letters(text):
    assert len(one_line(text)) <= MAX_LENGTH
    assert one_line(text).isprintable()
    assert one_line("Köln\n\x1b[2J\u202e\ud800 京都") == "Köln??[2J?? 京都"


def test_text_of_a_client_is_clean_where_it_enters():
    node = ClientNode(0, 7, attack="\x1b" * 100, name="Å\nB", note="\ud800")
    assert (node.attack, node.name, node.note) == ("?" * 37 + "...", "Å?B", "?")
    assert RefusedReply(node, "array '\ud800'\n" + "y" * 300).reason == (
        "array '?'?" + "y" * 187 + "..."
    )
