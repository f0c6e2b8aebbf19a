"""Masked rounds lead where plain ones do, and nobody's reply or keeper's answer is believed."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import nn

from fedif_consortium.masking import boxes, keeper, ring
from fedif_consortium.masking.boxes import MaskingTerms
from fedif_consortium.masking.part import require_maskable
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_flower import FedAvg, FedIF, PathAttribution
from fedif_flower.attribution.credit import CreditBounds
from fedif_flower.errors import ConfigError, KeeperError
from fedif_flower.messages import workspace
from fedif_flower.messages.arrays import pack_array
from fedif_flower.runtime.local_grid import FIRST_NODE_ID
from fedif_flower.stages import Clip, LossBound, MaxLength
from fedif_flower.strategies import Setup
from tests.consortium.masking.masked import model, play, validation


def fedif(**base) -> FedIF:
    return FedIF(validation(), **base)


START = nn.utils.parameters_to_vector(model().parameters()).detach()
STRATEGIES = {
    "fedavg": FedAvg,
    "fedif": fedif,
    "fedif of bounded length": lambda **base: fedif(stages=[MaxLength(0.5), Clip(2.0)], **base),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_masked_round_leads_and_credits_as_a_plain_one_does(name):
    models, reports, credits = {}, {}, {}
    for masked in (False, True):
        judged = validation()
        attribution = PathAttribution(judged, "simpson", bounds=CreditBounds())
        setup = Setup(device="cpu", trainable_keys=judged.parameter_names)
        given = {"is_masked": masked, "callbacks": [attribution], "setup": setup}
        _, models[masked], reports[masked] = play(STRATEGIES[name], **given)
        credits[masked] = attribution.rounds
    assert (models[False] - START).norm() > 0.1
    # Updates have 28 bits after the point, weights 24; the model is float32.
    assert (models[True] - models[False]).abs().max() < 1e-6
    assert models[True].dtype == models[False].dtype
    for hidden, plain in zip(reports[True], reports[False], strict=True):
        assert not hidden.failed
        for mine, plainly in zip(hidden.clients, plain.clients, strict=True):
            assert mine.weight == pytest.approx(plainly.weight, abs=1e-5)
            assert mine.score == pytest.approx(plainly.score, abs=1e-5)
            assert (mine.num_examples, mine.train_loss) == (plainly.num_examples, 1.0)
    for hidden, plain in zip(credits[True], credits[False], strict=True):
        assert hidden.attributed == pytest.approx(plain.attributed, abs=1e-5)
        assert hidden.remainder == pytest.approx(plain.remainder, abs=1e-5)
        for mine, plainly in zip(hidden.clients, plain.clients, strict=True):
            assert mine.contribution == pytest.approx(plainly.contribution, abs=1e-6)
            # Lengths are stated, cosines come from sketches of 126 numbers.
            assert mine.credit.length == pytest.approx(plainly.credit.length, rel=1e-4)
            assert mine.credit.opposed == pytest.approx(plainly.credit.opposed, abs=0.5)
            assert mine.credited <= mine.contribution


def test_vectors_of_many_members_lie_in_a_file(monkeypatch):
    _, in_memory, _ = play(fedif)
    monkeypatch.setattr(workspace, "SHARE_OF_MEMORY", 0.0)
    _, in_file, _ = play(fedif)
    assert (in_file - in_memory).abs().max() < 1e-7


def test_a_round_beyond_the_loss_bound_takes_a_share_of_its_one_sum():
    bounded = lambda **base: fedif(stages=[LossBound()], **base)  # noqa: E731
    strategy, _, reports = play(bounded, scale=1.0)
    assert (
        "the whole step exceeded the bound on the validation loss"
        in strategy.stages.choosing.remark()
    )
    assert strategy.setup.intake.keeper.asked.count("weighted_sum") == len(reports) == 3
    assert not any(report.failed for report in reports)


def test_a_model_whose_masked_replies_would_look_like_a_flood_is_refused():
    arrays = ArrayRecord({"w": pack_array(np.ones(3, np.float16))})
    with pytest.raises(ConfigError, match="masking: 'w' is of float16"):
        require_maskable(FedAvg(), arrays)


# -- members

ILL = 2  # The member that spoils what it sends.
SEED, OTHER_SEED = bytes(32), bytes([1] * 32)
WRAPPED = np.eye(1, 2020, 7, dtype=np.uint64)[0] * np.uint64(2**63)  # Half of the ring's width.


def _told(**terms):
    """Mask as if other terms had come, or none."""

    def spoil(message, context, answer):
        config = dict(message.content["config"])
        told = MaskingTerms.model_validate_json(config.pop(boxes.TERMS_KEY))
        if terms:
            config[boxes.TERMS_KEY] = told.model_copy(update=terms).model_dump_json()
        message.content = RecordDict({**message.content, "config": ConfigRecord(config)})
        return answer(message, context)

    return spoil


def _sent(vector=None, **mask):
    """Send another vector, or something else beside it."""

    def spoil(message, context, answer):
        reply = answer(message, context)
        if vector is not None:
            reply.content["arrays"] = ArrayRecord({boxes.VECTOR: pack_array(vector)})
        reply.content[boxes.MASK_RECORD].update(mask)
        return reply

    return spoil


def _resealed(vector):
    """Send a vector that the box fits by its digest, whatever the mask of its seed is."""

    def spoil(message, context, answer):
        reply = answer(message, context)
        header = boxes.read_header(reply.content[boxes.MASK_RECORD][boxes.BOX])
        opening, key = boxes.trial_keys(MaskingTerms.read(message.content["config"]).trial_secret)
        header = header._replace(digest=ring.digest(vector))
        box = boxes.seal(header, SEED, opening.public_key(), key)
        return _sent(vector, box=box, length=1.0)(message, context, lambda *_: reply)

    return spoil


SPOILT = {
    "length .* by its sketch, 1 stated": _resealed(ring.mask_of(OTHER_SEED, 2020)),
    "e\\+.. by its sketch": _resealed(WRAPPED + ring.mask_of(SEED, 2020)),
    "by its sketch, 0.2 stated": _sent(length=0.2),
    "its update has length nan": _sent(length=float("nan")),
    "its update has length 1e\\+30": _sent(length=1e30),
    "unreadable reply": _sent(length="long"),
    "its arrays are not 'masked-update' alone": _told(),
    "has dtype float32, not uint64": _sent(np.ones(2020, np.float32)),
    "its box is for another vector": _sent(np.ones(2020, np.uint64)),
    "the box is for run, round": _told(server_round=7),
    "the keeper: the member got another model or other settings": _told(max_length=7.0),
}


@pytest.mark.parametrize("reason", SPOILT)
def test_a_member_that_spoils_its_reply_is_refused_in_that_round_and_named(reason):
    def silent(*_):
        raise RuntimeError("away")

    _, without, _ = play(fedif, {ILL: silent}, rounds=1)
    _, found, (report,) = play(fedif, {ILL: SPOILT[reason]}, rounds=1)
    clients = of_members(report)
    assert clients[ILL].status == "refused"
    assert re.search(reason, clients[ILL].rejection)
    assert [p for p, client in clients.items() if client.status == "accepted"] == [0, 1, 3, 4, 5]
    assert not report.failed
    # The round goes on as if that member had not been there.
    assert (found - without).abs().max() < 1e-6


def of_members(report):
    return {client.node.node_id - FIRST_NODE_ID: client for client in report.clients}


def test_an_update_beyond_the_runs_bound_is_refused():
    bounded = lambda **base: fedif(stages=[MaxLength(1.0)], **base)  # noqa: E731
    _, _, (report,) = play(bounded, {ILL: _told(max_length=1.001)}, scale=0.1, rounds=1)
    rejections = {p: client.rejection for p, client in of_members(report).items()}
    assert rejections.pop(ILL).startswith("its update has length 1.001; allowed: at most 1")
    assert not any(rejections.values())  # Shortened to it.


# -- the keeper


def _raises(*_):
    raise KeeperError("the keeper does not answer")


@pytest.mark.parametrize("asked", ["open_round", "products", "weighted_sum"])
def test_a_keeper_that_errs_fails_the_round_and_the_model_stays(asked):
    _, found, (report,) = play(fedif, rounds=1, faults={asked: _raises})
    assert torch.equal(found, START)
    assert report.failed
    assert "the keeper does not answer" in report.reason
    assert all(client.weight == 0 for client in report.clients)


def test_a_keeper_that_comes_back_lets_the_run_go_on():
    away = [True]

    def at_first(true, *args):
        return _raises() if away and away.pop() else true(*args)

    _, _, reports = play(fedif, faults={"weighted_sum": at_first})
    assert [report.failed for report in reports] == [True, False, False]


def test_a_sum_whose_answer_is_lost_is_not_asked_for_again(monkeypatch):
    """Its model stays the run's model, of which the keeper gives no second sum."""

    def lose(true, *args):
        true(*args)
        _raises()

    monkeypatch.setattr(keeper, "TRIAL_POLICY", KeeperPolicy())
    _, found, (lost, refused) = play(fedif, rounds=2, faults={"weighted_sum": lose})
    assert torch.equal(found, START)
    assert lost.reason == "the keeper does not answer"
    assert re.fullmatch(
        r"the keeper refuses: sums-of-a-model = 1; asked: 2 with an update of node \d+ of the same "
        "model: begin anew with another seed",
        refused.reason,
    )


def test_what_the_policy_refuses_fails_the_round_with_its_line():
    _, _, (report,) = play(fedif, rounds=1, members=2)
    assert report.failed  # Min-max leaves one of two members a weight.
    refused = "the keeper refuses: least-members = 2; asked: 1 with at least a tenth of "
    assert report.reason == f"{refused}the largest weight"


def test_a_member_whose_share_the_policy_refuses_counts_for_less_and_ends_no_run(monkeypatch):
    def claiming(message, context, answer):
        """Claim as many examples as the server lets it."""
        reply = answer(message, context)
        reply.content["metrics"]["num-examples"] = 1190
        return reply

    monkeypatch.setattr(keeper, "TRIAL_POLICY", KeeperPolicy())
    _, _, (report,) = play(FedAvg, {0: claiming}, rounds=1, members=4)
    assert report.reason == ""
    weights = [client.weight for client in report.clients]
    assert weights == pytest.approx([1 / 2, 2 / 18, 3 / 18, 4 / 18], abs=1e-5)
