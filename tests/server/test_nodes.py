from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedif_flower import FedIF
from fedif_flower.errors import ConfigError, TrainingFailedError
from fedif_flower.messages.client_node import UNKNOWN_PARTITION, ClientNode
from fedif_flower.messages.models import model_arrays
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server import nodes
from fedif_flower.server.nodes import (
    MOST_QUESTIONS,
    identify_by_query,
    simulated_nodes,
    wait_for_nodes,
)
from fedif_flower.server.roster import NodeDirectory
from tests.server.hostile import Clients
from tests.server.waiting import Clock, LateGrid
from tests.strategies.lines import BASE, Movers, Threshold, threshold_validation


@pytest.fixture
def clock(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(nodes, "time", found)
    return found


def asked(grid: LocalGrid, identify=identify_by_query) -> list[ClientNode]:
    return NodeDirectory(identify, timeout=1.0).online(grid, len(grid.contexts))


class Slow(Clients):
    """Clients that say who they are only when they are asked for the n-th time."""

    def __init__(self, answers_at: dict[int, int]) -> None:
        super().__init__()
        self.answers_at, self.asked = answers_at, []

    def __call__(self, message: Message, context) -> Message:
        partition_id = context.node_config["partition-id"]
        self.asked.append(partition_id)
        if self.asked.count(partition_id) < self.answers_at.get(partition_id, 1):
            return Message(RecordDict(), reply_to=message)
        return super().__call__(message, context)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [(None, "None"), ({1000: "hospital-a"}, r"\{1000: 'hospital-a'\}"), (["a"], r"\['a'\]")],
)
def test_an_identify_that_names_no_nodes_is_told_what_to_return(answer, shown):
    grid = LocalGrid(Clients(), 2)
    words = rf"^identify\(grid, node_ids\) = {shown}; allowed: a list of ClientNode$"
    with pytest.raises(ConfigError, match=words):
        asked(grid, lambda grid, node_ids: answer)


def test_who_does_not_say_is_asked_again_but_no_more_than_three_times():
    clients = Slow({0: 100, 1: 2})
    grid = LocalGrid(clients, 3)
    directory = NodeDirectory(identify_by_query, timeout=1.0)
    for _ in range(MOST_QUESTIONS + 2):
        found = directory.online(grid, 3)
    assert found == [ClientNode(p, 1000 + i) for i, p in enumerate((UNKNOWN_PARTITION, 1, 2))]
    assert [clients.asked.count(p) for p in range(3)] == [MOST_QUESTIONS, 2, 1] == [3, 2, 1]


def claiming(answers: dict[int, object]):
    """Clients that say what is in ``answers`` of themselves, and else the truth."""

    def reply(message: Message, context) -> Message:
        partition_id = context.node_config["partition-id"]
        claim = answers.get(partition_id, partition_id)
        node = ConfigRecord({"partition-id": claim, "attack": "\x1b[2J\n"})
        return Message(RecordDict({"node": node}), reply_to=message)

    return reply


def test_a_partition_that_two_claim_is_nobody_s(caplog):
    directory = NodeDirectory(identify_by_query, timeout=1.0)
    found = directory.online(LocalGrid(claiming({2: 0}), 3), 3)
    assert [(n.partition_id, n.node_id) for n in found] == [(-1, 1000), (-1, 1002), (1, 1001)]
    assert [n.note for n in found] == ["claims partition 0, and so does another node"] * 2 + [""]
    assert "node 1000 claims partition 0, and so does another node: neither gets it" in caplog.text
    # Where the other is gone, as after a restart without a key, the claim holds again.
    alone = directory.online(LocalGrid(claiming({}), 2), 2)
    assert [n.partition_id for n in alone] == [0, 1]


def test_a_node_that_comes_for_one_that_is_gone_is_told_to_be_a_new_member(caplog):
    """As a SuperNode does that is started again without a key; 1002 is no such one."""
    directory = NodeDirectory(identify_by_query, timeout=1.0)
    grid = LocalGrid(claiming({4: 1}), 5)
    for node_ids in ([1000, 1001], [1000, 1002, 1003], [1000, 1002]):
        grid.node_ids = node_ids
        directory.online(grid, 1)
    assert "new member" not in caplog.text
    grid.node_ids = [1000, 1002, 1004]
    assert [n.partition_id for n in directory.online(grid, 1)] == [0, 1, 2]
    directory.online(grid, 1)
    assert caplog.text.count("new member") == 1
    assert "new members: client 1 (node 1004): each claims the partition of" in caplog.text


@pytest.mark.parametrize("claim", [True, -1, 2**31, 1.0, "0", b"0"])
def test_a_partition_is_a_whole_number(claim, caplog):
    unknown, known = asked(LocalGrid(claiming({0: claim}), 2))
    assert (unknown.partition_id, unknown.node_id) == (UNKNOWN_PARTITION, 1000)
    assert unknown.note == f"claims partition {claim!r}"
    assert f"node 1000: claims partition {claim!r}" in caplog.text
    assert known.attack == "?[2J?"


class Registered(LocalGrid):
    """A grid whose first node has a name, given at registration."""

    def get_nodes(self):
        for info in super().get_nodes():
            info.name = "hospital-2" if info.node_id == 1000 else ""
            yield info


class Simulated(LocalGrid):
    simulated = True


def test_a_node_is_called_what_it_was_registered_as():
    named, unnamed = asked(Registered(Clients(), 2))
    assert (named.name, named.label) == ("hospital-2", "hospital-2 (node 1000)")
    assert unnamed.label == "client 1 (node 1001)"
    # Who does not say which data it holds, or is not asked, has a name too.
    for clients, identify in ((Slow({0: 9}), identify_by_query), (Clients(), None)):
        node = asked(Registered(clients, 2), identify)[0]
        assert (node.partition_id, node.name) == (UNKNOWN_PARTITION, "hospital-2")


