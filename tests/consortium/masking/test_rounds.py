"""Masked rounds lead where plain ones do, and nobody's reply or keeper's answer is believed."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from fedif_consortium.evidence.keys import key_digest
from fedif_consortium.masking import keeper
from fedif_consortium.masking.boxes import (
    BOX,
    MASK_RECORD,
    BoxHeader,
    MaskingTerms,
    seal,
    trial_key,
    vector_digest,
)
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import mask_of
from fedif_consortium.masking.workspace import trial_masking
from fedif_flower import FedAvg, FedIF, Krum, PathAttribution, RobustRule
from fedif_flower.errors import ConfigError, KeeperError
from fedif_flower.messages import screening
from fedif_flower.messages.arrays import pack_array
from fedif_flower.runtime.local_grid import FIRST_NODE_ID, LocalGrid
from fedif_flower.stages import (
    Clip,
    LossBound,
    MaxLength,
)
from fedif_flower.strategies import Setup
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.valuation.credit import CreditBounds
from tests.consortium.masking.masked import (
    MEMBERS,
    Members,
    content_of,
    keeper_of,
    model,
    play,
    validation,
    vector_of,
)

KEYS = validation().parameter_names


def fedif(**base) -> FedIF:
    return FedIF(validation(), **base)


STRATEGIES = {
    "fedavg": lambda **base: FedAvg(**base),
    "fedif": fedif,
    "fedif of bounded length": lambda **base: fedif(stages=[MaxLength(0.5), Clip(2.0)], **base),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_masked_round_leads_where_a_plain_one_does(name):
    _, plain, theirs = play(STRATEGIES[name], Members(), masked=False)
    _, masked, ours = play(STRATEGIES[name], Members())
    start = nn.utils.parameters_to_vector(model().parameters()).detach()
    assert (plain - start).norm() > 0.1
    # Updates have 28 bits after the point, weights 24; the model is float32.
    assert (masked - plain).abs().max() < 1e-6
    assert masked.dtype == plain.dtype
    for one, other in zip(ours, theirs, strict=True):
        assert not one.failed
        for mine, plainly in zip(one.clients, other.clients, strict=True):
            assert mine.weight == pytest.approx(plainly.weight, abs=1e-5)
            assert mine.score == pytest.approx(plainly.score, abs=1e-5)
            assert (mine.num_examples, mine.train_loss) == (plainly.num_examples, 1.0)


@pytest.mark.parametrize("name", ["fedavg", "fedif"])
def test_contributions_are_those_of_a_plain_round(name):
    found = {}
    for masked in (False, True):
        judged = validation()
        attribution = PathAttribution(judged, "simpson", bounds=CreditBounds())
        setup = Setup(device="cpu", trainable_keys=KEYS)
        play(
            lambda base_of=STRATEGIES[name], **base: base_of(**base),
            Members(),
            masked=masked,
            callbacks=[attribution],
            setup=setup,
        )
        found[masked] = attribution.rounds
    for masked, plain in zip(found[True], found[False], strict=True):
        assert len(masked.clients) == MEMBERS
        assert masked.attributed == pytest.approx(plain.attributed, abs=1e-5)
        assert masked.remainder == pytest.approx(plain.remainder, abs=1e-5)
        for mine, plainly in zip(masked.clients, plain.clients, strict=True):
            assert mine.contribution == pytest.approx(plainly.contribution, abs=1e-6)
            # Lengths are stated, cosines come from sketches of 126 numbers.
            assert mine.credit.length == pytest.approx(plainly.credit.length, rel=1e-4)
            assert mine.credit.opposed == pytest.approx(plainly.credit.opposed, abs=0.5)
            assert mine.credited <= mine.contribution


def test_vectors_of_many_members_lie_in_a_file(monkeypatch):
    _, in_memory, _ = play(fedif, Members())
    monkeypatch.setattr(screening, "SHARE_OF_MEMORY", 0.0)
    _, in_file, _ = play(fedif, Members())
    assert (in_file - in_memory).abs().max() < 1e-7


def test_a_round_beyond_the_loss_bound_takes_a_share_of_its_one_sum():
    strategy, _, reports = play(
        lambda **base: fedif(stages=[LossBound()], **base), Members(scale=1.0)
    )
    assert "the whole step would have raised" in strategy.stages.choosing.remark()
    asked = strategy.setup.intake.keeper.asked
    assert asked.count("weighted_sum") == len(reports) == 3
    assert not any(report.failed for report in reports)


class LookingOn(Callback):
    def on_step(self, step) -> None: ...


REFUSED = {
    "RobustRule weighs by the updates themselves": lambda **base: RobustRule(Krum(0.2), **base),
    "LookingOn looks at each client's update": lambda **base: FedAvg(
        callbacks=[LookingOn()], **base
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_needs_to_see_updates_is_refused_before_anybody_is_asked(reason):
    members = Members()
    with pytest.raises(ConfigError, match=f"masking: {reason}"):
        play(REFUSED[reason], members)
    assert not members.contents


def test_a_model_whose_replies_would_look_like_a_flood_is_refused():
    arrays = ArrayRecord({"w": pack_array(np.ones(3, np.float16))})
    strategy = FedAvg(setup=Setup(device="cpu", intake=trial_masking()))
    with pytest.raises(ConfigError, match="'w' is of float16"):
        strategy.start(LocalGrid(Members(), MEMBERS), arrays, num_rounds=1)


# -- members

ILL = 2  # The member that spoils what it sends.
SEED = bytes(32)


def _wrong_seed(members, message, content):
    """Send a vector that the box fits by its digest, but not by its seed."""
    return resealed(message, vector_of(content), 1.0)


def _wrapped(members, message, content):
    """Add half of the ring's width to a place of an update of length 0."""
    vector = np.zeros(2020, np.uint64)
    vector[7] = 2**63
    vector += mask_of(SEED, 2020)
    return resealed(message, vector, 1.0)


