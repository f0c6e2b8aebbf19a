from __future__ import annotations

import re
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.evidence.chained_log import ChainedLog, verified
from fedif_consortium.masking.masked_round import MaskedRound
from fedif_consortium.masking.policy import KeeperPolicy, least_for
from fedif_consortium.masking.ring import (
    SignSketch,
    decode,
    encode_vector,
    encode_weights,
)
from fedif_flower.errors import KeeperError, MaskingError, StorageError
from tests.consortium.masking.parties import OPEN, RUN, Parties, boxes_of

UPDATES = np.random.default_rng(0).normal(size=(5, 200)).astype(np.float32)
UNITS = np.eye(200, dtype=np.uint64)


PLACE = np.eye(1, 200, 7)[0]
LIMITS = KeeperPolicy(largest_known_share=9.0)


def _ask(*vectors):
    def ask(masked_round: MaskedRound) -> None:
        for vector in vectors:
            masked_round.products(torch.from_numpy(np.array(vector, float)))

    return ask


def _beside(size: float):
    """Ask for a vector, and for the same with one entry changed."""
    return _ask(UPDATES[0], UPDATES[0] + size * PLACE)


def _sketchs_sum_without_an_entry(masked_round: MaskedRound) -> None:
    row = np.array([masked_round.sketch.of(unit)[0] for unit in UNITS]).view(np.int64)
    row[np.flatnonzero(row)[0]] = 0
    _ask(row)(masked_round)


def _multiple_modulo_the_ring(masked_round: MaskedRound) -> None:
    encoded, _ = encode_vector(UPDATES[0])
    masked_round.keeper.products(RUN, 1, encoded)
    # Its product less 12345678901234567891 times the other one's would be one parameter.
    multiple = encoded * np.uint64(12345678901234567891)
    masked_round.keeper.products(RUN, 1, multiple + UNITS[7])


def _two_sums(masked_round: MaskedRound) -> None:
    for weights in (np.ones(5), np.array([1.0, 1.0, 1.0, 1.0, 0.0])):
        masked_round.keeper.weighted_sum(RUN, 1, encode_weights(weights)[0])


REFUSED = {
    "two sums, whose difference is one update": (_two_sums, "a round has one sum; asked: two"),
    "many vectors": (_ask(*UPDATES), "vectors = 4; asked: 5 vectors in the round"),
    "a vector with one entry": (_ask(PLACE), "largest-entry = 0.25; asked: "),
    "two vectors that differ in one entry": (_beside(10.0), "largest-entry = 0.25; asked: "),
    "or in little": (_beside(1e-3), "largest-entry = 0.25; asked: "),
    "or in less": (_beside(2e-7), "a combination of earlier ones by a millionth"),
    "a sum of the sketch without one entry": (
        _sketchs_sum_without_an_entry,
        "largest-entry = 0.25",
    ),
    "a multiple modulo the ring": (_multiple_modulo_the_ring, "a vector has a length of 1 at most"),
}


@pytest.mark.parametrize("attack", REFUSED)
def test_what_would_tell_one_members_update_is_refused_with_the_policys_line(attack):
    ask, reason = REFUSED[attack]
    with pytest.raises(KeeperError, match=f"the keeper refuses: .*{re.escape(reason)}"):
        ask(Parties(policy=LIMITS).opened(UPDATES))


@pytest.mark.parametrize("weights", [(2**24, 2**24, 2**24, 1), (2**23, 2**22, 2**22, 1)])
def test_a_sum_modulo_the_others_weights_shows_nobodys_update(weights):
    parties = Parties(4, KeeperPolicy())
    ring = np.array(weights, np.uint64)
    updates = 1e-3 * UPDATES[:4]  # Below 2**-7.
    masked_round = parties.opened(updates)
    with suppress(KeeperError):  # The first.
        masks = parties.keeper.weighted_sum(RUN, 1, ring)
        total = np.sum(ring[:, None] * masked_round.vectors, axis=0) - masks
        last = (total << np.uint64(42)).view(np.int64)  # Modulo 2**22, which the others leave 0.
        assert abs(alike(last.astype(float), updates[3])) < 0.5


