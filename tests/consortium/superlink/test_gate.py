from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.superlink.gate import SECONDS_AT_ONCE, Gate
from fedif_consortium.superlink.guard_limits import GuardLimits
from fedif_consortium.superlink.node_rates import Complaints

LIMITS = GuardLimits(
    stranger_connections=8,
    address_connections=4,
    node_connections=4,
    address_handshakes=5.0,
    stranger_handshakes=10.0,
)
NODES = 6


class Peer:
    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def gate(clock=lambda: 0.0) -> Gate:
    return Gate(LIMITS, NODES, Complaints(), clock)


def admitted(found: Gate, address: str, count: int = 1) -> list[Peer]:
    peers = [Peer() for _ in range(count)]
    for peer in peers:
        found.admit(address, peer)
    return peers


def test_an_address_begins_so_many_connections_a_second():
    now = [0.0]
    found = gate(lambda: now[0])
    at_once = int(LIMITS.address_handshakes * SECONDS_AT_ONCE)
    assert [found.may_begin("10.0.0.1") for _ in range(at_once + 1)] == [True] * at_once + [False]
    assert found.may_begin("10.0.0.2")
    now[0] += 1.0
    assert [found.may_begin("10.0.0.1") for _ in range(6)] == [True] * 5 + [False]


def test_strangers_take_no_place_of_nodes_nor_of_their_addresses():
    found = gate()
    [node] = admitted(found, "10.0.0.1")
    assert found.prove("10.0.0.1", node, 1)
    [waiting] = admitted(found, "10.0.0.1")  # Not yet signed, from a node's address.
    for number in range(100):
        admitted(found, f"10.1.0.{number}")
    assert not node.aborted
    assert not waiting.aborted
    assert found.counts() == (LIMITS.stranger_connections, 1, 1)


@given(
    st.lists(st.tuples(st.sampled_from(["come", "prove", "leave"]), st.integers(0, 5)), max_size=80)
)
def test_no_count_is_ever_beyond_its_limit(steps):
    found, here = gate(), []
    for step, number in steps:
        address = f"10.0.0.{number}"
        if step == "come":
            here.append((address, *admitted(found, address)))
        elif here:
            own, peer = here[number % len(here)]
            if step == "prove":
                found.prove(own, peer, number)
            else:
                found.leave(peer)
    unknown, known, nodes = found.counts()
    assert max(unknown, known) <= LIMITS.stranger_connections
    assert nodes <= NODES
    for _, peer in here:
        found.leave(peer)
    assert found.counts() == (0, 0, 0)