def resealed(message, vector, length):
    """Return a vector with a box of the member's own for it, whatever its mask is."""
    settings = message.content["config"]
    terms, node = MaskingTerms.read(settings), message.metadata.dst_node_id
    key = trial_key(terms.trial_secret, node)
    header = BoxHeader(
        terms.run,
        int(settings["server-round"]),
        node,
        len(vector),
        vector_digest(vector),
        bytes(32),
        key_digest(key.public_key()),
    )
    return content_of(vector, seal(header, SEED, keeper_of(terms), key), length)


def _stated(length):
    return lambda members, message, content: content_of(
        vector_of(content), content[MASK_RECORD][BOX], length
    )


def _plain(members, message, content):
    update = members.updates[int(message.content["config"]["server-round"]), ILL]
    content["arrays"] = members.moved(message.content["arrays"], update)
    return content


def _with_vector(values):
    def spoil(members, message, content):
        return content_of(values, content[MASK_RECORD][BOX], 1.0)

    return spoil


def _masked_with(**bound):
    def spoil(members, message, content):
        return members.masked(message, np.ones(2020, np.float32), **bound)

    return spoil


SPOILT = {
    "length .* by its sketch, 1 stated": _wrong_seed,
    "e\\+.. by its sketch": _wrapped,
    "by its sketch, 0.2 stated": _stated(0.2),
    "its update has length nan": _stated(float("nan")),
    "its update has length 1e\\+30": _stated(1e30),
    "its arrays are not 'masked-update' alone": _plain,
    "has dtype float32, not uint64": _with_vector(np.ones(2020, np.float32)),
    "its box is for another vector": _with_vector(np.ones(2020, np.uint64)),
    "the box is for round 7, not 1": _masked_with(server_round=7),
    "the keeper: the member got another model or other settings": _masked_with(
        instructions=bytes([1] * 32)
    ),
}


@pytest.mark.parametrize("reason", SPOILT)
def test_a_member_that_spoils_its_reply_is_refused_in_that_round_and_named(reason):
    spoilt = {ILL: SPOILT[reason]}
    _, without, _ = play(fedif, Silent(), rounds=1)
    _, found, (report,) = play(fedif, Members(spoil=spoilt), rounds=1)
    clients = of_members(report)
    assert clients[ILL].status == "refused"
    assert re.search(reason, clients[ILL].rejection)
    assert [p for p, client in clients.items() if client.status == "accepted"] == [0, 1, 3, 4, 5]
    assert not report.failed
    # The round goes on as if that member had not been there.
    assert (found - without).abs().max() < 1e-6


def of_members(report):
    return {client.node.node_id - FIRST_NODE_ID: client for client in report.clients}


