"""What a statement says of the held-out set: a verdict, whose order is open, and what swaps two."""

from __future__ import annotations

import json

import pytest

from fedif_consortium.statement.account import settle
from fedif_consortium.statement.bundle import account_json, make_statement
from fedif_consortium.statement.held_out import NearestSwap
from fedif_consortium.statement.manifest import ACCOUNT
from fedif_consortium.statement.records import read_run
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement.runs import make_run
from tests.consortium.watch.test_page import Outline

ALIKE = (0.25, 0.25, 0.25, 0.25)
# Of 3 nats in all the block means are 3.6 and 2.4: se^2 = 4 x .6^2 / 12 = .12.
UNEVEN = (0.3, 0.2, 0.3, 0.2)
CLEAN = {"corrected_noise": 0.0, "examples": 100, "noise": 0.0, "low": 0.0, "high": 0.0}
ROUNDS = [{0: 0.5, 1: 0.25}] * 6


def run_of(folder, found=CLEAN, rounds=ROUNDS, first=UNEVEN, **more):
    """A run of two members with 3 and 1.5 nats, or of those in ``rounds``."""
    blocks = dict.fromkeys(rounds[0], ALIKE) | {0: first}
    provenance = more.pop("provenance", {})
    if found is not None:
        provenance = {"held_out": {"missing": [], **found}, **provenance}
    more.setdefault("blocks", blocks)
    return make_run(folder / "run", rounds, provenance=provenance, **more)


def held_out_of(folder, found=CLEAN, *, accept=False, **more):
    run = run_of(folder, found, **more)
    return settle(read_run(run), 1000, accept_held_out=accept).held_out


def doubts_of(held_out) -> dict[str, tuple[int, ...]]:
    return {doubt.reason: doubt.members for doubt in held_out.doubts}


def test_an_examined_set_that_tells_members_apart_is_settled(tmp_path):
    held_out = held_out_of(tmp_path)
    assert (held_out.verdict, held_out.unjudged, held_out.doubts) == ("settled", "", ())
    assert (held_out.examples, held_out.wrong, held_out.is_accepted) == (100, 0.0, False)


@pytest.mark.parametrize(
    ("high", "corrected", "verdict"),
    [
        # 1.5^2 / (100 x .12) = .1875 = d / (1 - d) for d = .158.
        (0.15, 0.0, "settled"),
        (0.16, 0.0, "open"),
        (0.35, 0.2, "settled"),
        (0.35, 0.15, "open"),
    ],
)
def test_wrong_labels_that_could_change_the_order(tmp_path, high, corrected, verdict):
    found = CLEAN | {"noise": corrected, "high": high, "corrected_noise": corrected}
    # Where the loss is corrected, the order is the same at both ends of the interval.
    ends = dict.fromkeys((0, 1), (1.0, 1.0)) if corrected else {}
    held_out = held_out_of(tmp_path, found, at_noise_ends=ends)
    assert held_out.verdict == verdict
    expected = {"possibly-wrong-labels": (0, 1)} if verdict == "open" else {}
    assert doubts_of(held_out) == expected


@pytest.mark.parametrize("blocks", [UNEVEN, ALIKE])
def test_where_every_label_may_be_wrong_everybody_could_change_places(tmp_path, key, blocks):
    """The reach d / (1 - d) is infinite for d = 1; so it is where members differ by no luck."""
    found = CLEAN | {"noise": 0.05, "high": 1.0}
    held_out = held_out_of(tmp_path, found, first=blocks)
    assert held_out.verdict == "open"
    assert doubts_of(held_out)["possibly-wrong-labels"] == (0, 1)
    make_statement(tmp_path / "run", key)
    verify(tmp_path / "run")


@pytest.mark.parametrize(
    ("noise", "by_class", "verdict", "confused"),
    [
        (0.0, 0.16, "open", 0.16),  # As above: the order holds up to .158.
        (0.0, 0.15, "settled", 0.15),
        (0.1, 0.19, "settled", 0.0),  # No more than models confuse by themselves.
    ],
)
def test_labels_that_may_be_confused_could_change_the_order(
    tmp_path, noise, by_class, verdict, confused
):
    found = CLEAN | {"noise": noise, "high": noise, "by_class": by_class}
    held_out = held_out_of(tmp_path, found)
    assert (held_out.verdict, held_out.confused) == (verdict, confused)


def test_a_loss_that_is_corrected_by_class_needs_no_ends(tmp_path, key):
    found = CLEAN | {"high": 0.1, "by_class": 0.3, "corrected_noise": 0.3}
    chances = {"corrected_by_class": True, "transitions": [[0.6, 0.4], [0.2, 0.8]]}
    run = run_of(tmp_path, found | chances)
    account = settle(read_run(run), 1000)
    held_out = account.held_out
    assert (held_out.verdict, held_out.is_corrected_by_class) == ("settled", True)
    folder = make_statement(run, key)
    page = text_of(folder / "statement.html")
    assert "the loss is corrected for 30 %, by class" in page
    assert "Up to 30 % may be confused by class" in page


