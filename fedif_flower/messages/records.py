"""The records of one kind in a message."""

from __future__ import annotations

from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)


def records_of(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """Return a message's records of one kind, by name.

    Flower's own ``content.array_records``, ``config_records`` and ``metric_records`` leave a cycle
    of references. It would keep the whole message, with its arrays, in memory until the garbage
    collector runs.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}
