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
# The record of arrays beside the model: a local method's vector, in messages and replies, and the
# method's reports, in replies.
VECTOR_RECORD = VECTOR_KEY = "local-method"
# The record that tells a client which of its vectors the server took in last: of which round, and
# multiplied by which factor.
TAKEN_RECORD = "local-method-taken"
TAKEN_ROUND_KEY = "server-round"
TAKEN_FACTOR_KEY = "factor"
GUIDE_RECORD = "local-guide"  # The record with what a local method's guide tells one client.
# The parts of a client that may remember something from round to round.
MEMORIES = ("attack", "method")
# The record that marks a reply of an attacker whose update has still to be agreed on with its
# accomplices'.
ACCOMPLICE_KEY = "accomplice"


def memory_key(kind: str, run: str) -> str:
    """Return the key, in a node's state, of what one of :data:`MEMORIES` remembers of a run."""
    return f"{kind}-memory.{run}"


def instructions(
    config: ClientConfig,
    task: Task,
    *,
    run: str,
    run_id: str = "",
    more: Mapping[str, bool | int | float | str] = MappingProxyType({}),
) -> ConfigRecord:
    """Return the config that clients get beside the model.

    Parameters
    ----------
    config : ClientConfig
        The settings.
    task : Task
        The server's task. Clients are sent its name and its facts about the server's data.
    run : str
        The run's name for clients: a simulated node may work for several runs at a time.
    run_id : str
        A random name of this run alone, which members sign; empty if they sign nothing.
    more : mapping of str to bool, int, float or str
        Further entries, which parts of the run tell clients.
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
    """Return the settings that the server sent, by run-config key, without checking them."""
    return dict(json.loads(str(received[CONFIG_KEY])))


def read_config(received: ConfigRecord) -> ClientConfig:
    """Return the settings that the server sent, checked.

    Raises
    ------
    ConfigError
        If a setting is wrong, unknown or missing. A missing setting is refused because a member's
        policy judges only the settings that are in the message.
    """
    from fedif_flower.messages.client_config import ClientConfig

    settings = told_config(received)
    config = ClientConfig(**settings)
    odd_keys = config.to_mapping().keys() ^ settings.keys()
    if odd_keys:
        raise ConfigError(f"the server's settings are not this app's: {min(odd_keys)!r}")
    return config


def round_of(message: Message) -> int | None:
    """Return the round that a message names, ``None`` if it names none."""
    if not message.has_content():
        return None
    for record in records_of(message.content, ConfigRecord).values():
        number = record.get(ROUND_KEY)
        if isinstance(number, int):
            return number
    return None
