"""Flower's own simulation, without Ray: its state and its grid, and nodes that the test plays."""

from __future__ import annotations

from uuid import uuid4

from flwr.app import Message, MessageType, RecordDict
from flwr.server.superlink.linkstate.linkstate_factory import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from fedif_flower.messages.polling_grid import Closing
from fedif_flower.messages.screened_grid import ScreenedGrid


class Simulation:
    """Flower's grid and three nodes, whose answers the test sends."""

    def __init__(self) -> None:
        factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        self.state = factory.state()
        self.nodes = [self.state.create_node("a", "a", bytes([i]), 1e6) for i in range(3)]
        for node_id in self.nodes:
            self.state.activate_node(node_id, 1e6)
        run_id = self.state.create_run(
            "a/b", "1", "c", {}, NOOP_FEDERATION_ID, None, "a", "serverapp"
        )
        [run] = self.state.get_run_info(run_ids=[run_id])
        self.grid = InMemoryGrid(factory, pull_interval=0.01)
        self.grid.set_run(run)
        TaskIdentity.run_id = run_id
        TaskIdentity.task_id = run.primary_task_id
        TaskIdentity.node_id = 1

    def questions(self) -> list[Message]:
        """Return a message to each node."""
        return [Message(RecordDict(), node, MessageType.QUERY) for node in self.nodes]

    def answer(self, node_id: int) -> None:
        """Let a node answer what it was asked."""
        [message] = self.state.get_message_ins(node_id, limit=1)
        reply = Message(RecordDict(), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = node_id
        reply.metadata.__dict__["_message_id"] = str(uuid4())
        assert self.state.store_message_res(reply)


def test_replies_are_handed_over_while_others_are_awaited():
    simulation = Simulation()
    replies = ScreenedGrid(simulation.grid).send_and_receive(simulation.questions(), timeout=20.0)
    for node_id in reversed(simulation.nodes):
        simulation.answer(node_id)
        assert next(replies).metadata.src_node_id == node_id
        assert not simulation.state.message_res_store  # It is kept nowhere else.
    assert list(replies) == []


def test_what_comes_after_a_round_has_closed_is_not_kept():
    simulation = Simulation()
    grid = ScreenedGrid(simulation.grid)
    first, second, third = simulation.nodes
    closing = Closing(quorum=1)
    grid.close_by(closing)
    replies = grid.send_and_receive(simulation.questions(), timeout=20.0)
    simulation.answer(first)
    assert next(replies).metadata.src_node_id == first
    closing.count()
    assert list(replies) == []
    # The second answers before the next round begins, the third after it has begun.
    for late in (second, third):
        simulation.answer(late)
        replies = grid.send_and_receive(simulation.questions()[:1], timeout=20.0)
        simulation.answer(first)
        assert [reply.metadata.src_node_id for reply in replies] == [first]
        assert not simulation.state.message_res_store


def test_silence_lasts_no_longer_than_the_time_that_is_given():
    simulation = Simulation()
    grid = ScreenedGrid(simulation.grid)
    assert list(grid.send_and_receive(simulation.questions(), timeout=0.1)) == []