@pytest.mark.parametrize("share", [0.19, 0.41, 0.9])
def test_a_share_by_class_has_to_follow_from_the_chances(tmp_path, share):
    """With 40 and 20 % wrong, any mix of the classes has between 20 and 40 %."""
    chances = {"corrected_by_class": True, "transitions": [[0.6, 0.4], [0.2, 0.8]]}
    run = run_of(tmp_path, CLEAN | chances | {"corrected_noise": share})
    words = "which does not follow from transitions: by these it lies between 0.2 and 0.4"
    with pytest.raises(ConfigError, match=words):
        settle(read_run(run), 1000)


@pytest.mark.parametrize("transitions", [[], [[0.6, 0.4], [0.8]], [[0.6]] * 2])
def test_chances_by_class_are_a_square_matrix(tmp_path, transitions):
    chances = {"corrected_by_class": True, "transitions": transitions, "corrected_noise": 0.3}
    run = run_of(tmp_path, CLEAN | chances)
    with pytest.raises(ConfigError, match=r"held_out: .* transitions are no square matrix"):
        settle(read_run(run), 1000)


def test_the_order_of_those_who_are_alike_is_open(tmp_path):
    rounds = [{0: 0.5, 1: 0.25, 2: 0.24}] * 6
    blocks = {0: ALIKE, 1: UNEVEN, 2: ALIKE}
    held_out = held_out_of(tmp_path, rounds=rounds, blocks=blocks)
    assert (held_out.verdict, doubts_of(held_out)) == ("open", {"too-few-examples": (1, 2)})


def test_who_is_alike_with_the_last_of_a_group_is_named_too(tmp_path):
    """The first one is told apart from the third, the second from neither.

    Parts of 3, 2.4 and 1.8 nats by block: the second one's differ from the others' by .6 in two
    blocks, up and down, so that se^2 = 4 x 2 x .6^2 / 3 = .96 of either difference.
    """
    rounds = [{0: 0.5, 1: 0.4, 2: 0.3}] * 6
    shares = {0: (3.0, [0.75, 0.75, 0.75, 0.75]), 2: (1.8, [0.45, 0.45, 0.45, 0.45])}
    shares[1] = (2.4, [1.2, 0.0, 0.6, 0.6])
    blocks = {i: tuple(part / total for part in parts) for i, (total, parts) in shares.items()}
    held_out = held_out_of(tmp_path, rounds=rounds, blocks=blocks)
    assert doubts_of(held_out) == {"too-few-examples": (0, 1, 2)}


@pytest.mark.parametrize(
    ("examples", "ahead", "verdict"),
    [
        # t = 2.093 with 19 degrees; 1 nat in one block of 20 has a standard error of
        # sqrt(20 / 19 x (1 - 1 / 20)) = 1.
        (1, 1.09, "open"),
        (1, 1.10, "settled"),
        # In nine of them sqrt(20 / 19 x (1 / 9 - 1 / 20)) = .254, times t = .531.
        (9, -0.47, "open"),
        (9, -0.46, "settled"),
    ],
)
def test_classes_of_a_few_examples_are_covered_by_too_few_examples(
    tmp_path, key, examples, ahead, verdict
):
    """A class gives the first member 1 nat, from a block for each of its examples.

    By the others it is ahead by so much. Where it is told apart all the same, it is ahead also if
    the class is off by its standard error, which for one example is all of it.
    """
    others = [(2 + ahead) / 20] * 20
    of_class = [1 / examples] * examples + [0.0] * (20 - examples)
    of_first = [other + own for other, own in zip(others, of_class, strict=True)]
    total = sum(of_first)
    run = run_of(
        tmp_path,
        CLEAN | {"rare": {"7": examples}},
        rounds=[{0: total / 6, 1: 2 / 6}] * 6,
        blocks={0: tuple(part / total for part in of_first), 1: (0.05,) * 20},
    )
    held_out = settle(read_run(run)).held_out
    assert held_out.verdict == verdict
    assert doubts_of(held_out) == ({"too-few-examples": (0, 1)} if verdict == "open" else {})
    assert held_out.rare == (7,)
    if verdict == "open":
        page = text_of(make_statement(run, key) / "statement.html")
        assert "Fewer than ten examples are of the classes 7" in page