class Silent(Members):
    """Member ILL's app raises an error."""

    def __call__(self, message, context):
        if int(context.node_config["partition-id"]) == ILL:
            raise RuntimeError("away")
        return super().__call__(message, context)


def test_nan_before_masking_is_the_members_own_error():
    ill = {ILL: lambda u: np.where(np.arange(len(u)) == 3, np.nan, u).astype(np.float32)}
    _, _, (report,) = play(fedif, Members(change=ill), rounds=1)
    refused = of_members(report)[ILL]
    assert refused.status == "failed"
    assert "the update is not finite" in refused.rejection
    assert not report.failed


def test_an_update_ten_times_as_long_as_stated_is_refused_and_one_below_the_bound_is_not():
    def long_one(members, message, content):
        return members.masked(message, np.full(2020, 0.2, np.float32), stated=0.9)

    def just_below(members, message, content):
        update = np.full(2020, 0.9999 / np.sqrt(2020), np.float32)
        return members.masked(message, update)

    def just_above(members, message, content):
        update = np.full(2020, 1.001 / np.sqrt(2020), np.float32)
        return members.masked(message, update, stated=float(np.linalg.norm(update)))

    spoil = {0: long_one, 1: just_below, 2: just_above}
    bounded = lambda **base: fedif(stages=[MaxLength(1.0)], **base)  # noqa: E731
    _, _, (report,) = play(bounded, Members(spoil=spoil), rounds=1)
    rejections = {p: client.rejection for p, client in of_members(report).items()}
    assert "0.9 stated" in rejections[0]
    assert rejections[1] == ""
    assert rejections[2] == "its update has length 1.001; allowed: at most 1"


# -- the keeper


def _raises(*_):
    raise KeeperError("the keeper does not answer")


def _one_place(true, *args):
    answer = true(*args).copy()
    answer.flat[5 % answer.size] += np.uint64(2**35)  # More than what a keeper rounds.
    return answer


def _everywhere(true, *args):
    return true(*args) + np.uint64(2**35)


FAULTS = {
    "does not answer; opening": ({"open_round": _raises}, "the keeper does not answer"),
    "does not answer; sum": ({"weighted_sum": _raises}, "the keeper does not answer"),
    "lies in one place of the sum": ({"weighted_sum": _one_place}, "contradicts its sketches"),
    "lies in its products": ({"products": _everywhere}, "contradicts its products"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_keeper_that_errs_fails_the_round_and_the_model_stays(fault):
    faults, reason = FAULTS[fault]
    _, found, reports = play(fedif, Members(), rounds=2, faults=faults)
    start = nn.utils.parameters_to_vector(model().parameters()).detach()
    assert torch.equal(found, start)
    for report in reports:
        assert report.failed
        assert reason in report.reason
        assert all(client.weight == 0 for client in report.clients)


def test_a_keeper_that_comes_back_lets_the_run_go_on():
    calls = []

    def at_first(true, *args):
        calls.append(1)
        if len(calls) == 1:
            raise KeeperError("the keeper does not answer")
        return true(*args)

    _, _, reports = play(fedif, Members(), faults={"weighted_sum": at_first})
    assert [report.failed for report in reports] == [True, False, False]


def test_what_the_policy_refuses_fails_the_round_with_its_line():
    _, _, (report,) = play(fedif, Members(), rounds=1, num_members=2)
    assert report.failed  # Min-max leaves one of two members a weight.
    assert report.reason == "the keeper refuses: least-members = 2; asked: 1 with weight"


class Claiming(Members):
    """Member 0 claims as many examples as the server lets it."""

    def __call__(self, message, context):
        reply = super().__call__(message, context)
        if int(context.node_config["partition-id"]) == 0:
            reply.content["metrics"]["num-examples"] = 1190
        return reply


def test_a_member_whose_share_the_policy_refuses_counts_for_less_and_ends_no_run(monkeypatch):
    monkeypatch.setattr(keeper, "TRIAL_POLICY", KeeperPolicy())
    _, _, (report,) = play(FedAvg, Claiming(), rounds=1, num_members=4)
    assert report.reason == ""
    weights = [client.weight for client in report.clients]
    assert weights == pytest.approx([1 / 2, 2 / 18, 3 / 18, 4 / 18], abs=1e-5)
