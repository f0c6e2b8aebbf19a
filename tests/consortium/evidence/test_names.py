from __future__ import annotations

import pytest

from fedif_consortium.evidence.names import as_read, is_name, mixed_scripts, require_apart
from fedif_flower.errors import ConfigError

CYRILLIC_O = "\u043e"
FULL_WIDTH = "\uff22\uff4f\uff42"  # Bob


def test_names_are_compared_as_they_are_read():
    assert as_read(FULL_WIDTH) == as_read("Bob") == as_read("bob") == "bob"
    assert as_read("Stra\u00dfe") == as_read("STRASSE")
    assert as_read("bob") != as_read(f"b{CYRILLIC_O}b")


@pytest.mark.parametrize(
    "other",
    [
        "hospital\u20101",  # dashes of other lengths
        "hospital\u20131",
        "hospital\u22121",
        "hospital-1\ufe0f",  # marks that nobody sees
        "hos\u034fpital-1",
        "hospital-1 ",
        "hospital\u00ad-1",
        "hospital-1\u3164",  # letters that are drawn as nothing
        "hospital-1 \u3164",
        "hospital-1\uffa0",
        "\u115fhospital-1",
        "hospital-1\u17b5",
        "hospital-1\u2800",
    ],
)
def test_what_nobody_sees_makes_no_other_name(other):
    assert as_read(other) == as_read("hospital-1")
    assert as_read("Ada\u2800Holm") == as_read("Ada Holm")
    assert as_read("Ada  Holm") == as_read("Ada Holm") != as_read("AdaHolm")


@pytest.mark.parametrize(
    ("name", "word"),
    [
        (f"b{CYRILLIC_O}b", f"b{CYRILLIC_O}b"),
        (f"St. M{CYRILLIC_O}ritz", f"m{CYRILLIC_O}ritz"),
        ("\u03b1lpha", "\u03b1lpha"),  # a Greek alpha
        ("St. Mary's & Co, no 2", ""),
        ("Klinik \u0411\u043e\u043b\u044c\u043d\u0438\u0446\u0430", ""),  # a word in each script
        ("\u6771\u4eac\u306e\u30d7\u30fc\u30eb", ""),  # Han, Hiragana and Katakana
        ("\u00c9cole-n\u00ba1", ""),
    ],
)
def test_a_word_in_letters_of_several_scripts_is_no_name(name, word):
    assert mixed_scripts(name) == word


def test_names_that_read_alike_are_refused():
    require_apart(["ada", "bob", "ada"], "members:")
    for other in ("Bob", FULL_WIDTH):
        with pytest.raises(ConfigError, match=f"members: '{other}' and 'bob' read alike"):
            require_apart(["bob", other], "members:")
    with pytest.raises(ConfigError, match=r"'b' Latin, '\\u043e' Cyrillic, 'b' Latin are of sev"):
        require_apart([f"b{CYRILLIC_O}b"], "members:")


@pytest.mark.parametrize(
    ("name", "other"),
    [("hospital", "hospitaI"), ("A1", "Al"), ("site-10", "site-lO"), ("klinik-0", "Klinik-o")],
)
def test_names_that_some_typefaces_draw_alike_are_refused(name, other):
    with pytest.raises(ConfigError, match="read alike"):
        require_apart([name, other], "members:")
    require_apart([name, name], "members:")


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("hospital-a", "hospit\u0251l-a"),
        ("HOSPITAL-A", "hospit\u0251l-a"),
        ("clinic", "cl\u0131nic"),
        ("gent", "\u0261ent"),
        ("ada", "\u1d00da"),
        ("ADA", "\u1d00\u1d05\u1d00"),
        ("bob", "\u0299ob"),
        ("A1", "\u1d00l"),
        ("site-10", "s\u0131te-lO"),
        ("istanbul", "\u0130stanbul"),
        ("\u0131stanbul", "istanbul"),
        ("St. Ann's", "St. Ann\u2019s"),
        ("St. Ann's", "St. Ann\u2018s"),
        ("St. Ann's", "St. Ann\u02bcs"),
        ("St. Ann's", "St. Ann`s"),
        ("St. Ann's", "St. Ann\u00b4s"),
        ("St. Ann\u2019s", "ST. ANN\uff40S"),
        ("hospital-1", "hospital\u02d71"),
        ("hospital-1", "hospital\u20431"),
    ],
)
def test_names_in_letters_that_look_alike_are_refused(name, other):
    for pair in ([name, other], [other, name]):
        with pytest.raises(ConfigError, match="read alike; allowed: one of them"):
            require_apart(pair, "members:")
    for alone in (name, other):
        require_apart([alone, alone, "somebody else"], "members:")
        assert is_name(alone)


def test_a_letter_with_a_mark_or_of_its_own_is_another_one():
    names = [
        "\u00c9cole",
        "Ecole",
        "Gr\u00e4z",
        "Graz",
        "S\u00f8r",
        "Sor",
        "\u0141\u00f3d\u017a",
        "Lodz",
    ]
    require_apart([*names, "Izmir", "D\u0131yarbak\u0131r", "St. Anns"], "members:")


def test_numbers_and_letters_that_are_not_drawn_alike_are_names():
    require_apart([f"client {number}" for number in range(1200)], "members:")
    require_apart(["site-1", "site-i", "site-L2", "A0", "A1", "ward b", "ward 8"], "members:")


@pytest.mark.parametrize("name", ["\u3164", "\u2800 \u2800", "\u115f"])
def test_a_name_that_nobody_sees_is_none(name):
    assert not is_name(name)
