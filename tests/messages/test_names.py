"""Which arrays are one under two names, and what an error says where none match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.errors import ConfigError
from fedif_flower.messages.names import (
    WRAPPERS,
    matched,
    mismatch,
    names_in_model,
    reply_mismatch,
    wrapper_of,
)

PART = st.sampled_from(["conv", "bn", "0", "1", "head", "weight", "bias"])
NAMES = st.lists(PART, min_size=1, max_size=4).map(".".join)


@given(st.sets(NAMES, min_size=1, max_size=8), st.sampled_from(list(WRAPPERS)), st.booleans())
def test_a_wrapper_is_found_on_either_side(names, wrapper, is_sent):
    wrapped = {f"{wrapper}.{name}": name for name in names}
    pairs = wrapped if is_sent else {name: longer for longer, name in wrapped.items()}
    assert matched(pairs, list(pairs.values())) == pairs
    assert wrapper_of(pairs) == wrapper


@given(st.sets(NAMES, min_size=1, max_size=8), st.sampled_from(list(WRAPPERS)))
def test_a_wrapper_within_is_found_as_well(names, wrapper):
    pairs = {f"net.{wrapper}.{name}": f"net.{name}" for name in names}
    assert matched(pairs, list(pairs.values())) == pairs
    assert wrapper_of(pairs) == wrapper


@given(st.sets(NAMES, max_size=8), st.sets(NAMES, max_size=8))
def test_no_array_stands_for_two(sent, own):
    unknown, unsent = sent - own, own - sent
    pairs = matched(sorted(unknown), sorted(unsent))
    assert pairs.keys() <= unknown
    assert set(pairs.values()) <= unsent
    assert len(set(pairs.values())) == len(pairs)


def test_a_name_with_a_million_parts_takes_no_time():
    endless = ".".join("a" for _ in range(10**6))
    assert matched([endless], ["head.weight"]) == {}
    assert len(reply_mismatch({"head.weight"}, {endless})) < 3 * 10**6


@pytest.mark.parametrize(
    ("unknown", "unsent", "words"),
    [
        (
            [],
            ["norm.weight"],
            "FedIF was given a model that trains 'norm.weight', which initial_arrays lack: freeze "
            "what members keep, by requires_grad_(False)",
        ),
        (
            ["head.weight"],
            [],
            "FedIF was given a model without 'head.weight', which initial_arrays have: give FedIF "
            "a model that has what is sent",
        ),
        (
            ["head.weight"],
            ["vit.head.weight"],
            "FedIF was given a model without 'head.weight', which initial_arrays have and that "
            "trains 'vit.head.weight', which initial_arrays lack: say which is which by "
            "setup=Setup(names={'head.weight': 'vit.head.weight'})",
        ),
        (
            ["module.a"],
            ["a"],
            "FedIF was given a model without 'module.a', which initial_arrays have and that trains "
            "'a', which initial_arrays lack: 'module.' is what DataParallel or "
            "DistributedDataParallel puts before names; send the arrays of model.module, or say "
            "which is which by setup=Setup(names={'module.a': 'a'})",
        ),
        (
            ["a"],
            ["_orig_mod.a", "kept"],
            "FedIF was given a model without 'a', which initial_arrays have and that trains "
            "'_orig_mod.a', 'kept', which initial_arrays lack: '_orig_mod.' is what torch.compile "
            "puts before names; give FedIF model._orig_mod, or say which is which by "
            "setup=Setup(names={'a': '_orig_mod.a'}), freeze what members keep, by "
            "requires_grad_(False)",
        ),
        (
            ["0", "1"],
            ["weight", "bias"],
            "FedIF was given a model without '0', '1', which initial_arrays have and that trains "
            "'bias', 'weight', which initial_arrays lack: a list of arrays has no names; in the "
            "order of the model's own they are setup=Setup(names=dict(zip(initial_arrays, "
            "model.state_dict(), strict=True)))",
        ),
        (
            ["other"],
            ["weight"],
            "FedIF was given a model without 'other', which initial_arrays have and that trains "
            "'weight', which initial_arrays lack: freeze what members keep, by "
            "requires_grad_(False), give FedIF a model that has what is sent, or say which is "
            "which by setup=Setup(names={'other': ...})",
        ),
    ],
)
def test_both_sides_and_what_to_do_are_named(unknown, unsent, words):
    assert mismatch("FedIF", unknown, unsent, unsent) == words


def test_what_is_trained_comes_before_what_is_frozen():
    frozen = ["body.weight", "body.bias"]
    trained = ["head.weight", "head.bias"]
    words = mismatch("FedIF", ["weight", "bias"], trained, frozen + trained)
    assert words.endswith("Setup(names={'weight': 'head.weight', 'bias': 'head.bias'})")


def test_a_reply_of_a_wrapped_model_says_so():
    words = reply_mismatch({"a", "b"}, {"_module.a", "_module.b"})
    assert words == (
        "arrays missing: a and 1 more; unexpected arrays: _module.a and 1 more; '_module.' is what "
        "Opacus puts before names; a reply has the arrays that were sent"
    )
    assert len(words) < 200  # What reports keep of it.


def test_what_a_model_calls_an_array():
    sent = ["a", "b"]
    assert names_in_model(None, sent) == {"a": "a", "b": "b"}
    assert names_in_model({"a": "c"}, sent) == {"a": "c", "b": "b"}
    assert names_in_model(lambda name: f"net.{name}", sent) == {"a": "net.a", "b": "net.b"}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"c": "d"}, "names has 'c', which initial_arrays lack; allowed: 'a', 'b'"),
        ({"a": "b"}, "names calls both 'a' and 'b' 'b'"),
        (lambda name: None, "names gives None for 'a'; allowed: a name"),
    ],
)
def test_names_that_lead_nowhere_are_refused(names, words):
    with pytest.raises(ConfigError, match=f"^{words}$"):
        names_in_model(names, ["a", "b"])