def test_a_model_trained_again_and_again_gives_no_more_sums_of_an_update():
    parties = Parties(3, KeeperPolicy())
    signs_of_sums = []
    sums = []
    for server_round in range(1, 21):  # 20 x 12 sums of 200 parameters.
        masked = parties.mask_all(UPDATES[:3], server_round)
        opened = parties.open(masked, server_round)
        sketch = SignSketch(opened.seed, 12, 200)
        signs_of_sums += list(np.array([sketch.of(unit) for unit in UNITS]).T)
        sums.append(decode(sketch.of(masked[100].vector) - opened.sketches[0], 28))
    signs = np.array(signs_of_sums).view(np.int64).astype(float)
    guess = np.linalg.lstsq(signs, np.concatenate(sums))[0]
    assert alike(guess, UPDATES[0]) < 0.5


def test_a_sketch_that_is_too_large_for_a_day_is_never_told():
    policy = KeeperPolicy(sketch_share=0.5, largest_known_share=0.1)
    reason = r"largest-known-share = 0\.1; asked: 100 numbers about updates of 200 parameters"
    with pytest.raises(KeeperError, match=reason):
        Parties(5, policy).opened(UPDATES)
    Parties(5, policy.replace(largest_known_share=0.5)).opened(UPDATES)


def test_a_run_asks_for_half_as_many_numbers_as_there_are_parameters_at_most():
    parties = Parties(3, KeeperPolicy())
    rng = np.random.default_rng(1)
    for server_round in range(1, 24):  # 12 of the sketch, and 4 a round.
        parties.open(parties.mask_all(UPDATES[:3], server_round), server_round)
        for vector in rng.normal(size=(4 if server_round < 23 else 0, 200)):
            parties.keeper.products(RUN, server_round, encode_vector(vector)[0])
    reason = r"largest-known-share = 0\.5; asked: 101 numbers"
    with pytest.raises(KeeperError, match=reason):
        parties.keeper.products(RUN, 23, encode_vector(UPDATES[0])[0])


def test_a_day_asks_for_as_many_numbers_however_many_runs_the_server_names():
    """The server draws a run's id; a member's key and the keeper's day are not the server's."""
    parties = Parties(3, KeeperPolicy())
    rng = np.random.default_rng(1)

    def ask_in(run: int, vectors: int) -> None:
        masked = {100 + i: parties.mask(i, UPDATES[i], run=run) for i in range(3)}
        parties.keeper.open_round(run, 1, 200, boxes_of(masked))
        for vector in rng.normal(size=(vectors, 200)):
            parties.keeper.products(run, 1, encode_vector(vector)[0])

    for run in range(1, 23):  # 12 of the sketch, and 4 a run.
        ask_in(run, 4)
    with pytest.raises(KeeperError, match=r"largest-known-share = 0\.5; asked: 101 numbers .* day"):
        ask_in(23, 1)


def test_a_model_that_is_summed_is_summed_once_whatever_run_it_is_said_to_be_of():
    """Of two sums, the second without bob, the difference is bob's update."""
    model = bytes(range(32))
    lines = []
    parties = Parties(5, KeeperPolicy(largest_known_share=9.0))
    parties.keeper = parties.keeper_with(log=ChainedLog(write=lines.append))

    def summed(run: int, server_round: int, members: range, of_model: bytes = model) -> None:
        masked = {
            100 + i: parties.mask(i, UPDATES[i], server_round, run=run, model=of_model)
            for i in members
        }
        parties.keeper.open_round(run, server_round, 200, boxes_of(masked))
        weights, _ = encode_weights(np.ones(len(masked)))
        parties.keeper.weighted_sum(run, server_round, weights)

    summed(1, 1, range(5))
    again = r"sums-of-a-model = 1; asked: 2 with an update of member \d of the same model"
    for run, server_round in ((1, 2), (2, 1)):
        with pytest.raises(KeeperError, match=again):
            summed(run, server_round, range(4))
    summed(1, 3, range(5), of_model=bytes(32))
    # A keeper that was started again goes by its log.
    parties.keeper = parties.keeper_with(past=verified(lines, "log"))
    with pytest.raises(KeeperError, match=again):
        summed(3, 1, range(1, 5))