class Drawn(LocalGrid):
    """A simulation as Flower's: drawn node ids, handed out in no order; registered in order."""

    simulated = True

    def __init__(self, clients, node_ids: list[int]) -> None:
        super().__init__(clients, len(node_ids))
        self.registered = node_ids

    def get_node_ids(self):
        return sorted(self.registered)

    def get_nodes(self):
        for place, node_id in reversed(list(enumerate(self.registered))):
            yield NodeInfo(node_id=node_id, registered_at=f"{place:020d}")

    def pull_messages(self, message_ids):
        for message in map(self._waiting.pop, message_ids):
            context = self.contexts[1000 + self.registered.index(message.metadata.dst_node_id)]
            yield self._client_app(message, context)


def test_a_simulated_member_of_an_own_app_is_its_partition_and_nobody_is_asked():
    clients = Slow({})
    found = asked(Drawn(clients, [9005578534988295792, 17, 40]), None)
    assert [(n.partition_id, n.client_id, n.node_id) for n in found] == [
        (0, 0, 9005578534988295792),
        (1, 1, 17),
        (2, 2, 40),
    ]
    assert [n.label for n in found] == ["client 0", "client 1", "client 2"]
    assert clients.asked == []


def test_an_own_app_s_simulation_draws_and_scores_alike_whatever_node_ids_are_drawn():
    told = []
    for node_ids in ([51, 7, 30, 12], [2, 90, 11, 48]):
        strategy = FedIF(threshold_validation(), fraction_train=0.5, **BASE)
        model = model_arrays(Threshold())
        # Started again, over a grid that draws others, it goes on with its scores.
        for ids in (node_ids, [node_id + 1000 for node_id in node_ids]):
            grid = Drawn(Movers([[1.0], [-1.0], [2.0], [0.5]]), ids)
            model = strategy.start(grid, model, num_rounds=3).arrays
        drawn = [[c.node.client_id for c in r.clients] for r in strategy.history.rounds]
        told.append((drawn, strategy.weight_scores))
    assert told[0] == told[1]
    assert set(told[0][1]) == {f"client {i}" for i in range(4)}


def test_a_member_s_refusal_is_logged_where_it_is_asked_who_it_is(caplog):
    def refuse(message: Message, context) -> Message:
        return Message(Error(6, "refused by the member: \x1b not approved"), reply_to=message)

    (node,) = asked(LocalGrid(refuse, 1))
    assert node.partition_id == UNKNOWN_PARTITION
    assert "node 1000 does not answer: refused by the member: ? not approved" in caplog.text


def test_a_wait_is_told_at_once_and_every_ten_seconds_and_ends_with_both_ways_out(clock, caplog):
    class Two(LocalGrid):
        def get_node_ids(self):
            return super().get_node_ids()[:2]

    with pytest.raises(TrainingFailedError) as error:
        wait_for_nodes(Two(Clients(), 100), 100, 25.0, "num-clients")
    told = [record.getMessage() for record in caplog.records]
    found = "2 of 100 nodes are online"
    assert told == [f"{found}; waiting for more, {left} s at most" for left in (25, 15, 5)]
    ways = "start more SuperNodes, or set a lower num-clients"
    assert str(error.value) == f"{found} after 25 s: {ways}"
    assert clock.now < 26


def test_a_wait_in_which_the_superlink_answered_late_is_told_once(clock, caplog):
    class HeldUp(LocalGrid):
        num_calls = 0

        def get_node_ids(self):
            self.num_calls += 1
            if self.num_calls == 2:
                clock.now += 25
            return super().get_node_ids()[:2]

    with pytest.raises(TrainingFailedError):
        wait_for_nodes(HeldUp(Clients(), 9), 9, 32.0, "num-clients")
    told = [record.getMessage().partition("; ")[2] for record in caplog.records]
    assert told == [f"waiting for more, {left} s at most" for left in (32, 7)]


def test_a_wait_ends_with_the_nodes_that_come(clock, caplog):
    class Coming(LocalGrid):
        def get_node_ids(self):
            return super().get_node_ids()[: 1 + int(clock.now)]

    assert wait_for_nodes(Coming(Clients(), 9), 4, 25.0, "num-clients") == [1000, 1001, 1002, 1003]
    assert wait_for_nodes(LocalGrid(Clients(), 9), 4, 25.0, "num-clients") == [*range(1000, 1009)]
    assert len(caplog.records) == 1  # Who waits for nobody says nothing.


def test_nobody_waits_for_nodes_that_cannot_come(clock):
    for grid in (LocalGrid(Clients(), 4), ScreenedGrid(LocalGrid(Clients(), 4))):
        with pytest.raises(ConfigError) as error:
            wait_for_nodes(grid, 10, 300.0, "min_available_nodes")
        assert str(error.value) == (
            "min_available_nodes = 10, but the grid has 4 nodes, and no more can come; "
            "allowed: at most 4, or a grid of more"
        )
    assert clock.now == 0


def test_simulated_nodes_are_counted_once_one_has_answered(clock):
    """Flower's simulation registers its nodes while the ServerApp begins; nobody waits for more."""
    grid = LateGrid(Clients(), 7)
    assert simulated_nodes(grid) == [*range(1000, 1007)]
    assert grid.questions == 1
    with pytest.raises(ConfigError) as error:
        wait_for_nodes(LateGrid(Clients(), 2), 100, 600.0, "num-clients")
    assert str(error.value) == (
        "num-clients = 100, but 2 nodes are simulated: set num-clients = 2, or simulate 100 nodes "
        'by --federation-config "num-supernodes=100"'
    )
    assert clock.now < 1
