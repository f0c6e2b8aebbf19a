"""Which connections are let in: so many strangers, so many of an address, and room for nodes.

A connection is a stranger until it has shown the signature of a registered node. Strangers cannot
take nodes' places: they are counted apart, and those from addresses of nodes apart from the rest.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict
from typing import Protocol

from fedif_consortium.superlink.guard_limits import GuardLimits
from fedif_consortium.superlink.node_rates import MOST_SUBJECTS, Bucket, Clock, Complaints

KNOWN_ADDRESSES = 4096
SECONDS_AT_ONCE = 4.0  # Handshakes that an address may begin at once, in seconds of its rate.


class Connection(Protocol):
    """What a gate needs of a connection; it is a key, so two are never equal."""

    def abort(self) -> None:
        """Close it without a word."""


class Gate:
    """Counts connections, and makes room.

    Parameters
    ----------
    limits : GuardLimits
        How many.
    node_connections : int
        Connections of all nodes together, > 0.
    complaints : Complaints
        Is told of every address that is refused.
    clock : Callable
        Returns seconds.
    """

    def __init__(
        self,
        limits: GuardLimits,
        node_connections: int,
        complaints: Complaints,
        clock: Clock = time.monotonic,
    ) -> None:
        self._limits = limits
        self._node_connections = node_connections
        self._complaints = complaints
        self._clock = clock
        # By network, its strangers from the oldest on; networks of nodes apart from the others.
        self._strangers: tuple[dict[str, dict[Connection, None]], ...] = ({}, {})
        self._place: dict[Connection, tuple[bool, str]] = {}
        self._nodes: dict[Connection, int] = {}
        self._by_node: Counter[int] = Counter()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._handshakes: OrderedDict[str, Bucket] = OrderedDict()
        self._all_handshakes = self._bucket(limits.stranger_handshakes)

    def may_begin(self, address: str) -> bool:
        """Return whether an address may begin a connection now, and count it."""
        network = network_of(address)
        buckets = [self._address_bucket(network)]
        if network not in self._known:
            buckets.append(self._all_handshakes)
        if any(bucket.wait() > 0 or bucket.level < 1 for bucket in buckets):
            self._complaints.add(f"address {network}", "too many connections a second")
            return False
        for bucket in buckets:
            bucket.take(1)
        return True

    def admit(self, address: str, connection: Connection) -> None:
        """Count a connection that has begun, and close others where there is no room."""
        network = network_of(address)
        known = network in self._known
        group = self._strangers[known]
        if len(group.get(network, ())) >= self._limits.address_connections:
            self._close_oldest(group, network)
        elif sum(map(len, group.values())) >= self._limits.stranger_connections:
            self._close_oldest(group, max(group, key=lambda name: len(group[name])))
        group.setdefault(network, {})[connection] = None
        self._place[connection] = known, network

    def prove(self, address: str, connection: Connection, node_id: int) -> bool:
        """Let a stranger be a node from now on; return whether there is room for it."""
        if self._nodes.get(connection) == node_id:
            return True
        if connection not in self._place:
            return connection not in self._nodes  # From this host, which nobody counts.
        if (
            self._by_node[node_id] >= self._limits.node_connections
            or len(self._nodes) >= self._node_connections
        ):
            return False
        self.leave(connection)
        self._nodes[connection] = node_id
        self._by_node[node_id] += 1
        network = network_of(address)
        self._known[network] = None
        self._known.move_to_end(network)
        while len(self._known) > KNOWN_ADDRESSES:
            self._known.popitem(last=False)
        return True

    def leave(self, connection: Connection) -> None:
        """Forget a connection; again without effect."""
        if (place := self._place.pop(connection, None)) is not None:
            known, network = place
            own = self._strangers[known][network]
            del own[connection]
            if not own:
                del self._strangers[known][network]
        elif (node_id := self._nodes.pop(connection, None)) is not None:
            self._by_node[node_id] -= 1
            if not self._by_node[node_id]:
                del self._by_node[node_id]

    def counts(self) -> tuple[int, int, int]:
        """Return the connections of strangers, of strangers from nodes' addresses, and of nodes."""
        unknown, known = (sum(map(len, group.values())) for group in self._strangers)
        return unknown, known, len(self._nodes)

    def _close_oldest(self, group: dict[str, dict[Connection, None]], network: str) -> None:
        self._complaints.add(f"address {network}", "too many connections that show no node's key")
        oldest = next(iter(group[network]))
        self.leave(oldest)
        oldest.abort()

    def _address_bucket(self, network: str) -> Bucket:
        bucket = self._handshakes.pop(network, None)
        if bucket is None:
            bucket = self._bucket(self._limits.address_handshakes)
        self._handshakes[network] = bucket
        while len(self._handshakes) > MOST_SUBJECTS:
            self._handshakes.popitem(last=False)
        return bucket

    def _bucket(self, rate: float) -> Bucket:
        return Bucket(rate, rate * SECONDS_AT_ONCE, self._clock)


def network_of(address: str) -> str:
    """Return an IPv4 address, or the network of 64 bits of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((int(found), 64), strict=False))
    return str(found)