def test_those_in_league_see_the_one_that_they_are_least_members_with():
    """Two of ten give their updates away: a round of them and ada shows hers, so three are few."""
    parties = Parties(10, KeeperPolicy(least_members=3, largest_known_share=9.0))
    updates = np.random.default_rng(2).normal(size=(3, 200)).astype(np.float32)
    masked_round = parties.opened(updates)
    shares = np.array([0.4, 0.3, 0.3])
    step = masked_round.summed(torch.from_numpy(shares)).numpy()
    hers = (step - shares[1:] @ updates[1:]) / shares[0]
    assert np.abs(hers - updates[0]).max() < 1e-5
    # What a keeper of ten has where its file does not say otherwise needs four more in league.
    assert least_for(10) == 6
    parties.policy = parties.policy.replace(least_members=least_for(10))
    parties.keeper = parties.keeper_with()
    with pytest.raises(KeeperError, match="least-members = 6; asked: 3 in the round"):
        parties.opened(updates)


def test_members_with_next_to_no_weight_hide_nobody():
    """Two of ten in league gave all but ada the least weight there is: the rest is her update."""
    parties = Parties(10, KeeperPolicy(least_members=least_for(10), largest_known_share=9.0))
    parties.opened(np.random.default_rng(2).normal(size=(10, 200)))
    weights = np.ones(10, np.uint64)
    weights[:3] = 2**23, 2**22, 2**22 - 7
    refused = "least-members = 6; asked: 3 with at least a tenth of the largest weight"
    with pytest.raises(KeeperError, match=refused):
        parties.keeper.weighted_sum(RUN, 1, weights)
    # The server cuts the largest weights, until six have a tenth of them or more.
    honest = np.array([1.0, 0.9, 0.8, 0.05, 0.04, 0.04, 0.04, 0.04, 0.0, 0.0])
    capped = parties.policy.capped(honest)
    assert capped / capped[5] == pytest.approx([10, 10, 10, 1.25, 1, 1, 1, 1, 0, 0], rel=1e-4)
    parties.keeper.weighted_sum(RUN, 1, encode_weights(capped)[0])


@pytest.mark.parametrize(
    ("members", "least"), [(2, 3), (3, 3), (4, 3), (5, 3), (6, 4), (10, 6), (101, 51)]
)
def test_more_than_half_of_the_members_are_in_a_round_by_default(members, least):
    assert least_for(members) == least


def test_a_round_with_too_few_says_whose_box_was_not_opened_and_why():
    lines = []
    parties = Parties(3)
    parties.keeper = parties.keeper_with(log=ChainedLog(write=lines.append))
    parties.keys[2] = Ed25519PrivateKey.generate()  # It was rekeyed; the keeper was not told.
    unknown = "the keeper knows no member with this key"
    with pytest.raises(KeeperError, match=f"asked: 2 .*; not opened: node 102: {unknown}"):
        parties.opened(UPDATES[:3])
    [entry] = verified(lines, "log")
    assert entry["refused"] == {"102": unknown}


def test_a_refusal_names_a_few_of_many_nodes():
    parties = Parties(5)
    masked = parties.mask_all(UPDATES)
    parties.key = X25519PrivateKey.generate()
    parties.keeper = parties.keeper_with()
    sealed = "the box was not sealed for this keeper"
    reasons = ", ".join(f"node {node}: {sealed}" for node in (100, 101, 102))
    with pytest.raises(KeeperError, match=f"asked: 0 .*not opened: {reasons} and 2 more$"):
        parties.open(masked)


