"""The base class of every strategy here, with the steps of a round in two methods.

:class:`ScreenedStrategy` adds to Flower's ``FedAvg``: it waits until enough nodes are online, draws
clients by a seed, orders replies by their partitions, screens each reply on its own, keeps the old
model if too few replies are valid, takes back a model that proves not to work, and ends the run if
most clients fail round after round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.devices import select_device
from fedif_flower.errors import (
    ConfigError,
    DivergedError,
    FedIFError,
    TrainingFailedError,
    with_place,
)
from fedif_flower.intake.build import build_intake
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import ROUND_KEY
from fedif_flower.messages.metrics import (
    AverageMetrics,
    MetricsAggregation,
    ReplyLimits,
    aggregate_metrics,
)
from fedif_flower.messages.polling_grid import Closing
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.messages.workspace import Question
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates, refuse_changes_in_place
from fedif_flower.seeding import numpy_generator
from fedif_flower.server.arguments import require_flower_arguments
from fedif_flower.server.drawing import require_nodes
from fedif_flower.server.failures import MemberFailures
from fedif_flower.server.model import (
    GlobalModel,
    OutOfRangeError,
    require_judges,
    require_record,
    warn_of_own_statistics,
)
from fedif_flower.server.nodes import sample_clients
from fedif_flower.server.noise import (
    NoiseWrapper,
    calling_wrapper,
    require_equal_weights,
)
from fedif_flower.server.obstacle import Obstacle, fail, find_obstacle, stand_still
from fedif_flower.server.older_api import MessageApiOnly
from fedif_flower.server.questions import Patience, content_for, note_questions
from fedif_flower.server.record import History, Round, Step
from fedif_flower.server.roster import NodeDirectory, Present, Roster
from fedif_flower.server.round_memory import RoundMemory
from fedif_flower.server.rule import Stateful, claim, require_answer, require_own, take_step
from fedif_flower.server.run import Callback, RunningStrategy
from fedif_flower.server.setup import (
    DEFAULTS,
    FlowerArguments,
    Setup,
    require_callbacks,
    require_setup,
)
from fedif_flower.server.subclass import require_constructed, selection_of
from fedif_flower.server.summary import TellsSettings
from fedif_flower.stages import Stage, Stages
from fedif_flower.valuation import Validation

logger = logging.getLogger(__name__)


class ScreenedStrategy(TellsSettings, MessageApiOnly, RunningStrategy):
    """Flower's ``FedAvg`` with screened replies, seeded sampling and a limit on failures.

    A subclass overrides :meth:`weigh`. It overrides :meth:`prepare` if part of its work needs no
    replies, :meth:`select` if it does not draw clients uniformly, and :meth:`stateful` if it
    remembers earlier rounds.

    Parameters
    ----------
    **base
        The arguments of :class:`flwr.serverapp.strategy.FedAvg`, as ``fraction_train=0.5``.
        The metric that ``weighted_by_key`` names may be any number > 0.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        As Flower's. They receive one RecordDict for each accepted reply, with every record but the
        model's arrays. Default: the mean of each metric
        (see :class:`~fedif_flower.messages.metrics.AverageMetrics`).
    stages : sequence of Stage, optional
        The stages that change a round before and after it is weighed, in this order, such as
        ``[Clip(2.0), LossBound(), FedAvgM(0.5)]`` (see :mod:`fedif_flower.stages`). Default:
        those of :meth:`default_stages`, which are none unless a subclass overrides it.
    callbacks : sequence of Callback
        Are told of every round (see :class:`~fedif_flower.server.run.Callback`).
    setup : Setup
        The settings that all strategies have in common: seed, device, limits
        (see :class:`~fedif_flower.server.setup.Setup`).
    """

    validation: Validation | None = None  # The held-out data by which steps are judged.
    # Whether `weigh` may be given the means of groups of clients in place of single clients.
    takes_groups = False
    # The attribute that error messages name as saying what `weigh` has to return.
    said_by = "its combines_updates"
    # Whether its weights need the updates themselves, not only their lengths, their inner products
    # with other vectors, and the numbers of examples. If not, the server need not see updates.
    reads_updates = True
    current: Round | None = None  # The current round; between rounds, the released last one.
    online: Sequence[ClientNode] = ()  # The nodes online when the current round began.
    _has_asked = False  # Whether the last round asked at least one client.
    _told_of_nobody = False  # Whether the log has said that a round drew no client.

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
        setup = require_setup(setup)
        super().__init__(**base)
        self.train_metrics_aggr_fn = AverageMetrics()
        if train_metrics_aggr_fn is not None:
            self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = AverageMetrics()
        if evaluate_metrics_aggr_fn is not None:
            self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        require_flower_arguments(self)
        if stages is None:
            stages = self.default_stages()
        self.stages = Stages(stages)
        self._require_groups_fit()
        self.setup = setup
        self.seed = setup.seed
        self.device = select_device(setup.device)
        if self.device.type == "mps":
            # Weights are computed in float64, which MPS does not support.
            self.device = select_device("cpu")
        self.model = GlobalModel(
            trainable_keys=setup.trainable_keys,
            tied_keys=setup.tied_keys,
            stages=self.stages,
            names=setup.names,
            before_take_back=self.take_back,
        )
        self.roster = Roster(
            NodeDirectory(setup.identify, setup.node_timeout),
            MemberFailures(setup.max_failed_rounds, setup.max_paused_turns),
        )
        self.limits = ReplyLimits(
            self.weighted_by_key, setup.max_num_examples, setup.max_examples_ratio
        )
        self.intake = build_intake(
            setup.intake,
            limits=self.limits,
            pace=setup.pace,
            look=setup.look,
            local_method=setup.local_method,
        )
        self.history = History()
        self.callbacks = require_callbacks(callbacks)
        self._patience = Patience(setup.pace)
        self._memory = RoundMemory()
        # Parts keep this key to recognise the strategy whose rounds they remember.
        self._key = object()

    def _require_groups_fit(self) -> None:
        """Raise ConfigError if a stage makes groups of clients, and this strategy weighs none."""
        if self.stages.makes_groups and not self.takes_groups:
            raise ConfigError(
                f"stages = {self.stages}: {type(self).__name__} weighs each client by itself; "
                "groups are for robust rules that remember no client, such as RobustRule(Krum())"
            )

    # -- what a subclass may override

    def weigh(self, updates: RoundUpdates) -> Aggregation | Tensor:
        """Return the weights ``[m]`` of a round's updates, or the step ``[d]`` of the model.

        Parameters
        ----------
        updates : RoundUpdates
            The m accepted replies, as the stages left them.

        Returns
        -------
        Aggregation or Tensor
            An Aggregation with weights ``[m]`` if :attr:`combines_updates` is true. Then
            ``updates`` are at full length, and each is multiplied by its weight and its factor in
            ``updates.factors``. Otherwise a step ``[d]``: then ``updates`` are shortened already.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to weigh a round")

    def prepare(self, params: Tensor, buffers: dict[str, Tensor]) -> None:
        """Begin the work that depends on the global model alone.

        It is called before clients are asked. Work that it starts in the background, such as the
        validation gradient, is done while the clients train.

        Parameters
        ----------
        params : Tensor
            ``[d]``: the trainable parameters.
        buffers : dict of str to Tensor
            The arrays that are not trained, by name.
        """

    def select(self, nodes: Sequence[ClientNode], server_round: int) -> list[ClientNode]:
        """Draw the round's clients from ``nodes``, which may be asked; by (seed, round)."""
        return self.draw(nodes, server_round)

    @property
    def draws_by_itself(self) -> bool:
        """Whether :meth:`select` may draw another number of clients than :meth:`draw` does."""
        return type(self).select is not ScreenedStrategy.select

    def require_members(self, count: int) -> None:
        """Raise ConfigError if a round of ``count`` members cannot be weighed."""

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds, by name; checkpoints keep their states."""
        parts: dict[str, Stateful] = {
            "nodes": self.nodes,
            "failures": self.roster.failures,
            "stages": self.stages,
            **self.intake.stateful(),
        }
        if self.ledger is not None:
            parts["ledger"] = self.ledger
        return parts

    def take_back(self) -> None:
        """Prepare for the model's return to the one before the last step; called just before it.

        A subclass that remembers the last step forgets it. It keeps what it learned about members.
        """
        self.stages.take_back()
        self.intake.take_back()

    def learned(self) -> dict[str, Stateful]:
        """Return the parts that learn from a round's updates, by name.

        They forget a round that an error ended, since a round with its number will be run again.
        The other parts do not: a member's failures, and what members have changed on their side,
        stay as they are.
        """
        others = {"nodes", "failures", *self.intake.stateful()}
        return {name: part for name, part in self.stateful().items() if name not in others}

    def forget_given_up(self) -> None:
        """Forget what was learned in a round that an error ended before it was complete."""
        super().forget_given_up()
        self._memory.forget_after(self.completed_rounds, self.learned())

    @property
    def weight_scores(self) -> dict[str, float]:
        r"""Each client's weight score :math:`\Omega`, by the client's name in logs."""
        if self.ledger is None:
            return {}
        scores = self.ledger.scores
        labels = self.nodes.labels(scores)
        return {labels[client_id]: score for client_id, score in scores.items()}

    @property
    def own_shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of the strategy's own copy of the model, by name; empty if it has none."""
        if self.validation is None:
            return {}
        return self.validation.shapes

    # -- a round: Flower's two halves

    def ask_members(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw the round's members, and return the messages that send them the model."""
        if self.fraction_train == 0.0:
            return []
        self._memory.clear()
        # Raises if the model cannot be averaged. If `arrays` is a model that was taken back, the
        # one in its place is kept.
        received = self.model.receive(arrays)
        earlier = self.intake.outstanding(server_round)
        present = self._call_roster(server_round, earlier, grid)
        members = self._draw_members(present, server_round, awaits_none=not earlier)
        self._closing = self._close_when_answered(len(members), earlier, grid)
        self.prepare(received.params, self.model.named_buffers)
        config[ROUND_KEY] = server_round
        self.intake.open(server_round, members, config)
        current = self._open_round(server_round, present, members, earlier, grid)
        for callback in self.callbacks:
            callback.on_asked(current)
        note_questions(current, received, earlier)
        self._has_asked = bool(current.asked)
        return self._training_messages(members, config)

    def take_in_replies(
        self, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Screen the replies, weigh them, and combine them into the new model.

        Returns
        -------
        tuple of ArrayRecord and MetricRecord
            The model to go on with, or ``None`` if the round gives none, so that the model stays;
            and the clients' metrics, ``None`` if there are none.
        """
        current = self.current
        if current is None or not current.asked:
            return None, None
        screened_at = self._screen(current, replies)
        self._advance(current)
        current.report_clients()
        current.round_seconds = screened_at - current.asked_at
        current.aggregation_seconds = time.perf_counter() - screened_at
        self.history.rounds.append(current)
        self._tell_of_round(current)
        try:
            self._count_failures(current)
        except TrainingFailedError as error:
            error.__cause__ = current.error
            self._failure = error  # It ends the run once callbacks have seen the round's end.
        metrics = self._train_metrics(current)
        arrays = current.arrays
        current.release()
        return arrays, metrics

    def aggregate(self, updates: RoundUpdates) -> tuple[ModelVectors, Aggregation]:
        """Return the model that a round leads to, and the weights of its updates.

        The stages change the updates, :meth:`weigh` weighs them, and the stages choose the step.
        An error in a stage, the rule, or a user's model or loss fails the round. In that case
        weight scores, and what the stages remember, are restored to what they were before.

        Parameters
        ----------
        updates : RoundUpdates
            The m accepted replies.

        Returns
        -------
        tuple of ModelVectors and Aggregation
            The new model, before a server optimizer moves it on; and the weights ``[m]`` with
            their scores.
        """
        learned = self.learned()
        self._memory.keep(updates.server_round, learned)
        try:
            return self._weigh_and_combine(updates)
        except Exception as error:
            self._memory.forget_after(self.completed_rounds, learned)
            if isinstance(error, OutOfRangeError) and self.stages.optimizer is not None:
                # The momentum that it carries may be the cause: then every later round would fail.
                self.stages.optimizer.restart()
            raise

    def _weigh_and_combine(self, updates: RoundUpdates) -> tuple[ModelVectors, Aggregation]:
        """Do what :meth:`aggregate` describes, without restoring anything after an error."""
        whose = type(self).__name__
        staged = self.stages.before(updates)
        # A rule that returns a step uses the updates itself: it gets them shortened. With weights,
        # the factors are multiplied in later, so that scores see updates at full length.
        rows = staged if self.combines_updates else staged.shortened()
        in_place = (
            f"{whose} changes updates in place while it weighs them: work on a copy, "
            "client_updates.clone()"
        )
        with refuse_changes_in_place(staged, in_place):
            weighed = self.weigh(rows)
        answer = require_answer(
            weighed,
            staged,
            whose=f"{whose}.weigh",
            combines_updates=self.combines_updates,
            said_by=self.said_by,
            sets_lengths=self.sets_lengths,
        )
        if isinstance(answer, Aggregation):
            aggregation = self.intake.reweigh(staged, answer)
            vectors, aggregation = self.stages.combined(staged, aggregation)
        else:
            vectors, aggregation = take_step(staged, answer)
        self.model.require_range(vectors)
        return vectors, staged.unmixed(aggregation).require_of(updates.num_clients)

    # -- how a round asks its members

    def members_of(self, server_round: int) -> Collection[ClientNode]:
        """Return the members drawn for ``server_round``; none if that is not the current round."""
        if self.current is None or self.current.round != server_round:
            return ()
        return self.current.members

    def _call_roster(
        self, server_round: int, earlier: Mapping[int, Question], grid: Grid
    ) -> Present:
        """Wait for enough nodes, and return those online and those that may be drawn.

        ``earlier`` are the unanswered questions of earlier rounds, by node.
        """
        needed = max(self.min_train_nodes, 1)
        awaited = needed
        key = "min_train_nodes"
        if self._is_first_round:
            require_nodes(self, grid)
            # Only before the first round does a run wait for min_available_nodes.
            if self.min_available_nodes > needed:
                awaited = self.min_available_nodes
                key = "min_available_nodes"
        return self.roster.call(
            grid, server_round, least=needed, awaited=awaited, key=key, at_work=earlier
        )

    def _draw_members(
        self, present: Present, server_round: int, *, awaits_none: bool
    ) -> list[ClientNode]:
        """Draw the members that train in this round from the nodes present.

        ``awaits_none`` says that the round waits for no reply to an earlier round.
        """
        self.online = present.online

        def select(nodes: Sequence[ClientNode], server_round: int) -> list[ClientNode]:
            # A subclass's `select` may return anything: check it.
            selected = selection_of(
                f"{type(self).__name__}.select", self.select(nodes, server_round)
            )
            if awaits_none and nodes and not selected:
                self._warn_of_nobody(server_round)
            return selected

        members = self.intake.draw(select, present.candidates, server_round)
        if self._is_first_round:
            self.require_members(len(members))
        return members

    def _warn_of_nobody(self, server_round: int) -> None:
        """Warn once that ``select`` drew no client: the history has no record of such a round."""
        if self._told_of_nobody:
            return
        self._told_of_nobody = True
        logger.warning(
            "round %d: %s.select draws nobody; such a round asks nobody, leaves the model as it "
            "is, and is not in the strategy's history",
            server_round,
            type(self).__name__,
        )

    @property
    def _is_first_round(self) -> bool:
        """Whether no client has been asked yet, in this run or in the run that it resumes."""
        return not (self._has_asked or self.completed_rounds)

    def require_updates(self, count: int, allowed: str) -> int:
        """Return how many updates :meth:`weigh` gets if a round closes with ``count`` of them.

        They are fewer than ``count`` if a stage replaces clients by groups.

        Raises
        ------
        ConfigError
            If they are too few for a setting; ``allowed`` says how many there can be.
        """
        return self.stages.require_updates(count, allowed)

    def draw(
        self,
        nodes: Sequence[ClientNode],
        server_round: int,
        probabilities: NDArray[np.float64] | None = None,
    ) -> list[ClientNode]:
        """Draw a round's clients from ``nodes``.

        Parameters
        ----------
        nodes : sequence of ClientNode
            The nodes that may be drawn.
        server_round : int
            The round: the draw depends on (seed, round).
        probabilities : ndarray, optional
            ``[len(nodes)]``, > 0, sums to 1; ``None``: uniform.

        Returns
        -------
        list of ClientNode
            The clients drawn. Their number is the share ``fraction_train`` (times the pace's
            ``ask_more``) of all nodes online, not only of ``nodes``, and at least
            ``min_train_nodes``. If ``nodes`` are fewer, all of them are drawn.
        """
        num_online = max(len(self.online), len(nodes))
        pace = self.setup.pace
        size = pace.num_drawn(num_online, self.fraction_train, self.min_train_nodes)
        generator = numpy_generator("sample-clients", self.seed, server_round)
        return sample_clients(nodes, size, generator, probabilities)

    def _close_when_answered(
        self, num_members: int, earlier: Mapping[int, Question], grid: Grid
    ) -> Closing:
        """Return when the round stops waiting for replies, and tell the grid."""
        closing = self._patience.closing(num_members, earlier)
        # A loop whose own grid does not screen replies sends the messages by that grid, not by
        # this one: it would keep the closing for other messages.
        grid_screens = self._open_run is not None and self._open_run.screens
        if isinstance(grid, ScreenedGrid) and grid_screens:
            grid.close_by(closing)
        return closing

    def _open_round(
        self,
        server_round: int,
        present: Present,
        members: Sequence[ClientNode],
        earlier: Mapping[int, Question],
        grid: Grid,
    ) -> Round:
        """Begin the round's record; ``earlier`` are unanswered questions of earlier rounds."""
        self.current = Round(
            server_round,
            num_online=len(present.online),
            members=members,
            at_work=[question.node for question in earlier.values()],
            online=present.online,
            paused=self.roster.failures.paused(server_round),
            candidates=present.candidates,
            grid=grid,
        )
        return self.current

    def _training_messages(
        self, members: Sequence[ClientNode], config: ConfigRecord
    ) -> list[Message]:
        """Return the messages that send the model to a round's members."""
        content = RecordDict(
            {self.arrayrecord_key: self.model.record, self.configrecord_key: config}
        )
        enclosing = [self.intake.enclose, *(callback.enclose for callback in self.callbacks)]
        return [
            Message(content_for(node, content, enclosing), node.node_id, MessageType.TRAIN)
            for node in members
        ]

    # -- how a round takes in the replies

    def _screen(self, current: Round, replies: Iterable[Message]) -> float:
        """Screen a round's replies, and note them in its record.

        Returns
        -------
        float
            The time (``time.perf_counter``) at which the round would have ended if screening
            took no time: what lies before it is waiting, what comes after it the server's work.
        """
        screening = self.intake.collect(
            current.round, replies, current.asked, self._closing, self.stages.arrive
        )
        screened_at = time.perf_counter() - screening.seconds
        current.accepted = screening.accepted
        current.refused = screening.refused
        # Only members of this round count here: late replies are to older models.
        newly_failed = self.roster.failures.first_errors(current.refused_of_members)
        most_fail = 2 * newly_failed > len(current.members)
        current.is_models_fault = most_fail and not self.model.is_proven
        return screened_at

    def _advance(self, current: Round) -> None:
        """Move the global model on by the accepted replies, or note why it stays."""
        obstacle = self._find_obstacle(current)
        if obstacle is not None:
            fail(current, self.model, obstacle)
            return
        try:
            updates = self.intake.updates(
                current.round, current.accepted, self.model.vectors, self.device, self.seed
            )
            vectors, aggregation = self.aggregate(updates)
        except FedIFError as error:
            current.error = error
            # The model that was sent is the cause if its validation gradient is not finite. Other
            # errors of this package, such as a setting that does not fit, are not due to it.
            is_suspect = isinstance(error, DivergedError)
            fail(current, self.model, Obstacle(str(error), suspect=is_suspect))
            return
        except Exception as error:  # Any error, since a user's model or loss may raise it.
            current.error = error
            # The model that was sent may be the cause, and an older one is known to work.
            fail(current, self.model, Obstacle(with_place(error), suspect=True))
            return
        current.aggregation = aggregation
        if self.model.stands_still(vectors):
            stand_still(current, self.model, updates, aggregation)
        else:
            self._step(current, updates, vectors, aggregation)

    def _find_obstacle(self, current: Round) -> Obstacle | None:
        """Return why a round's replies cannot be weighed; ``None`` if they can."""
        noise_for = 0
        if self._open_run is not None:
            noise_for = self._open_run.noise_for
        return find_obstacle(
            current, min_valid_replies=self.setup.min_valid_replies, noise_for=noise_for
        )

    def _step(
        self,
        current: Round,
        updates: RoundUpdates,
        vectors: ModelVectors,
        aggregation: Aggregation,
    ) -> None:
        """Move the model to ``vectors``, and record the step."""
        nodes = [reply.node for reply in current.accepted]
        before = self.model.vectors
        current.arrays = self.model.advance(vectors)
        step_factors: tuple[float, ...] = ()
        if self.stages.optimizer is not None:
            step_factors = tuple(self.stages.optimizer.step_factors)
        after = self.model.vectors
        current.step = Step(updates, nodes, before, after, aggregation, step_factors)

    def _tell_of_round(self, current: Round) -> None:
        """Tell the intake and the callbacks of a round, and of its step if there was one."""
        accepted = [reply.node for reply in current.accepted]
        self.intake.close(current.round, accepted, stepped=current.step is not None)

        def notify(callback: Callback) -> None:
            if current.step is not None:
                callback.on_step(current.step)
            callback.on_round(current)

        self.tell(notify)

    def _count_failures(self, current: Round) -> None:
        """Count the members that gave no usable reply, and whether the round failed on the server.

        If most members fail because of the model, they are not counted; only late replies to older
        models are. A round whose usable replies leave the model where it is does not count as
        failed: otherwise clients could end the run by sending such replies, and clients that have
        learned all there is send them as well.
        """
        if current.is_models_fault:
            self.roster.failures.update_late(current)
            return
        why_failed = ""
        if len(current.accepted) >= self.setup.min_valid_replies and current.aggregation is None:
            why_failed = current.reason
        self.roster.failures.update(current, why_failed=why_failed)

    def _train_metrics(self, current: Round) -> MetricRecord | None:
        """Return the members' metrics, aggregated by ``train_metrics_aggr_fn``."""
        records = [reply.reported.records for reply in current.accepted]
        return aggregate_metrics(records, self.train_metrics_aggr_fn, self.weighted_by_key)

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return all that a run needs to go on, except the model."""
        return {name: part.state_dict() for name, part in self.stateful().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; the caller also sets ``completed_rounds``."""
        for name, part in self.stateful().items():
            part.load_state_dict(state[name])

    # -- before the rounds

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Check the model that a run begins with, take it, and tell callbacks of the start.

        Raises
        ------
        ConfigError, ValueError
            If the model cannot be averaged; if it does not fit the strategy's own copy of the
            model, or is not the model that an earlier run of this strategy ended with; or if a
            stage, rule or callback remembers the rounds of another strategy.
        """
        require_record(initial_arrays)
        require_constructed(self)
        self.model.require_copy(type(self).__name__, self.own_shapes, initial_arrays)
        self.intake.require(self, grid, initial_arrays)
        remembering = self._remembering()
        require_own(remembering, self._key)
        self.stages.begin(self.validation)
        super().begin(grid, initial_arrays)
        # From here on the model's layout and vectors are known, which these checks need.
        require_judges(self.stages, self.validation, self.model)
        if self.stages.optimizer is not None:
            self.stages.optimizer.require_step(self.model.vectors.params)
        warn_of_own_statistics(type(self).__name__, self.own_shapes, self.model.layout)
        claim(remembering, self._key)

    def _remembering(self) -> list[object]:
        """Return all that remembers rounds: stages, parts of the strategy, and callbacks."""
        callbacks = [callback for callback in self.callbacks if isinstance(callback, Stateful)]
        return [*self.stages.remembering, *self.stateful().values(), *callbacks]

    def summary(self) -> None:
        """Log every setting; raise ConfigError if a wrapper's noise does not fit the weights."""
        wrapper = calling_wrapper()
        if wrapper is not None:
            require_equal_weights(wrapper, self.why_weights_differ())
        super().summary()

    def why_weights_differ(self) -> str:
        """Return why members with equally many examples may differ in weight; empty: they cannot.

        Flower's wrappers for differential privacy add noise for equal weights (see
        :mod:`fedif_flower.server.noise`).
        """
        return f"{type(self).__name__} weighs them by what they send"

    def _require_noise_fits(self, wrapper: NoiseWrapper, arrays: ArrayRecord) -> None:
        """Raise ConfigError if a wrapper adds too little noise to hide a member's update."""
        require_equal_weights(wrapper, self.why_weights_differ())
        vectors = self.model.receive(arrays)
        if vectors.buffers.numel() or vectors.counters:
            names = ", ".join(self.model.named_buffers)
            why = f"of arrays that are not trained ({names}) medians and maxima are taken"
            require_equal_weights(wrapper, why)
