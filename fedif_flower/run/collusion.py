"""Attackers that see each other's updates and agree on what they send, in simulations alone."""

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
from fedif_flower.attacks.returned import require_updates
from fedif_flower.errors import ConfigError, ReplyError, require
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import ACCOMPLICE_KEY, COLLUSION_KEY, ROUND_KEY
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.polling_grid import ForwardingGrid, stream_replies
from fedif_flower.messages.screened_grid import is_reliable
from fedif_flower.round import ModelVectors
from fedif_flower.run.config import RunConfig
from fedif_flower.run.kept_values import unreadable_in
from fedif_flower.run.last_rounds import LastRounds
from fedif_flower.run.part import Built, PartState, RunContext, RunPart
from fedif_flower.seeding import torch_generator

logger = logging.getLogger(__name__)


class Collusion(RunPart):
    """Attackers that agree on what they send."""

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError if a quorum closes rounds before accomplices' updates come."""
        quorum = config.pace.quorum
        fits = not quorum or not needs_collusion(config, config.seed)
        allowed = (
            f"0 with attack = {config.attack!r}: accomplices' updates come after all others, so a "
            "round would close without them"
        )
        require(fits, "pace.quorum", quorum, allowed)

    def build(self, run: RunContext) -> Built:
        """Return the wire by which accomplices see each other's updates."""
        if not needs_collusion(run.config, run.config.seed):
            return Built(instructions={COLLUSION_KEY: False})
        validation = run.loaded.validation
        agreement = Agreement(run.config)

        def wire(grid: Grid) -> Grid:
            return ColludingGrid(grid, agreement, validation.parameter_names, validation.tied_names)

        return Built(
            wires=[wire], instructions={COLLUSION_KEY: True}, state={"collusion": agreement}
        )


class Agreement(PartState):
    """What the accomplices of a run agree on; what the attack remembers is in checkpoints."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        # One object for the whole run, made when it is first needed: it may remember rounds.
        self._behaviour: Colluder | None = None
        self._last: LastRounds[Mapping[str, Any]] = LastRounds()
        self._goes_on = False

    def collude(self, received: Tensor, updates: Tensor, server_round: int, first: int) -> Tensor:
        """Return the updates ``[k, d]`` that the k accomplices of a round send.

        Parameters
        ----------
        received : Tensor
            ``[d]``, the parameters that they were sent.
        updates : Tensor
            ``[k, d]``, the updates that they trained honestly, in the order of their partitions.
        server_round : int
            The round.
        first : int
            The lowest of their partition ids.
        """
        if self._behaviour is None:
            self._behaviour = self._built_behaviour(first, server_round)
        generator = torch_generator("collusion", self.config.seed, server_round)
        agreed = self._behaviour.collude(received, updates, generator)
        remembered = {}
        for name, value in vars(self._behaviour).items():
            if unreadable_in(value) is None:
                remembered[name] = deepcopy(value)
        self._last.add(server_round, remembered)
        return agreed

    def _built_behaviour(self, partition_id: int, server_round: int) -> Colluder:
        """Return the run's behaviour, with what a checkpoint says that it remembered."""
        behaviour = build_behaviour(self.config, partition_id=partition_id, seed=self.config.seed)
        assert isinstance(behaviour, Colluder)  # Only a Colluder's replies are marked for this.
        vars(behaviour).update(deepcopy(self.memory(server_round)))
        if self._goes_on:
            self._warn_of_lost_memory(behaviour)
        return behaviour

    def memory(self, last_round: int) -> dict[str, Any]:
        """Return what the attack remembered after a round."""
        return dict(self._last.latest(last_round) or {})

    def restore(self, lines: object, memory: Mapping[str, Any] | None, last_round: int) -> None:  # noqa: ARG002
        """Take over what the attack remembered."""
        self._last.restore(last_round, memory or {})
        self._goes_on = True

    def _warn_of_lost_memory(self, behaviour: Colluder) -> None:
        """Warn of what an attack remembers and no checkpoint can hold."""
        remembered = vars(behaviour).items()
        lost = [name for name, value in remembered if unreadable_in(value) is not None]
        if lost:
            logger.warning(
                "attack = %r: what accomplices remember as %s is lost, so the resumed run differs "
                "from one without a stop: checkpoints keep Python's own numbers, texts, tensors, "
                "and lists and dicts of these",
                self.config.attack,
                ", ".join(lost),
            )


class ColludingGrid(ForwardingGrid):
    """Lets the accomplices of a round see each other's updates, and rewrites their replies.

    Honest clients' replies pass as they come. An accomplice's reply is marked by an additional
    record; marked replies wait until no more replies arrive. What accomplices send depends only on
    the run's seed, the round and their updates.

    Parameters
    ----------
    grid : Grid
        The grid of a simulation.
    agreement : Agreement
        What the accomplices agree on.
    trainable_keys : sequence of str
        The names of the trainable parameters, in the order of the vector.
    tied_keys : mapping of str to str
        Second names of arrays, and their first names.

    Raises
    ------
    ConfigError
        If the nodes are real: they do not show each other their updates.
    """

    reliable = True  # It is used in simulations alone, whose grids are reliable.

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
        self._trainable_keys = trainable_keys
        self._tied_keys = tied_keys

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages now; return an iterator over the replies, the accomplices' last."""
        sent = list(messages)
        replies = stream_replies(self.inner, sent, timeout)
        return self._rewritten(sent, replies)

    def _rewritten(self, sent: list[Message], replies: Iterable[Message]) -> Iterator[Message]:
        """Yield honest replies as they come, then the accomplices', in the order of partitions."""
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
        """Replace the trainable parameters in the accomplices' replies, in place."""
        arrays = cast(ArrayRecord, sent.content["arrays"])
        layout = ParameterLayout.from_arrays(arrays, self._trainable_keys, self._tied_keys)
        received = layout.to_vectors(arrays)
        updates = []
        usable = []  # For each of the updates: its reply, buffers and counters.
        for reply in replies:
            update = torch.empty_like(received.params)
            buffer_update = torch.empty_like(received.buffers)
            reply_arrays = cast(ArrayRecord, reply.content["arrays"])
            try:
                unpacked = layout.unpack_update(reply_arrays, received, update, buffer_update)
            except ReplyError:
                continue  # Its training diverged: the reply goes to the server as it is.
            updates.append(update)
            usable.append((reply, received.buffers + buffer_update, unpacked.counters))
        if not updates:
            return
        config = cast(ConfigRecord, sent.content["config"])
        server_round = cast(int, config[ROUND_KEY])
        honest = torch.stack(updates)  # [k, d]
        agreed = self._agreement.collude(received.params, honest, server_round, partition_id)
        require_updates(self._agreement.config.attack, agreed, honest)
        for (reply, buffers, counters), update in zip(usable, agreed, strict=True):
            params = received.params + update.to(received.params)
            reply.content["arrays"] = layout.to_arrays(ModelVectors(params, buffers, counters))
