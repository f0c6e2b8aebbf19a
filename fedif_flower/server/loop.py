"""The base of every strategy here: seeded sampling, screened replies, records.

It adds to Flower's ``FedAvg``: it waits for all nodes, draws clients from a seed, takes replies in
the order of their partitions, screens each on its own, keeps the old model when no valid reply
came, takes a model back from which no round succeeds, and stops when most clients fail round after
round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.devices import select_device
from fedif_flower.errors import ConfigError, DivergedError, FedIFError, ValuationError, require
from fedif_flower.messages.arrays import is_statistic
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.metrics import (
    AverageMetrics,
    MetricsAggregation,
    ReplyLimits,
    aggregate_metrics,
)
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.messages.screening import (
    AcceptedReply,
    Asked,
    Screening,
    Workspace,
    screen_replies,
)
from fedif_flower.messages.text import enumerated, printable
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.seeding import numpy_generator
from fedif_flower.server.callbacks import Callback, Question, RunningStrategy
from fedif_flower.server.failures import MemberFailures
from fedif_flower.server.local_part import LocalPart
from fedif_flower.server.model import (
    GlobalModel,
    require_judge,
    require_record,
    require_shapes,
)
from fedif_flower.server.nodes import (
    NodeDirectory,
    require_enough,
    sample_clients,
    share_of,
)
from fedif_flower.server.noise import (
    NoiseWrapper,
    calling_wrapper,
    require_equal_weights,
    why_noise_is_too_small,
)
from fedif_flower.server.older_api import MessageApiOnly
from fedif_flower.server.record import History, round_report
from fedif_flower.server.setup import DEFAULTS, FlowerArguments, LateReplies, Setup
from fedif_flower.server.steps import (
    Outcome,
    RoundStatus,
    Stateful,
    Step,
    by_step,
    why_it_stands_still,
)
from fedif_flower.server.summary import TellsSettings
from fedif_flower.stages import Stage, Stages
from fedif_flower.valuation import Validation

logger = logging.getLogger(__name__)


class ScreenedStrategy(TellsSettings, MessageApiOnly, RunningStrategy):
    """Flower's ``FedAvg`` with screened replies, seeded sampling and a limit on failures.

    A subclass overrides :meth:`weigh`; :meth:`prepare` if it can begin before replies come;
    :meth:`select` if it does not draw clients uniformly; :meth:`stateful` if it remembers rounds.

    Parameters
    ----------
    **base
        The arguments of :class:`flwr.serverapp.strategy.FedAvg`, as ``fraction_train=0.5``.
        ``weighted_by_key`` may name any number > 0.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        As Flower's. They receive one RecordDict for each accepted reply, with every record but the
        model's arrays. Default: the mean of each metric
        (see :class:`~fedif_flower.messages.metrics.AverageMetrics`).
    stages : sequence of Stage, optional
        What happens to a round before and after it is weighed, in this order, such as
        ``[Clip(2.0), LossBound(), FedAvgM(0.5)]`` (see :mod:`fedif_flower.stages`). Default:
        :meth:`default_stages`, none unless the strategy says otherwise.
    callbacks : sequence of Callback
        See :class:`~fedif_flower.server.callbacks.Callback`.
    setup : Setup
        What is the same for every strategy: seed, device, limits
        (see :class:`~fedif_flower.server.setup.Setup`).
    """

    validation: Validation | None = None  # The held-out data by which steps are judged.
    takes_groups = False  # Whether it may be given the means of groups for clients.
    chooses_one = False  # Whether a round's model is to be one client's, bit for bit.
    can_mask = False  # Whether its weights need no more than products, lengths and examples.

    def __init__(
        self,
        *,
        train_metrics_aggr_fn: MetricsAggregation | None = None,
        evaluate_metrics_aggr_fn: MetricsAggregation | None = None,
        stages: Sequence[Stage] | None = None,
        callbacks: Sequence[Callback] = (),
        setup: Setup = DEFAULTS,
        **base: Unpack[FlowerArguments],
    ) -> None:
        super().__init__(**base)
        for name in ("fraction_train", "fraction_evaluate"):
            share = getattr(self, name)
            require(0 <= share <= 1, name, share, "a number >= 0 and <= 1")
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or AverageMetrics()
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or AverageMetrics()
        self.stages = Stages(self.default_stages() if stages is None else stages)
        if self.stages.make_groups and not self.takes_groups:
            raise ConfigError(
                f"stages = {self.stages}: {type(self).__name__} weighs each client by itself; "
                "groups are for robust rules that remember no client, such as RobustRule(Krum())"
            )
        self.setup = setup
        self.seed = setup.seed
        device = select_device(setup.device)
        # Weights are computed in float64, which MPS has not.
        self.device = select_device("cpu") if device.type == "mps" else device
        self.model = GlobalModel(
            setup.trainable_keys, setup.tied_keys, self.stages.optimizer, setup.names
        )
        self.nodes = NodeDirectory(setup.identify, setup.node_timeout)
        self.failures = MemberFailures(setup.max_failed_rounds, setup.max_paused_turns)
        self.limits = ReplyLimits(
            self.weighted_by_key, setup.max_num_examples, setup.max_examples_ratio
        )
        self.history = History()
        self.callbacks = list(callbacks)
        self.online: Sequence[ClientNode] = ()  # When the round began.
        self.asked: dict[int, Asked] = {}  # By node: whose replies count in the round.
        self.local = LocalPart.of(setup.local_method)
        self._late = LateReplies(setup.pace) if setup.pace.late_rounds else None
        self.own_callbacks = tuple(filter(None, (self._late, self.local)))

    @cached_property
    def workspace(self) -> Workspace:
        """Room for the clients' updates."""
        if self.setup.intake is not None:
            return self.setup.intake.workspace(self.model.layout, self.stages.max_length)
        return Workspace(
            self.model.layout,
            has_vector=self.setup.local_method.sends_vector,
            keeps_models=self.chooses_one,
        )

    def weigh(self, updates: RoundUpdates) -> Aggregation | Tensor:
        """Return the weights ``[m]`` of the round's updates; or a step ``[d]``.

        A step where :attr:`combines_updates` is false: updates are then shortened already.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to weigh a round")

    def prepare(self, params: Tensor, buffers: dict[str, Tensor]) -> None:
        """Begin whatever depends on the global model ``params`` [d] alone."""

    def select(self, nodes: Sequence[ClientNode], server_round: int) -> list[ClientNode]:
        """Draw the round's clients from those that may be asked, by (seed, round)."""
        return self.draw(nodes, server_round)

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds, by name."""
        beside = {"local-guide": self.local, "ledger": self.ledger}
        own = {name: part for name, part in beside.items() if part is not None}
        return {"nodes": self.nodes, "failures": self.failures, "stages": self.stages, **own}

    @property
    def weight_scores(self) -> dict[str, float]:
        r"""Each client's :math:`\Omega`, by what logs call it (see ``identify``)."""
        scores = {} if self.ledger is None else self.ledger.scores
        labels = self.nodes.labels(scores)
        return {labels[i]: score for i, score in scores.items()}

    @property
    def own_shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of the strategy's own copy of the model, by name; empty: it has none."""
        return {} if self.validation is None else self.validation.shapes

    # -- what it remembers

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the model needed to go on."""
        return {name: part.state_dict() for name, part in self.stateful().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned; set ``completed_rounds`` as well."""
        for name, part in self.stateful().items():
            part.load_state_dict(state[name])

    # -- its rounds

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Take the model that a run begins with, and tell callbacks, before anybody is asked.

        Raises
        ------
        ConfigError, ValueError
            If the model cannot be averaged, is not the one that the strategy was given, or not the
            one that an earlier run has led to.
        """
        require_record(initial_arrays)
        if self._late is not None:
            self._late.require(grid, self.local)
        self.setup.pace.require_in(grid)
        if own := self.own_shapes:
            require_shapes(
                type(self).__name__,
                own,
                initial_arrays,
                trained=self.setup.trainable_keys or (),
                tied=self.setup.tied_keys,
                names=self.setup.names,
            )
        if self.setup.intake is not None:
            self.setup.intake.require(self, initial_arrays)
        self.stages.begin(self.validation)
        super().begin(grid, initial_arrays)
        for stage in self.stages:
            judge = getattr(stage, "validation", None)
            if isinstance(judge, Validation) and judge is not self.validation:
                require_judge(type(stage).__name__, judge, self.model)
        self._tell_of_kept_statistics()

    def _tell_of_kept_statistics(self) -> None:
        """Warn where members keep batch norm's statistics: the server judges by its own then."""
        layout = self.model.layout
        sent = {layout.own_name(name) for name in layout.order}
        kept = [name for name in self.own_shapes if is_statistic(name) and name not in sent]
        if kept:
            logger.warning(
                "initial_arrays lack %s: %s judges by those of the model that it was given",
                enumerated(kept),
                type(self).__name__,
            )

    def _require_nodes(self, grid: Grid) -> None:
        """Raise ConfigError where a grid can never have the nodes that rounds need."""
        require_enough(grid, self.min_train_nodes, "min_train_nodes")
        require_enough(grid, self.min_available_nodes, "min_available_nodes")
        require_enough(grid, self.setup.min_valid_replies, "min_valid_replies")
        if self.fraction_evaluate:
            require_enough(grid, self.min_evaluate_nodes, "min_evaluate_nodes")

    def draw(
        self,
        nodes: Sequence[ClientNode],
        server_round: int,
        probabilities: NDArray[np.float64] | None = None,
    ) -> list[ClientNode]:
        """Draw ``fraction_train`` of all nodes online, but only from ``nodes``."""
        out_of = round(self.setup.pace.ask_more * max(len(self.online), len(nodes)))
        size = share_of(out_of, self.fraction_train, max(self.min_train_nodes, 1))
        generator = numpy_generator("sample-clients", self.seed, server_round)
        return sample_clients(nodes, size, generator, probabilities)

    def summary(self) -> None:
        """Log every setting; where a wrapper adds noise, see that it is made for the weights."""
        if (wrapper := calling_wrapper()) is not None:
            require_equal_weights(wrapper, self.why_weights_differ())
        super().summary()

    def why_weights_differ(self) -> str:
        """Return why members of equal examples may have different weights; empty: they have not."""
        return f"{type(self).__name__} weighs them by what they send"

    def _require_noise_fits(self, wrapper: NoiseWrapper, arrays: ArrayRecord) -> None:
        """Raise ConfigError where a wrapper's noise does not hide what a member may add."""
        require_equal_weights(wrapper, self.why_weights_differ())
        vectors = self.model.receive(arrays)
        if vectors.buffers.numel() or vectors.counters:
            names = ", ".join(self.model.named_buffers)
            why = f"of arrays that are not trained ({names}) medians and maxima are taken"
            require_equal_weights(wrapper, why)

    def _ask(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw the round's clients; return the messages that send them the model."""
        if self.fraction_train == 0.0:
            return []
        vectors = self.model.receive(arrays)  # What cannot be averaged is refused right here.
        arrays = self.model.record  # Another one, where the loop's was taken back.
        late = {i: one for by in self.told for i, one in by.awaited(server_round).items()}
        needed = max(self.min_train_nodes, 1)
        key, wanted = "min_train_nodes", needed
        is_first = not (self.asked or self.completed_rounds)
        if is_first:
            self._require_nodes(grid)
        if is_first and self.min_available_nodes > needed:
            key, wanted = "min_available_nodes", self.min_available_nodes
        self.online = self.nodes.online(grid, wanted, key)
        free = self.failures.available(self.online, server_round, needed)
        idle = [node for node in free if node.node_id not in late]
        nodes: Sequence[ClientNode] = idle
        for callback in self.callbacks:
            nodes = callback.admit(nodes, server_round)
        nodes = nodes if len(nodes) >= needed else idle  # All, where too few are admitted.
        if self.local is not None and nodes:
            sampled = self.local.choose(self.select, nodes, server_round)
        else:
            sampled = self.select(nodes, server_round) if nodes else []
        self._sampled = sampled
        self._closing = self.setup.pace.closing(len(sampled), late)
        if isinstance(grid, ScreenedGrid) and self._open_run is not None and self._open_run.screens:
            grid.close_by(self._closing)
        self.prepare(vectors.params, self.model.named_buffers)
        config["server-round"] = server_round
        self.workspace.instruct(config, server_round)
        question = Question(
            server_round,
            asked=sampled,
            at_work=[one.node for one in late.values()],
            online=self.online,
            paused=self.failures.paused(server_round),
            candidates=nodes,
            grid=grid,
        )
        for callback in self.told:
            callback.on_asked(question)
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        self._started = time.perf_counter()
        new = {n.node_id: Asked(n, vectors, self._started, server_round) for n in sampled}
        self.asked = {**new, **late}
        return [Message(self._for(n, record), n.node_id, MessageType.TRAIN) for n in sampled]

    def _for(self, node: ClientNode, record: RecordDict) -> RecordDict:
        """Return a round's content with what is for one node alone."""
        own = {name: r for of in self.told for name, r in of.enclose(node).items()}
        return RecordDict({**record, **own}) if own else record

    def _take_in(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Screen the replies, weigh them, and combine them into the new model."""
        if not self.asked:
            return None, None
        self.tell(lambda one: one.on_replies(server_round))
        screening = screen_replies(
            self._announced(server_round, replies),
            self.asked,
            self.workspace,
            self.limits,
            arrive=self.stages.arrive,
            closing=self._closing,
            look=self.setup.look,
            server_round=server_round,
        )
        self.tell(lambda one: one.on_screened(screening, self.asked))
        screened = time.perf_counter() - screening.seconds
        # Most raise an error on the model just made, and did not before.
        newly = self.failures.first_errors(screening)
        blamed = not self.model.is_proven and 2 * newly > len(self._sampled)
        outcome = self._outcome(server_round, screening, blamed=blamed)
        report = round_report(
            server_round,
            screening,
            outcome,
            self.asked,
            round_seconds=screened - self._started,
            aggregation_seconds=time.perf_counter() - screened,
            num_online=len(self.online),
        )
        self.history.rounds.append(report)

        def report_to(callback: Callback) -> None:
            if outcome.step is not None:
                callback.on_step(outcome.step)
            callback.on_round(report)

        self.tell(report_to)
        accepted = screening.accepted
        if not blamed:
            # A round whose replies lead nowhere is not counted: clients could end the run by such,
            # and those that have learned all there is change nothing either.
            usable = len(accepted) >= self.setup.min_valid_replies and outcome.aggregation is None
            failed = outcome.reason if usable else ""
            self.failures.update(server_round, screening, self._sampled, self.online, failed=failed)
        records = [reply.reported.records for reply in accepted]
        metrics = aggregate_metrics(records, self.train_metrics_aggr_fn, self.weighted_by_key)
        return outcome.arrays, metrics

    def _announced(self, server_round: int, replies: Iterable[Message]) -> Iterator[Message]:
        """Return replies as they come, and tell callbacks of each by somebody who was asked."""
        for reply in replies:
            if (one := self.asked.get(reply.metadata.src_node_id)) is not None:
                for callback in self.told:
                    callback.on_reply(server_round, one.node, failed=reply.has_error())
            yield reply
            del reply  # It need not stay in memory until the next is there.

    def aggregate(self, updates: RoundUpdates) -> tuple[ModelVectors, Aggregation]:
        """Return where a round leads, and the weights that its updates were given.

        Through the stages before weighing, weights, and step. Any error fails the round: it may
        come out of a stage, the rule, or a user's model or loss.
        """
        staged = self.stages.before(updates)
        found = self.weigh(staged if self.combines_updates else staged.shortened())
        shape = staged.squared_norms.shape if self.combines_updates else staged.global_params.shape
        fits = isinstance(found, Aggregation) is self.combines_updates
        if not fits or getattr(getattr(found, "weights", found), "shape", None) != shape:
            wanted = "an Aggregation of weights [m]" if self.combines_updates else "a step [d]"
            said = f"of shape {list(shape)}: its gives_weights says so"
            raise ValuationError(f"the rule has to return {wanted}, {said}")
        if isinstance(found, Aggregation):
            weighed = found if self.local is None else self.local.weighted(staged, found)
            vectors, aggregation = self.stages.combined(staged, weighed)
        else:
            vectors, aggregation = by_step(staged, found)
        return vectors, staged.unmixed(aggregation).require_of(updates.num_clients)

    def _outcome(self, server_round: int, screening: Screening, *, blamed: bool) -> Outcome:
        """Advance the global model by the accepted replies, if they allow it."""
        accepted = screening.accepted
        if blamed:
            return self._failed(server_round, "most clients fail on this model", suspect=True)
        if len(accepted) < self.setup.min_valid_replies:
            reason = f"{len(accepted)} valid replies, {self.setup.min_valid_replies} needed"
            # Where nonsense is all that came, the model that was sent may be why.
            nonsense = not accepted and any(r.status == "refused" for r in screening.refused)
            return self._failed(server_round, reason, suspect=nonsense)
        if too_small := self._why_noise_is_too_small(accepted):
            return self._failed(server_round, too_small, suspect=False)
        try:
            updates = self.workspace.round_updates(
                server_round, accepted, self.model.vectors, self.device, self.seed
            )
            vectors, aggregation = self.aggregate(updates)
        except Exception as error:  # out of a user's model or loss, as likely as not
            known = isinstance(error, FedIFError)
            # An unknown error may come from the model that was sent: an older one is known to work.
            suspect = not known or isinstance(error, DivergedError)
            return self._failed(server_round, str(error) if known else repr(error), suspect=suspect)
        if self.model.stands_still(vectors):
            status: RoundStatus = "kept" if aggregation.gives_nobody_weight else "failed"
            reason = why_it_stands_still(updates, aggregation)
            logger.warning("round %d: %s; the model stays as it was", server_round, reason)
            return Outcome(status, self.model.record, aggregation, reason)
        before, arrays = self.model.vectors, self.model.advance(vectors)
        nodes, optimizer = [reply.node for reply in accepted], self.stages.optimizer
        shares = () if optimizer is None else tuple(optimizer.shares)
        step = Step(updates, nodes, before, self.model.vectors, aggregation, shares)
        return Outcome("advanced", arrays, aggregation, step=step)

    def _why_noise_is_too_small(self, accepted: Sequence[AcceptedReply]) -> str:
        """Return why noise that is added to the round's model does not hide each member."""
        if self._open_run is None or not self._open_run.noise_for:
            return ""
        examples = [reply.num_examples for reply in accepted]
        return why_noise_is_too_small(examples, self._open_run.noise_for)

    def _failed(self, server_round: int, reason: str, *, suspect: bool) -> Outcome:
        """Keep the model, or take it back if it is suspected to be the cause."""
        reason = printable(reason)
        logger.error("round %d: %s; the model stays as it was", server_round, reason)
        return Outcome("failed", self.model.take_back() if suspect else None, reason=reason)