@pytest.mark.parametrize(
    ("found", "more", "reason"),
    [
        ({"missing": [2]}, {}, "missing-classes"),
        ({"noise": None, "low": None, "high": None}, {}, "labels-not-known"),
        ({}, {"blocks": {}}, "no-intervals"),
    ],
)
def test_what_is_not_known_leaves_everybodys_order_open(tmp_path, found, more, reason):
    held_out = held_out_of(tmp_path, CLEAN | found, **more)
    assert (held_out.verdict, doubts_of(held_out)) == ("open", {reason: (0, 1)})


def test_an_only_member_has_no_order(tmp_path):
    assert held_out_of(tmp_path, rounds=[{0: 0.5}] * 6).verdict == "settled"


AGAINST = {
    "surely more wrong than corrected": ({"low": 0.11, "noise": 0.2, "high": 0.3}, {}),
    "more than was ever measured": (
        {"low": 0.4, "noise": 0.45, "high": 0.5, "corrected_noise": 0.45},
        {},
    ),
    "contradicted": ({}, {"contradicted": 0.26}),
}
NOT_YET = {
    "not surely": ({"low": 0.1, "noise": 0.2, "high": 0.3}, {}),
    "corrected": ({"low": 0.2, "noise": 0.3, "high": 0.4, "corrected_noise": 0.3}, {}),
    "contradicted as corrected": (
        {"low": 0.1, "noise": 0.2, "high": 0.2, "corrected_noise": 0.2},
        {"contradicted": 0.4},
    ),
}


@pytest.mark.parametrize("case", AGAINST)
def test_a_set_that_is_not_to_be_paid_by(tmp_path, case):
    found, more = AGAINST[case]
    held_out = held_out_of(tmp_path, CLEAN | found, **more)
    assert held_out.verdict == "not-to-be-paid-by"
    reason = "contradicted" if case == "contradicted" else "wrong-labels"
    assert doubts_of(held_out)[reason] == (0, 1)


@pytest.mark.parametrize("case", NOT_YET)
def test_a_set_that_may_be_paid_by(tmp_path, case):
    found, more = NOT_YET[case]
    assert held_out_of(tmp_path, CLEAN | found, **more).verdict in ("open", "settled")


@pytest.mark.parametrize("found", [None, {"corrected_noise": 0.0}, {"corrected_noise": 0.2}])
def test_a_set_that_nobody_examined_has_no_verdict(tmp_path, key, found):
    held_out = held_out_of(tmp_path, found, contradicted=0.5)
    assert (held_out.verdict, held_out.unjudged, held_out.doubts) == (None, "not-examined", ())
    folder = make_statement(tmp_path / "run", key)
    for page in (folder / "statement.html", folder / "members" / "001.html"):
        assert "Not examined. The held-out set was not examined before" in text_of(page)


def test_a_run_without_shares_has_none_either(tmp_path):
    held_out = held_out_of(tmp_path, rounds=[{0: -0.5, 1: -0.25}] * 6)
    assert (held_out.verdict, held_out.unjudged) == (None, "no-shares")


def test_records_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"provenance\.json: held_out: high = 'x'"):
        held_out_of(tmp_path, CLEAN | {"high": "x"})


# -- secret data pay

WRONG = CLEAN | {"low": 0.11, "noise": 0.2, "high": 0.3}
NONE_YET = {"paying_commitment": "0" * 64, "paying_nonce": "a"}


def secret_of(folder, weighs, pays, paying=None, **more):
    """A run that pays by other data than it weighs by; its models contradict some of those."""
    provenance = NONE_YET | ({} if pays is None else {"paying_held_out": pays})
    run = RunFolder(run_of(folder, weighs, provenance=provenance, **more))
    lines = [line | {"paying_contradicted": paying} for line in run.rounds.read()]
    run.rounds.begin(["paying_contradicted"])
    run.rounds.append(lines)
    return settle(read_run(run.path), 1000).held_out


@pytest.mark.parametrize(
    ("weighs", "pays", "verdict", "wrong"),
    [(CLEAN, WRONG, "not-to-be-paid-by", 0.2), (WRONG, CLEAN, "settled", 0.0)],
)
def test_the_verdict_is_of_the_data_that_pay(tmp_path, weighs, pays, verdict, wrong):
    held_out = secret_of(tmp_path, weighs, pays)
    assert (held_out.verdict, held_out.wrong, held_out.is_secret) == (verdict, wrong, True)


@pytest.mark.parametrize(
    ("weighs", "pays", "verdict"), [(0.5, 0.2, "settled"), (0.2, 0.5, "not-to-be-paid-by")]
)
def test_so_is_what_the_model_contradicts(tmp_path, weighs, pays, verdict):
    held_out = secret_of(tmp_path, CLEAN, CLEAN, pays, contradicted=weighs)
    assert (held_out.verdict, held_out.contradicted) == (verdict, pays)


