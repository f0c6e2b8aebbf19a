"""A member's log warns, once in a run, of classes that the server's held-out data hardly cover."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from flwr.app import ConfigRecord, Context
from torch import Tensor
from torch.utils.data import TensorDataset

from fedif_flower.client.trust import is_simulated
from fedif_flower.errors import ConfigError
from fedif_flower.messages.held_out_classes import (
    HELD_OUT_CLASSES_KEY,
    MOST_LABELS,
    HeldOutClasses,
    read_held_out_classes,
)
from fedif_flower.messages.instructions import RUN_KEY
from fedif_flower.messages.text import printable
from fedif_flower.tasks.batches import is_plain
from fedif_flower.tasks.rows import class_labels
from fedif_flower.valuation.held_out import RARE
from fedif_flower.words import listed

_STATE_KEY = "held-out-classes-said"  # The node's state has here which run's warning was logged.
logger = logging.getLogger(__name__)


def warn_of_classes(settings: ConfigRecord, data: Any, context: Context) -> None:
    """Log which classes the server can hardly value, and how many of a node's examples have them.

    It is logged once in a run, and only here: the server learns nothing about the node's examples.
    An entry of the server's that cannot be read is logged too, and raises no error. A simulation
    logs nothing here, because the server has logged the classes to the same log.

    Parameters
    ----------
    settings : ConfigRecord
        A run's instructions.
    data : Data
        The node's own data, as its task loads them. Labels are counted if the data are tensors in
        memory or a list of batches of tensors.
    context : Context
        The node's context, whose state remembers what was logged.
    """
    if HELD_OUT_CLASSES_KEY not in settings or is_simulated():
        return
    announcement = ConfigRecord(
        {"run": f"{settings.get(RUN_KEY)!r} {settings[HELD_OUT_CLASSES_KEY]!r}"}
    )
    if context.state.get(_STATE_KEY) == announcement:
        return
    context.state[_STATE_KEY] = announcement
    try:
        classes = read_held_out_classes(settings)
    except ConfigError as error:
        logger.warning("%s", printable(error))
        return
    if classes == HeldOutClasses():
        return
    labels = labels_in(data)
    phrases = []
    if classes.missing:
        phrases.append(
            f"it has no usable example of the classes {_named(classes.missing)}"
            f"{_concerned(classes.missing, labels)}: an update earns nothing for teaching the "
            "model these classes"
        )
    if classes.rare:
        phrases.append(
            f"it has fewer than {RARE} examples of the classes {_named(classes.rare)}"
            f"{_concerned(classes.rare, labels)}: what an update earns for teaching the model "
            "these classes is chance"
        )
    logger.warning("the held-out set that values members' updates: %s", "; ".join(phrases))


def labels_in(data: Any) -> Tensor | None:
    """Return the class labels ``[n]`` of data, int64; ``None`` if none lie in memory."""
    batches = data if isinstance(data, list) else [data]
    labels: list[Tensor] = []
    for batch in batches:
        tensors = batch.tensors if is_plain(batch, TensorDataset) else batch
        batch_labels = class_labels(tensors)
        if batch_labels is None:
            return None
        labels.append(batch_labels.cpu().long())
    return torch.cat(labels) if labels else None


def _named(classes: Sequence[int]) -> str:
    """Return words for classes: the first few, and how many more there are (at least)."""
    if _may_go_on(classes):
        return f"{listed(classes)} at least"
    return listed(classes)


def _may_go_on(classes: Sequence[int]) -> bool:
    """Return whether the server may have cut off the list of classes."""
    return len(classes) >= MOST_LABELS


def _concerned(classes: Sequence[int], labels: Tensor | None) -> str:
    """Return words for how many examples are of these classes; empty if that is not known."""
    if labels is None:
        return ""
    concerned = int(torch.isin(labels, torch.tensor(classes)).sum())
    count = f"at least {concerned}" if _may_go_on(classes) else f"{concerned}"
    return f" ({count} of this node's {len(labels)} examples)"
