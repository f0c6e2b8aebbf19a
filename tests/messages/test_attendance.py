from __future__ import annotations

from flwr.proto.node_pb2 import NodeInfo

from fedif_flower.messages.attendance import Attendance, enumerated


def test_absences_and_returns_are_told_once(caplog):
    attendance = Attendance()
    a, b, c = (NodeInfo(node_id=i, name=name) for i, name in enumerate(("a", "b", ""), 1))
    for nodes in ([a, b], [a, b], [a], [a], [a, b, c]):
        attendance.look(nodes)
    assert caplog.messages == [
        "b (node 2) is offline: 1 of 2 online",
        "b (node 2) is back: 3 of 3 online",
        "node 3 is there: 3 of 3 online",
    ]


def test_many_names_are_cut_short():
    assert enumerated("cab") == "a, b, c"
    assert enumerated(map(str, range(12))).endswith("7 and 2 more")