def alike(vector, other) -> float:
    """Return the cosine of two vectors."""
    return float(vector @ other / (np.linalg.norm(vector) * np.linalg.norm(other)))


def test_nothing_counts_and_nothing_is_answered_where_it_cannot_be_logged():
    parties = Parties()
    lines = []
    disk = {"full": True}

    def write(line):
        if disk["full"]:
            raise StorageError("no space left")
        lines.append(line)

    parties.keeper = parties.keeper_with(log=ChainedLog(write=write))
    masked = parties.mask_all(UPDATES)
    ask = partial(parties.keeper.products, RUN, 1, encode_vector(UPDATES[0])[0])
    with pytest.raises(StorageError):
        parties.open(masked)
    disk["full"] = False
    with pytest.raises(KeeperError, match="is not open"):
        ask()
    parties.open(masked)
    disk["full"] = True
    with pytest.raises(StorageError):
        ask()
    disk["full"] = False
    ask()
    # A later keeper knows from the log what was answered.
    parties.policy = OPEN.replace(
        largest_known_share=1.006
    )  # 201 numbers: 200 of the sketch, and 1.
    parties.keeper = parties.keeper_with(past=verified(lines, "log"))
    with pytest.raises(KeeperError, match="opened once"):
        parties.open(masked)
    parties.open(parties.mask_all(UPDATES, 2), 2)
    with pytest.raises(KeeperError, match=r"largest-known-share = 1\.006; asked: 202"):
        parties.keeper.products(RUN, 2, encode_vector(UPDATES[1])[0])


def test_what_cannot_be_logged_changes_nothing_of_a_round():
    """Its one sum, and each of its vectors, may be asked for again; so may its end."""
    parties = Parties(policy=OPEN.replace(vectors=1, sums_of_a_model=2))
    disk = {"full": False}

    def write(_line):
        if disk["full"]:
            raise StorageError("no space left")

    parties.keeper = parties.keeper_with(log=ChainedLog(write=write))
    parties.opened(UPDATES)
    keeper = parties.keeper
    vector, _ = encode_vector(UPDATES[0])
    weights, _ = encode_weights(np.ones(5))
    questions = [
        partial(keeper.products, RUN, 1, vector),
        partial(keeper.weighted_sum, RUN, 1, weights),
        keeper.close,
    ]
    for ask in questions:
        disk["full"] = True
        with pytest.raises(StorageError):
            ask()
        disk["full"] = False
        if ask is keeper.close:
            assert keeper.length == UPDATES.shape[1]  # The round is open still.
        ask()
    assert keeper.length == 0
    # A second vector, and a second sum, are as many as ever.
    parties.opened(UPDATES, server_round=2)
    keeper.products(RUN, 2, vector)
    with pytest.raises(KeeperError, match="vectors = 1; asked: 2 vectors in the round"):
        keeper.products(RUN, 2, encode_vector(UPDATES[1])[0])
    keeper.weighted_sum(RUN, 2, weights)
    with pytest.raises(KeeperError, match="a round has one sum; asked: two"):
        keeper.weighted_sum(RUN, 2, weights)


def test_rounds_have_enough_boxes_are_opened_once_and_rise():
    parties = Parties()
    masked = parties.mask_all(UPDATES, 3)
    with pytest.raises(KeeperError, match="least-members = 3; asked: 2 in the round"):
        parties.open({node: masked[node] for node in (100, 101)}, 3)
    assert parties.open(masked, 3).nodes == (100, 101, 102, 103, 104)
    for again in (3, 2):
        with pytest.raises(KeeperError, match=f"opened once; asked: round {again} of run"):
            parties.open(parties.mask_all(UPDATES, again), again)
    parties.open(parties.mask_all(UPDATES, 4), 4)
    with pytest.raises(KeeperError, match=r"round 3 of run .* is not open"):
        parties.keeper.weighted_sum(RUN, 3, np.zeros(5, np.uint64))


