"""The base of every strategy here: seeded sampling, screened replies, records.

It adds to Flower's ``FedAvg``: it waits for all nodes, draws clients from a seed, takes replies in
the order of their partitions, screens each on its own, keeps the old model when no valid reply
came, takes a model back from which no round succeeds, and stops when most clients fail round after
round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.aggregators.spread import bound_by_spread
from fedif_flower.devices import select_device
from fedif_flower.errors import DivergedError, ValuationError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.layout import ModelVectors, ParameterLayout
from fedif_flower.messages.means import MetricsAggregation, aggregate_metrics, average_metrics
from fedif_flower.messages.metrics import ReplyLimits
from fedif_flower.messages.screened_grid import screened
from fedif_flower.messages.screening import AcceptedReply, Screening, Workspace, screen_replies
from fedif_flower.messages.text import printable
from fedif_flower.round import (
    Aggregation,
    RoundUpdates,
    largest_counters,
)
from fedif_flower.strategies.evaluation import ClientEvaluation
from fedif_flower.strategies.failures import MemberFailures
from fedif_flower.strategies.nodes import Identify, NodeDirectory
from fedif_flower.strategies.reports import OnRound, log_remarks, round_report
from fedif_flower.strategies.sampling import sample_clients
from fedif_flower.strategies.state import Stateful
from fedif_flower.strategies.summary import SettingsSummary
from fedif_flower.valuation.step_bounds import StepBounds

logger = logging.getLogger(__name__)


class ScreenedStrategy(SettingsSummary, ClientEvaluation):
    """Flower's ``FedAvg`` with screened replies, seeded sampling and a limit on failures.

    A subclass overrides :meth:`weigh`; :meth:`prepare` if it can begin before replies come;
    :meth:`select` if it does not draw clients uniformly; :meth:`stateful` if it remembers rounds.

    Parameters
    ----------
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes,
    weighted_by_key, arrayrecord_key, configrecord_key, train_metrics_aggr_fn,
    evaluate_metrics_aggr_fn
        As in :class:`flwr.serverapp.strategy.FedAvg`, also by position. ``weighted_by_key`` may
        name any number > 0. The functions receive one RecordDict for each accepted reply, with
        every record but the model's arrays; by default, the mean of each metric is taken
        (see :func:`~fedif_flower.messages.means.average_metrics`).
    trainable_keys : sequence of str, optional
        Names of the trainable parameters, in the order of the vector [d]; other floating-point
        arrays never enter norms, distances or influences. ``None``: all floating-point arrays.
    tied_keys : mapping of str to str, optional
        Second names of arrays (tied weights), and their first names; a reply in which the two
        differ is refused.
    seed : int
        Clients are drawn from (seed, round).
    identify : callable, optional
        Names nodes (see :class:`~fedif_flower.strategies.nodes.NodeDirectory`).
    node_timeout : float
        Seconds to wait for ``min_train_nodes``, and before the first round for
        ``min_available_nodes`` as well.
    min_valid_replies : int
        With fewer, the round fails: the old model is kept.
    max_failed_rounds : int
        The run stops with an error where more than half of the members gave no usable reply this
        many times in a row that they were asked, and after this many rounds in a row that failed
        although replies were usable (see
        :class:`~fedif_flower.strategies.failures.MemberFailures`).
    max_paused_turns : int
        Members that err again and again are not asked for at most so many of their turns, >= 0.
    max_num_examples, max_examples_ratio : float
        A client that claims more examples is refused; one that claims more than this many times
        the round's median, >= 1, counts for so many. 0: no such bound.
    update_clipping : float or "auto"
        Longer updates are shortened to so many times the usual length (see
        :class:`~fedif_flower.aggregators.clipping.LengthMemory`); 0: none is. ``"auto"``:
        :attr:`default_clipping`, 0 unless the strategy says otherwise.
    device : str or torch.device
        Where weights are computed: ``"auto"``, ``"cpu"``, ``"cuda"`` ...
    on_round : callable, optional
        Called with a :class:`~fedif_flower.strategies.reports.RoundReport` after each round.
    """

    default_clipping = 0.0  # What ``update_clipping="auto"`` stands for.
    keep_arrays = False  # Whether replies are needed as they came, beside the updates in them.

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsAggregation | None = None,
        evaluate_metrics_aggr_fn: MetricsAggregation | None = None,
        *,
        trainable_keys: Sequence[str] | None = None,
        tied_keys: Mapping[str, str] | None = None,
        seed: int = 0,
        identify: Identify | None = None,
        node_timeout: float = 600.0,
        min_valid_replies: int = 1,
        max_failed_rounds: int = 3,
        max_paused_turns: int = 63,
        max_num_examples: float = 10_000_000,
        max_examples_ratio: float = 10.0,
        update_clipping: float | Literal["auto"] = "auto",
        device: str | torch.device = "auto",
        on_round: OnRound | None = None,
    ) -> None:
        super().__init__(
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn or average_metrics,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn or average_metrics,
        )
        self.trainable_keys = trainable_keys
        self.tied_keys = tied_keys
        self.seed = seed
        self.nodes = NodeDirectory(identify, node_timeout)
        self.min_valid_replies = min_valid_replies
        self.limits = ReplyLimits(weighted_by_key, max_num_examples, max_examples_ratio)
        self.update_clipping = (
            self.default_clipping if update_clipping == "auto" else update_clipping
        )
        self.bounds = StepBounds(self.update_clipping)
        self.device = select_device(device)
        self.on_round = on_round
        self.failures = MemberFailures(max_failed_rounds, max_paused_turns)
        # Rounds of an earlier process: Flower counts those of this one, from 1.
        self.completed_rounds = 0
        self._workspace: Workspace | None = None
        self._record: ArrayRecord | None = None
        self._vectors: ModelVectors | None = None
        self._proven: ArrayRecord | None = None  # The last model from which a round succeeded.
        self._online: list[ClientNode] = []
        self._asked: dict[int, ClientNode] = {}
        self._started = 0.0
        self._reason = ""  # Why the last round failed.

    # -- what subclasses override ---------------------------------------------------------------

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the coefficients with which the round's models are combined."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to weigh a round")

    def select(self, nodes: Sequence[ClientNode], server_round: int) -> list[ClientNode]:
        """Draw the round's clients from those that may be asked, by (seed, round)."""
        return self.draw(nodes, server_round)

    def draw(
        self,
        nodes: Sequence[ClientNode],
        server_round: int,
        probabilities: NDArray[np.float64] | None = None,
    ) -> list[ClientNode]:
        """Draw ``fraction_train`` of all nodes online, but only from ``nodes``."""
        return sample_clients(
            nodes,
            self.fraction_train,
            self.min_train_nodes,
            self.seed,
            server_round,
            probabilities,
            out_of=max(len(self._online), len(nodes)),
        )

    def prepare(self, params: Tensor, buffers: dict[str, Tensor]) -> None:
        """Begin whatever depends on the global model ``params`` [d] alone."""

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds, by name."""
        return {"nodes": self.nodes, "failures": self.failures, "bounds": self.bounds}

    # -- a run that goes on ---------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the model needed to go on."""
        return {name: part.state_dict() for name, part in self.stateful().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned; set :attr:`completed_rounds` as well."""
        for name, part in self.stateful().items():
            part.load_state_dict(state[name])

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Run the rounds, as in Flower's ``Strategy``, over a grid on which no reply is believed.

        See :class:`~fedif_flower.messages.screened_grid.ScreenedGrid`.
        """
        return super().start(screened(grid), *args, **kwargs)

    # -- Flower's hooks -------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients and send them the model."""
        if self.fraction_train == 0.0:
            return []
        server_round += self.completed_rounds
        vectors = self.vectors(arrays)  # A model that cannot be averaged is refused right here.
        needed = max(self.min_train_nodes, 1)
        begun = self._asked or self.completed_rounds
        nodes = self.nodes.online(grid, needed if begun else max(needed, self.min_available_nodes))
        self._online = nodes
        sampled = self.select(self.failures.available(nodes, server_round, needed), server_round)
        self._asked = {node.node_id: node for node in sampled}
        self.prepare(vectors.params, self.layout.named_buffers(vectors))
        logger.debug("round %d: asking %d of %d nodes", server_round, len(sampled), len(nodes))
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        self._started = time.perf_counter()
        return self._construct_messages(record, list(self._asked), MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Screen the replies, weigh them, and combine them into the new model."""
        server_round += self.completed_rounds
        if not self._asked:
            return None, None
        if self._workspace is None or self._vectors is None:
            raise RuntimeError("aggregate_train was called before configure_train")
        screening = screen_replies(
            replies,
            self._asked,
            self._vectors,
            self._workspace,
            self.limits,
            asked_at=self._started,
            keep_arrays=self.keep_arrays,
        )
        started = time.perf_counter() - screening.seconds
        arrays, aggregation = self._aggregate(server_round, screening)
        report = round_report(
            server_round,
            screening,
            aggregation,
            reason=self._reason,
            round_seconds=started - self._started,
            aggregation_seconds=time.perf_counter() - started,
        )
        log_remarks(report)
        if self.on_round is not None:
            self.on_round(report)
        enough = len(screening.accepted) >= self.min_valid_replies
        self.failures.update(
            server_round,
            screening,
            self._asked.values(),
            self._online,
            failed=enough and aggregation is None,
        )
        if aggregation is None:
            return arrays, None
        records = [reply.reported.records for reply in screening.accepted]
        return arrays, aggregate_metrics(records, self.train_metrics_aggr_fn, self.weighted_by_key)

    # -- the round ------------------------------------------------------------------------------

    @property
    def layout(self) -> ParameterLayout:
        """Where the arrays of the global model lie in the vectors."""
        if self._workspace is None:
            raise RuntimeError("the layout is known from the first round on")
        return self._workspace.layout

    def vectors(self, arrays: ArrayRecord) -> ModelVectors:
        """Return a record as vectors; the one last produced or sent is not unpacked again."""
        if self._workspace is None:
            layout = ParameterLayout.from_arrays(arrays, self.trainable_keys, self.tied_keys)
            self._workspace = Workspace(layout)
        if arrays is not self._record or self._vectors is None:
            self._vectors, self._record = self.layout.to_vectors(arrays), arrays
        return self._vectors

    def _aggregate(
        self, server_round: int, screening: Screening
    ) -> tuple[ArrayRecord | None, Aggregation | None]:
        accepted = screening.accepted
        self._reason = ""
        if len(accepted) < self.min_valid_replies:
            self._reason = f"{len(accepted)} valid replies, {self.min_valid_replies} needed"
            logger.warning(
                "round %d: %d valid replies, %d needed; the model stays as it was",
                server_round,
                len(accepted),
                self.min_valid_replies,
            )
            # Where nonsense is all that came, the model that was sent may be why.
            nonsense = not accepted and screening.num_failed < len(screening.refused)
            return self._take_back(server_round) if nonsense else None, None
        try:
            vectors, aggregation = self._combine(server_round, accepted)
        except Exception as error:  # out of a user's model or loss, as likely as not
            known = isinstance(error, ValuationError)
            self._reason = printable(str(error) if known else repr(error))
            logger.error("round %d: %s; the model stays as it was", server_round, self._reason)
            # An unknown error may come from the model that was sent: an older one is known to work.
            suspect = not known or isinstance(error, DivergedError)
            return self._take_back(server_round) if suspect else None, None
        self._proven = self._record
        self._vectors, self._record = vectors, self.layout.to_arrays(vectors)
        return self._record, aggregation

    def _take_back(self, server_round: int) -> ArrayRecord | None:
        """Return to the last model from which a round succeeded, if that is another one."""
        if self._proven is None or self._proven is self._record:
            return None
        logger.error("round %d: the model goes back to the last one that worked", server_round)
        self.vectors(self._proven)
        return self._proven

    def _combine(
        self, server_round: int, accepted: Sequence[AcceptedReply]
    ) -> tuple[ModelVectors, Aggregation]:
        updates = self._updates(server_round, accepted)
        aggregation = self.weigh(updates)
        weights = aggregation.weights
        params, buffers = self.bounds.settle(updates, weights)
        counters = largest_counters(updates.counters, weights)
        return ModelVectors(params, buffers, counters), aggregation

    def _updates(self, server_round: int, accepted: Sequence[AcceptedReply]) -> RoundUpdates:
        m, vectors, workspace = len(accepted), self._vectors, self._workspace
        assert vectors is not None  # both are set by configure_train
        assert workspace is not None
        bound_by_spread(workspace.buffer_updates[:m])
        return RoundUpdates(
            server_round=server_round,
            client_ids=tuple(reply.node.client_id for reply in accepted),
            num_examples=torch.tensor([r.num_examples for r in accepted], dtype=torch.float64),
            global_params=vectors.params.to(self.device),
            client_updates=workspace.updates[:m].to(self.device),
            squared_norms=torch.tensor([r.squared_norm for r in accepted], dtype=torch.float64),
            global_buffers=vectors.buffers.to(self.device),
            buffer_updates=workspace.buffer_updates[:m].to(self.device),
            named_buffers=self.layout.named_buffers(vectors),
            split_buffers=self.layout.split_buffers,
            counters=[reply.counters for reply in accepted],
        )
