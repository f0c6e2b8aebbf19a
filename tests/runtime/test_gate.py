from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.runtime.gate import SECONDS_AT_ONCE, Gate, network_of
from fedif_flower.runtime.guard_limits import GuardLimits
from fedif_flower.runtime.node_rates import Complaints

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


def test_all_unknown_addresses_together_have_a_rate_and_a_node_s_does_not_share_it():
    found = gate()
    [node] = admitted(found, "10.0.0.1")
    assert found.prove("10.0.0.1", node, 1)
    at_once = int(LIMITS.stranger_handshakes * SECONDS_AT_ONCE)
    begun = sum(found.may_begin(f"10.1.{i // 250}.{i % 250}") for i in range(3 * at_once))
    assert begun == at_once
    assert found.may_begin("10.0.0.1")


def test_the_oldest_of_an_address_makes_room_for_its_newest():
    found = gate()
    peers = admitted(found, "10.0.0.1", 5)
    assert [peer.aborted for peer in peers] == [True, False, False, False, False]


def test_the_address_that_has_most_makes_room():
    found = gate()
    many = admitted(found, "10.0.0.1", 4)
    few = [*admitted(found, "10.0.0.2", 3), *admitted(found, "10.0.0.3")]
    [late] = admitted(found, "10.0.0.4")
    assert [peer.aborted for peer in many] == [True, False, False, False]
    assert not any(peer.aborted for peer in (*few, late))


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


def test_a_node_has_so_many_connections_and_so_have_all():
    found = gate()
    own = admitted(found, "10.0.0.1", 4)
    assert all(found.prove("10.0.0.1", peer, 1) for peer in own)
    [fifth] = admitted(found, "10.0.0.1")
    assert not found.prove("10.0.0.1", fifth, 1)
    others = admitted(found, "10.0.0.2", 3)
    assert [found.prove("10.0.0.2", peer, 2) for peer in others] == [True, True, False]
    found.leave(own[0])
    assert found.prove("10.0.0.2", others[2], 2)
    assert found.prove("10.0.0.2", others[2], 2)  # Again: it is.


def test_whoever_comes_from_this_host_is_not_counted():
    found = gate()
    assert found.prove("127.0.0.1", Peer(), 1)
    assert found.counts() == (0, 0, 0)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_network(address, network):
    assert network_of(address) == network


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
