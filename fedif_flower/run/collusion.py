"""The way to the clients for attackers that agree on what they send: in simulations alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from torch import Tensor

from fedif_flower.attacks import Colluder, build_behaviour
from fedif_flower.attacks.registry import needs_collusion
from fedif_flower.errors import ConfigError, ReplyError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import ACCOMPLICE_KEY, COLLUSION_KEY, ROUND_KEY
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.polling_grid import ForwardingGrid
from fedif_flower.messages.screened_grid import is_reliable
from fedif_flower.round import ModelVectors
from fedif_flower.run.part import Built, Kept, RunContext, RunPart
from fedif_flower.seeding import torch_generator
from fedif_flower.settings import Scalar

logger = logging.getLogger(__name__)


class Collusion(RunPart):
    """Attackers that agree on what they send."""

    def build(self, run: RunContext) -> Built:
        """Return the wire by which they see each other's updates."""
        if not needs_collusion(run.config, run.config.seed):
            return Built(told={COLLUSION_KEY: False})
        names, tied = run.loaded.validation.parameter_names, run.loaded.validation.tied_names
        agreement = Agreement(run.config)
        wires = [lambda grid: ColludingGrid(grid, agreement, names, tied)]
        return Built(wires=wires, told={COLLUSION_KEY: True}, kept={"collusion": agreement})


class Agreement(Kept):
    """What the accomplices of a run agree on; checkpoints have the numbers that they remember."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._behaviour: Colluder | None = None  # One for the run: it may remember rounds.
        self._after: dict[int, Mapping[str, Any]] = {}  # What it remembered after the last two.
        self._goes_on = False

    def collude(self, received: Tensor, own: Tensor, server_round: int, first: int) -> Tensor:
        """Return the updates ``[k, d]`` that they send; ``first`` is their first partition."""
        if self._behaviour is None:
            built = build_behaviour(self.config, partition_id=first, seed=self.config.seed)
            assert isinstance(built, Colluder)  # Its own clients said so.
            vars(built).update(deepcopy(self.memory(server_round)))
            self._behaviour = built
            if self._goes_on:
                self._warn_of_lost_memory(built)
        generator = torch_generator("collusion", self.config.seed, server_round)
        agreed = self._behaviour.collude(received, own, generator)
        kept = vars(self._behaviour).items()
        known = {name: deepcopy(value) for name, value in kept if _can_be_kept(value)}
        self._after = dict([*self._after.items()][-1:]) | {server_round: known}
        return agreed

    def memory(self, last_round: int) -> dict[str, Any]:
        """Return what they remembered after a round."""
        return dict(next((m for t, m in reversed(self._after.items()) if t <= last_round), {}))

    def restore(self, lines: object, memory: Mapping[str, Any] | None, last_round: int) -> None:  # noqa: ARG002
        """Go on with what they remembered."""
        self._after = {last_round: memory or {}}
        self._goes_on = True

    def _warn_of_lost_memory(self, behaviour: Colluder) -> None:
        lost = [name for name, value in vars(behaviour).items() if not _can_be_kept(value)]
        if lost:
            logger.warning(
                "attack = %r: what accomplices remember as %s begins anew, and the run does not go "
                "on bit for bit: checkpoints keep numbers, texts, tensors, and lists and dicts of "
                "these",
                self.config.attack,
                ", ".join(lost),
            )


def _can_be_kept(value: object) -> bool:
    """Return whether a checkpoint can have a value: nothing in it can run code."""
    if isinstance(value, dict):
        return all(isinstance(key, Scalar) and _can_be_kept(own) for key, own in value.items())
    if isinstance(value, list | tuple):
        return all(map(_can_be_kept, value))
    return isinstance(value, Scalar | Tensor | None)


class ColludingGrid(ForwardingGrid):
    """Lets the accomplices of a round see each other's updates, and rewrites their replies.

    Honest clients' replies pass as they come. Those of accomplices, who say so in a record of
    their own, wait until all that arrive are there. What they send depends on the run's seed, the
    round and their updates alone.

    Parameters
    ----------
    grid : Grid
        The grid of a simulation.
    agreement : Agreement
        What they agree on.
    trainable_keys : sequence of str
        The trainable parameters, in the order of the vector.
    tied_keys : mapping of str to str
        Second names of arrays, and their first names.

    Raises
    ------
    ConfigError
        If the nodes are real: they do not show each other their updates.
    """

    reliable = True  # As the simulations that it is used in.

    def __init__(
        self,
        grid: Grid,
        agreement: Agreement,
        trainable_keys: Sequence[str],
        tied_keys: Mapping[str, str],
    ) -> None:
        super().__init__(grid)
        if not is_reliable(grid):
            raise ConfigError(
                f"attack = {agreement.config.attack!r} needs to see what all malicious clients are "
                "about to send, which is possible only in a simulation: these nodes are real"
            )
        self._agreement = agreement
        self._keys = trainable_keys, tied_keys

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages now; return an iterator over the replies, the accomplices' last."""
        sent = list(messages)
        return self._rewritten(sent, self.inner.send_and_receive(sent, timeout=timeout))

    def _rewritten(self, sent: list[Message], replies: Iterable[Message]) -> Iterator[Message]:
        accomplices: dict[int, Message] = {}
        for reply in replies:
            if reply.has_content() and ACCOMPLICE_KEY in reply.content:
                record = cast(ConfigRecord, reply.content.pop(ACCOMPLICE_KEY))
                accomplices[cast(int, record["partition-id"])] = reply
            else:
                yield reply
        if accomplices:
            ordered = [reply for _, reply in sorted(accomplices.items())]
            self._collude(sent[0], ordered, partition_id=min(accomplices))
            yield from ordered

    def _collude(self, sent: Message, replies: Sequence[Message], *, partition_id: int) -> None:
        """Replace the accomplices' trainable parameters, in place."""
        arrays = cast(ArrayRecord, sent.content["arrays"])
        layout = ParameterLayout.from_arrays(arrays, *self._keys)
        received = layout.to_vectors(arrays)
        updates, taken = [], []
        for reply in replies:
            update, buffers = torch.empty_like(received.params), torch.empty_like(received.buffers)
            reply_arrays = cast(ArrayRecord, reply.content["arrays"])
            try:
                unpacked = layout.unpack_update(reply_arrays, received, update, buffers)
            except ReplyError:
                continue  # Its training diverged: it goes to the server as it is.
            updates.append(update)
            taken.append((reply, received.buffers + buffers, unpacked.counters))
        if not updates:
            return
        server_round = cast(int, cast(ConfigRecord, sent.content["config"])[ROUND_KEY])
        own = torch.stack(updates)  # [k, d]
        agreed = self._agreement.collude(received.params, own, server_round, partition_id)
        if agreed.shape != own.shape:
            raise ValueError(
                f"attack {self._agreement.config.attack!r} must return updates of shape "
                f"{list(own.shape)}, not {list(agreed.shape)}"
            )
        for (reply, buffers, counters), update in zip(taken, agreed, strict=True):
            params = received.params + update.to(received.params)
            reply.content["arrays"] = layout.to_arrays(ModelVectors(params, buffers, counters))