def test_boxes_that_are_not_this_members_for_this_round_are_refused_and_the_others_opened():
    parties, stranger = Parties(8), Parties(1)
    masked = {100 + i: parties.mask(i, UPDATES[0]) for i in range(3)}
    masked[103] = parties.mask(3, UPDATES[0], server_round=2)
    masked[104] = parties.mask(4, UPDATES[0], run=5)
    masked[105] = masked[100]  # Another's box.
    masked[106] = parties.mask(0, UPDATES[0], node=106)  # A second one, made for it.
    masked[107] = parties.mask(5, UPDATES[0][:-1], node=107)
    masked[108] = stranger.mask(0, UPDATES[0], node=108)
    changed = parties.mask(6, UPDATES[0], node=109).box
    stranger.keys[0] = parties.keys[7]
    masked[110] = stranger.mask(0, UPDATES[0], node=110)
    masked[112] = parties.mask(7, UPDATES[0], node=112, instructions=b"b" * 32)
    boxes = boxes_of(masked)
    boxes[111] = b"no box"
    boxes[109] = changed[:-1] + bytes([changed[-1] ^ 1])
    opened = parties.keeper.open_round(RUN, 1, 200, boxes)
    assert opened.nodes == (100, 101, 102)
    bound = "the box is for run, round, node, length"
    assert opened.refused == {
        103: f"{bound} ({RUN}, 2, 103, 200), not ({RUN}, 1, 103, 200)",
        104: f"{bound} (5, 1, 104, 200), not ({RUN}, 1, 104, 200)",
        105: f"{bound} ({RUN}, 1, 100, 200), not ({RUN}, 1, 105, 200)",
        106: "the box is the second one of member 0",
        107: f"{bound} ({RUN}, 1, 107, 199), not ({RUN}, 1, 107, 200)",
        108: "the keeper knows no member with this key",
        109: "the box is not signed by the member that it names",
        110: "the box was not sealed for this keeper",
        111: "6 bytes are no box of this version",
        112: "the member got another model or other settings than most",
    }


def test_strangers_do_not_decide_what_most_members_got():
    parties, strangers = Parties(4), Parties(5)
    masked = {100: parties.mask(0, UPDATES[0], instructions=b"a" * 32)}
    for i in (1, 2, 3):
        masked[100 + i] = parties.mask(i, UPDATES[0], instructions=b"b" * 32)
    for i in range(5):
        masked[104 + i] = strangers.mask(i, UPDATES[0], instructions=b"a" * 32)
    opened = parties.keeper.open_round(RUN, 1, 200, boxes_of(masked))
    assert opened.nodes == (101, 102, 103)


def test_each_answer_and_refusal_is_a_line_of_the_log():
    parties = Parties()
    lines = []
    parties.keeper = parties.keeper_with(log=ChainedLog(write=lines.append))
    masked_round = parties.opened(UPDATES)
    _ask(UPDATES[0])(masked_round)
    with pytest.raises(KeeperError):
        masked_round.summed(torch.eye(5)[0])
    masked_round.summed(torch.ones(5))
    head = parties.keeper.close()
    entries = verified(lines, "log")
    assert entries[-1]["hash"] == head
    assert [entry["asked"] for entry in entries] == ["open", "products", "sum", "sum", "close"]
    assert all((entry["run"], entry["round"]) == (RUN, 1) for entry in entries)
    assert entries[0]["members"] == [f"member {i}" for i in range(5)]
    assert entries[2]["refusal"].startswith("the keeper refuses: least-members = 3")
    assert "answer" not in entries[2]
    assert len(entries[3]["answer"]) == len(entries[1]["vectors"][0]) == 64


# -- its policy alone

POLICY = KeeperPolicy(least_members=3, largest_share=0.5, least_effective_members=2.5)
NAMES = ["ada", "ben", "cleo", "dora"]


def check(weights) -> None:
    POLICY.check_weights(encode_weights(np.array(weights))[0], NAMES)


