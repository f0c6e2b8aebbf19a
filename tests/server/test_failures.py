"""Members that err are asked less often; only a federation of mostly such members gives up."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from fedif_flower import FedAvg
from fedif_flower.errors import TrainingFailedError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screening import RefusedReply
from fedif_flower.messages.workspace import AcceptedReply
from fedif_flower.round import Aggregation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.failures import MemberFailures
from fedif_flower.server.nodes import identify_clients
from fedif_flower.server.record import Round
from fedif_flower.server.roster import NodeDirectory, Roster
from fedif_flower.server.run import Callback
from fedif_flower.strategies import Setup
from tests.server.hostile import Clients, spoiled_reply


def explode(message, context):
    raise RuntimeError("out of memory")


def nonsense(message, context):
    return spoiled_reply(message, "nan")


def run(erring, num_nodes, rounds, kind=explode, **settings):
    """Run rounds with clients 0 .. erring - 1 that fail; return who was asked, and the error."""
    base = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "setup": Setup(device="cpu")}
    strategy, error = FedAvg(**base | settings), ""
    grid = LocalGrid(Clients(dict.fromkeys(range(erring), kind)), num_nodes)
    try:
        strategy.start(grid, ArrayRecord([np.zeros(1, np.float32)]), num_rounds=rounds)
    except TrainingFailedError as raised:
        error = str(raised)
    reports = strategy.history.rounds
    asked = [[client.node.node_id - 1000 for client in report.clients] for report in reports]
    return asked, strategy, error


def failed(node: ClientNode) -> RefusedReply:
    return RefusedReply(node, "boom", "failed")


def rounds_of_first(asked) -> list[int]:
    return [t + 1 for t, members in enumerate(asked) if 0 in members]


@pytest.mark.parametrize("kind", [explode, nonsense])
def test_two_fifths_that_only_err_do_not_end_a_long_run(kind):
    # Of 25 members 10 err. Before, three rounds in a row in which most of ten erred ended a run.
    asked, strategy, error = run(10, 25, 40, kind, fraction_train=0.4, setup=Setup(seed=1))
    assert error == ""
    assert len(asked) == 40
    # Hardly any round is lost to them, and they are asked far less often than two times in five.
    everybody = [member for members in asked for member in members]
    assert sum(member < 10 for member in everybody) < 0.25 * len(everybody)
    assert not any(report.failed for report in strategy.history.rounds)


# All are asked in every round: one turn is one round. Pauses of 0, 1, 3, 7 and 15 rounds.
@pytest.mark.parametrize(
    ("longest", "expected"),
    [(63, [1, 2, 4, 8, 16, 32]), (0, [*range(1, 33)]), (1, [1, *range(2, 33, 2)])],
)
def test_pauses_double_up_to_a_bound(longest, expected):
    asked, _, _ = run(1, 5, 32, setup=Setup(device="cpu", max_paused_turns=longest))
    assert rounds_of_first(asked) == expected


def test_a_turn_is_the_rounds_in_which_a_member_is_asked_once():
    nodes = [ClientNode(i, i) for i in range(8)]
    failures = MemberFailures(3)
    usable = AcceptedReply(nodes[1], None, 1.0, {})
    refused = RefusedReply(nodes[0], "boom", "failed")
    for server_round in (1, 2):
        current = Round(
            server_round, members=nodes[:2], online=nodes, accepted=[usable], refused=[refused]
        )
        failures.update(current, why_failed="")
    # Two of eight are asked: four rounds are a turn, which the second error costs.
    assert [len(failures.paused(t)) for t in (3, 6, 7)] == [1, 1, 0]


def test_a_round_that_asks_nobody_does_not_lengthen_a_turn():
    """Four of eight are asked: a turn is two rounds, also when the error comes late."""
    nodes = [ClientNode(i, i) for i in range(8)]
    failures = MemberFailures(3)
    first = Round(1, members=nodes[:4], online=nodes, refused=[failed(node) for node in nodes[:4]])
    failures.update(first, why_failed="")
    only_late = Round(2, at_work=nodes[:1], online=nodes, refused=[failed(nodes[0])])
    failures.update(only_late, why_failed="")
    assert [len(failures.paused(t)) for t in (3, 4, 5)] == [1, 1, 0]


def test_one_usable_reply_makes_everything_good():
    def first_two_fail(message, context):
        if message.content.config_records["config"]["server-round"] in (1, 2):
            raise RuntimeError("restarting")
        return Clients()(message, context)

    asked, _, _ = run(1, 5, 12, first_two_fail)
    assert rounds_of_first(asked) == [1, 2, *range(4, 13)]


@pytest.mark.parametrize(
    ("erring", "num_nodes", "fraction", "words"),
    [
        (6, 10, 1.0, "of 10 gave no usable reply the last 3 times"),
        (12, 20, 0.3, "of 20 gave no usable reply the last 3 times"),
        # Long before all were asked.
        (1000, 1000, 0.01, "30 of the 30 asked in 3 rounds in a row gave no usable reply"),
    ],
)
def test_a_federation_of_mostly_failing_members_stops(erring, num_nodes, fraction, words):
    asked, _, error = run(erring, num_nodes, 200, fraction_train=fraction)
    assert len(asked) < 200
    assert words in error
    assert "out of memory" in error


def of_late_reply(server_round: int, **others) -> Round:
    """Return a round whose own member is late, and that takes in the reply of an earlier one."""
    early, late = ClientNode(0, 0), ClientNode(1, 1)
    return Round(
        server_round,
        members=[late],
        at_work=[early],
        online=[early, late],
        accepted=[AcceptedReply(early, None, 1.0, {})],
        refused=[RefusedReply(late, "none yet", "late")],
        **others,
    )


def test_late_replies_of_which_no_model_can_be_made_end_a_run():
    """As with a buffer: a round's own members are never in time."""
    failures = MemberFailures(3)
    for server_round in (1, 2):
        failures.update(of_late_reply(server_round), why_failed="boom")
    words = "3 rounds in a row with enough usable replies made no model of them; the last was round"
    with pytest.raises(TrainingFailedError, match=f"{words} 3 .* first reason: boom"):
        failures.update(of_late_reply(3), why_failed="boom")


