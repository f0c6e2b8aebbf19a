from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screening import RefusedReply
from fedif_flower.messages.text import MAX_LENGTH, one_line, printable


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