def test_data_that_pay_and_were_not_examined_have_no_verdict(tmp_path):
    """Earlier versions examined the data that weigh, and corrected both alike."""
    held_out = secret_of(tmp_path, CLEAN | {"corrected_noise": 0.3}, None)
    assert (held_out.verdict, held_out.unjudged) == (None, "not-examined")
    assert (held_out.corrected, held_out.examples) == (0.3, None)


# -- accepted


def text_of(page) -> str:
    return " ".join(Outline(page.read_text()).text.split())


def test_what_is_not_to_be_paid_by_is_refused_unless_accepted_and_signed(tmp_path, key):
    found, more = AGAINST["surely more wrong than corrected"]
    run = run_of(tmp_path, CLEAN | found, **more)
    with pytest.raises(ConfigError, match=r"not to be paid by: more held-out .*--accept-held-out"):
        make_statement(run, key)
    assert not (run / "statement").exists()
    folder = make_statement(run, key, accept_held_out=True)
    said = json.loads((folder / ACCOUNT).read_bytes())["held_out"]
    assert (said["verdict"], said["is_accepted"]) == ("not-to-be-paid-by", True)
    assert "a held-out set that is not to be paid by" in verify(run).chosen
    page = text_of(folder / "statement.html")
    assert "Not to be paid by. The operator goes on all the same, and signs that." in page
    assert "About 20 % of 100 labels looked wrong before the first round (11 to 30 %)" in page
    assert "pays by the held-out set all the same" in text_of(folder / "members" / "001.html")


def test_a_set_that_may_be_paid_by_needs_no_acceptance(tmp_path):
    assert not held_out_of(tmp_path, accept=True).is_accepted


def test_who_did_not_accept_cannot_say_nothing(tmp_path, key, monkeypatch):
    """An operator who leaves out the refusal makes a statement that nobody verifies."""
    found, more = AGAINST["contradicted"]
    run = run_of(tmp_path, CLEAN | found, **more)
    monkeypatch.setattr("fedif_consortium.statement.bundle.require_payable", lambda _: None)
    make_statement(run, key)
    with pytest.raises(StatementError, match="does not say that the operator accepted that"):
        verify(run)


# -- by class


def by_class(*parts):
    """Members' parts of contributions by class, in halves of the held-out set."""
    return {
        "by_class": 2,
        "classes": dict(enumerate(parts)),
        "provenance": {"held_out_classes": [0.5, 0.5]},
    }


def test_neighbours_and_the_least_change_that_swaps_them(tmp_path, key):
    """3 nats in the first class, 1.5 in the second one.

    The classes' means are 6, 0 and 0, 3: differences 6 and -3, D = 1.5, variance 4.5^2, and q has
    the second class 1 + 1.5 x 4.5 / 4.5^2 times as often.
    """
    held_out = held_out_of(tmp_path, **by_class([1, 0], [0, 1]))
    (swap,) = held_out.swaps
    assert (swap.ahead, swap.behind) == (0, 1)
    assert swap.distance == pytest.approx(1 / 9)
    assert swap.label in (0, 1)
    assert swap.times == pytest.approx((2 / 3, 4 / 3)[swap.label])
    page = text_of(make_statement(tmp_path / "run", key) / "statement.html")
    words = f"would be level with client-0 with class {swap.label} {swap.times:.2f} times as often"
    assert words in page.replace("partition 0", "client-0").replace("client 0", "client-0")
    verify(tmp_path / "run")


def test_who_is_ahead_in_every_class_stays_so(tmp_path, key):
    held_out = held_out_of(tmp_path, **by_class([0.5, 0.5], [0.5, 0.5]))
    assert held_out.swaps == (NearestSwap(0, 1, None, None, None),)
    page = text_of(make_statement(tmp_path / "run", key) / "statement.html")
    assert "1 of 1 pairs of neighbours keep their order with any mix" in page


@pytest.mark.parametrize("provenance", [{}, {"held_out_classes": [1.0]}])
def test_without_the_classes_parts_there_is_no_swap(tmp_path, provenance):
    more = by_class([1, 0], [0, 1]) | {"provenance": provenance}
    assert held_out_of(tmp_path, **more).swaps == ()


def test_swaps_are_of_credits(tmp_path):
    """Half of the first member's contribution is credited: both are level as it is."""
    held_out = held_out_of(tmp_path, credited={0: 0.5}, **by_class([1, 0], [0, 1]))
    assert held_out.swaps[0].distance == pytest.approx(0.0, abs=1e-12)


def test_an_account_reads_as_it_was_written(tmp_path):
    from fedif_consortium.statement.bundle import read_account

    account = settle(read_run(run_of(tmp_path, **by_class([1, 0], [0, 1]))))
    assert read_account(account_json(account)) == account