def test_a_round_of_too_few_replies_does_not_hide_that_no_model_can_be_made():
    failures = MemberFailures(2)
    failures.update(of_late_reply(1), why_failed="boom")
    failures.update(of_late_reply(2), why_failed="")
    with pytest.raises(TrainingFailedError, match="2 rounds in a row"):
        failures.update(of_late_reply(3), why_failed="boom")


def test_a_round_that_could_be_weighed_interrupts_the_failed_ones():
    failures = MemberFailures(2)
    weighed = Aggregation(weights=torch.zeros(1))
    for server_round in range(1, 9, 2):
        failures.update(of_late_reply(server_round), why_failed="boom")
        failures.update(of_late_reply(server_round + 1, aggregation=weighed), why_failed="")


def test_half_are_not_most():
    asked, _, error = run(5, 10, 12)
    assert (len(asked), error) == (12, "")


def test_more_than_by_chance_is_four_standard_deviations():
    """Of 30 that are asked, half err by chance, give or take 2.74: the bound is 25.95."""
    nodes = [ClientNode(i, i) for i in range(1000)]

    def three_rounds(*num_erring: int) -> None:
        failures = MemberFailures(3)
        for number, count in enumerate(num_erring):
            members = nodes[10 * number : 10 * number + 10]
            accepted = [AcceptedReply(node, None, 1.0, {}) for node in members[count:]]
            refused = [RefusedReply(node, "boom", "failed") for node in members[:count]]
            current = Round(
                number + 1, members=members, online=nodes, accepted=accepted, refused=refused
            )
            failures.update(current, why_failed="")

    three_rounds(9, 9, 7)
    with pytest.raises(TrainingFailedError, match="26 of the 30 asked in 3 rounds"):
        three_rounds(9, 9, 8)


def test_what_the_server_remembers_goes_on_after_a_restart():
    _, first, _ = run(1, 5, 5)  # fails in rounds 1, 2 and 4, then is paused until round 7
    _, second, _ = run(0, 5, 0)
    second.load_state_dict(first.state_dict())
    nodes = first.nodes.online(LocalGrid(Clients(), 5), 5)
    for server_round in range(6, 10):
        remembered = second.roster.failures.available(nodes, server_round, 1)
        assert (nodes[0] in remembered) == (server_round > 7)


def test_too_few_free_members_means_that_all_may_be_asked():
    # Two of three would be paused in round 3, but two are needed.
    asked, _, _ = run(2, 3, 3, min_train_nodes=2)
    assert sorted(asked[2]) == [0, 1, 2]
    # With one of three paused, just as many are free as are needed.
    asked, _, _ = run(1, 3, 3, min_train_nodes=2)
    assert sorted(asked[2]) == [1, 2]


def test_a_federation_is_not_left_without_members_and_that_is_said(caplog):
    class Nobody(Callback):
        def on_start(self, strategy):
            strategy.roster.admit.append(lambda nodes, server_round: [])

    asked, _, _ = run(0, 3, 2, callbacks=[Nobody()])
    assert asked == [[0, 1, 2]] * 2
    words = "round 2: 3 members are left out, but only 0 others are there and 1 are needed"
    assert words in caplog.text


def test_who_is_left_out_does_not_evaluate():
    class AllButTheFirst(Callback):
        def on_start(self, strategy):
            strategy.roster.admit.append(lambda nodes, server_round: nodes[1:])

    setup = Setup(device="cpu", identify=identify_clients)
    strategy = FedAvg(callbacks=[AllButTheFirst()], setup=setup)
    grid = LocalGrid(Clients(), 3)
    result = strategy.start(grid, ArrayRecord([np.zeros(1, np.float32)]), num_rounds=1)
    # Partition p measures p.
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == (1 + 2) / 2


def test_members_at_work_are_enough_to_leave_others_out():
    """With a buffer, few members are idle: the one that is left out is all that could be drawn."""
    roster = Roster(NodeDirectory(None, timeout=1.0), MemberFailures(3))
    roster.admit.append(lambda nodes, server_round: [])
    grid = LocalGrid(Clients(), 3)

    def candidates(at_work: set[int]) -> int:
        present = roster.call(grid, 1, least=2, awaited=2, key="", at_work=at_work)
        return len(present.candidates)

    assert candidates({1000, 1001}) == 0
    assert candidates({1000}) == 2


def test_callbacks_are_told_who_is_asked_who_is_paused_and_what_came():
    class Told(Callback):
        def __init__(self):
            self.questions, self.replies = [], set()

        def on_start(self, strategy):
            strategy.intake.on_reply.append(self.note)

        def on_asked(self, current):
            self.round = current.round
            members = [node.client_id for node in current.members]
            self.questions.append((self.round, members, current.paused, len(current.online)))

        def note(self, node, is_error):
            self.replies.add((self.round, node.client_id, is_error))

    told, everybody = Told(), range(1000, 1005)
    run(1, 5, 3, callbacks=[told])
    # Client 1000 errs in rounds 1 and 2, and is paused for one turn.
    all_five = [*everybody], set(), 5
    assert told.questions == [(1, *all_five), (2, *all_five), (3, [*everybody[1:]], {1000}, 5)]
    came = {(t, i, i == 1000) for t in (1, 2, 3) for i in everybody}
    assert told.replies == came - {(3, 1000, True)}
