"""What the server tells clients beside the model: the settings, and what its data look like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Message

from fedif_flower.errors import ConfigError
from fedif_flower.messages.records import records_of

if TYPE_CHECKING:  # A guarded SuperNode needs the keys below, and no PyTorch.
    from fedif_flower.messages.client_config import ClientConfig
    from fedif_flower.tasks.task import Task

CONFIG_KEY = "client-config"
TASK_KEY = "task"
FACTS_KEY = "task-facts"
PROXIMAL_KEY = "proximal-mu"
ROUND_KEY = "server-round"
RUN_KEY = "run"
RUN_ID_KEY = "run-id"
COLLUSION_KEY = "collusion"  # Whether accomplices see each other's updates before they are sent.
RECEIPTS_KEY = "receipts"  # Whether members get receipts, and so remember what they sent.
# Of arrays beside the model's: a local method's vector, in both directions, and its reports.
VECTOR_RECORD = VECTOR_KEY = "local-method"
TAKEN_RECORD = "local-method-taken"  # What became of the last vector that a client sent.
TAKEN_ROUND_KEY = "server-round"
TAKEN_FACTOR_KEY = "factor"
GUIDE_RECORD = "local-guide"  # What a local method's guide tells one client.
MEMORIES = ("attack", "method")  # Who may remember something at a client from round to round.
ACCOMPLICE_KEY = "accomplice"  # In a reply that waits for what its accomplices send.


def memory_key(kind: str, run: str) -> str:
    """Return where a node's state has what one of :data:`MEMORIES` keeps of a run."""
    return f"{kind}-memory.{run}"


def instructions(
    config: ClientConfig,
    task: Task,
    *,
    run: str,
    run_id: str = "",
    more: Mapping[str, bool | int | float | str] = MappingProxyType({}),
) -> ConfigRecord:
    """Return what clients need beside the model.

    Parameters
    ----------
    config : ClientConfig
        The settings.
    task : Task
        The server's: its name, and what it says of the server's data.
    run : str
        Which run it is: a simulated node may work for several at a time.
    run_id : str
        Drawn for this run alone, which members sign; empty: they sign nothing.
    more : mapping
        What parts of the run tell clients, by key.
    """
    return ConfigRecord(
        {
            CONFIG_KEY: config.to_json(),
            TASK_KEY: task.name,
            FACTS_KEY: json.dumps(dict(task.facts)),
            RUN_KEY: run,
            RUN_ID_KEY: run_id,
            **more,
        }
    )


def told_config(received: ConfigRecord) -> dict[str, Any]:
    """Return the settings that the server sent, unchecked, by run-config key."""
    return dict(json.loads(str(received[CONFIG_KEY])))


def read_config(received: ConfigRecord) -> ClientConfig:
    """Return the settings that the server sent.

    Raises
    ------
    ConfigError
        If one is wrong, or left out: a member's policy judges what is there.
    """
    from fedif_flower.messages.client_config import ClientConfig

    settings = told_config(received)
    config = ClientConfig(**settings)
    odd_keys = config.to_mapping().keys() ^ settings.keys()
    if odd_keys:
        raise ConfigError(f"the server's settings are not this app's: {min(odd_keys)!r}")
    return config


def round_of(message: Message) -> int | None:
    """Return the round that a message says it is of, if it does."""
    if not message.has_content():
        return None
    for record in records_of(message.content, ConfigRecord).values():
        number = record.get(ROUND_KEY)
        if isinstance(number, int):
            return number
    return None