def test_as_many_members_as_the_least_may_have_equal_shares():
    for members in range(2, 40):
        policy = POLICY.replace(least_members=2, least_effective_members=members)
        policy.check_weights(encode_weights(np.ones(members))[0], ["each"] * members)


def test_sums_that_hide_everyone():
    for weights in ([1, 1, 1, 1], [0, 1, 1, 1], [2.0, 1.0, 1.0, 0.0], [9, 4, 4, 4]):
        check(weights)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ([0, 1, 0, 0], "least-members = 3; asked: 1 with at least a tenth of the largest weight"),
        ([1, 1, 0, 0], "least-members = 3; asked: 2 with at least a tenth of the largest weight"),
        ([1, 1, 0.09, 0], "least-members = 3; asked: 2 with"),
        ([1, 6, 1, 1], "largest-share = 0.5; asked: 0.667 for ben"),
        ([1, 1, 0.11, 0.11], "least-effective-members = 2.5; asked: 2.4"),
    ],
)
def test_sums_that_do_not_are_refused_with_the_policys_line(weights, reason):
    with pytest.raises(KeeperError, match="^the keeper refuses: " + re.escape(reason)):
        check(weights)


@pytest.mark.parametrize("ring", [[2**63, 2**63, 2**20, 2**20], [0, 0, 0, 0], [2**64 - 1, 1, 1, 1]])
def test_weights_beyond_the_ring_of_shares_are_refused(ring):
    with pytest.raises(KeeperError, match="weights are shares"):
        POLICY.check_weights(np.array(ring, np.uint64), NAMES)


@given(st.lists(st.floats(0, 1e3), min_size=4, max_size=4))
def test_what_is_allowed_has_the_cover_that_the_policy_states(weights):
    try:
        ring, _ = encode_weights(np.array(weights))
        POLICY.check_weights(ring, NAMES)
    except (MaskingError, KeeperError):
        return
    shares = np.array(weights) / sum(weights)
    assert max(shares) <= 0.5 + 1e-6
    assert 1 / sum(shares**2) >= 2.5 - 1e-5
    assert np.count_nonzero(shares > 0.0999 * max(shares)) >= 3


@given(st.lists(st.floats(0, 1e3), min_size=4, max_size=4))
def test_weights_are_cut_to_what_is_allowed_where_three_have_any(weights):
    uncut = np.array(weights)
    capped = POLICY.capped(uncut)
    assert capped.sum() == pytest.approx(uncut.sum())
    assert np.all(np.diff(capped[np.argsort(uncut)]) >= 0)
    if np.count_nonzero(uncut > 1e-12 * uncut.sum()) >= 3:
        check(capped)


def share(*vectors) -> float:
    """Return the share of one parameter that the policy names where it refuses vectors."""
    rows = np.array(vectors, float)
    with pytest.raises(KeeperError, match="in one parameter") as caught:
        KeeperPolicy(largest_entry=1e-9).check_vectors(rows, np.linalg.norm(rows, axis=1))
    return float(re.search(r"with (\S+) of it", str(caught.value))[1])


def test_what_a_combination_of_vectors_has_in_one_parameter_by_hand():
    assert share([3.0, 4.0, 0.0, 0.0]) == 0.64
    assert share([1.0, 1.0, 1.0, 1.0]) == 0.25
    assert share([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]) == 0.5
    assert share([0.0, 1.0, 0.0]) == 1.0


@given(st.integers(1, 4), st.integers(5, 60), st.integers(0, 2**32))
def test_no_combination_has_more_in_one_parameter(count, length, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, length)) * rng.exponential(size=length)
    # The bound is reached: by the projection of the place onto the span.
    projector = np.linalg.pinv(vectors) @ vectors
    assert share(*vectors) == pytest.approx(np.max(np.diag(projector)), rel=0.01)


def test_a_sketch_takes_its_share_of_the_parameters_at_most():
    sizes = {1_000_000: 256, 4_096: 256, 650: 40, 20: 1, 1: 1}
    assert {length: KeeperPolicy().sketch_for(length) for length in sizes} == sizes
