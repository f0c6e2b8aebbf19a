"""The callback that attributes each round's step to the clients while a federation runs."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter

from fedif_flower.aggregators.linear_algebra import gram_matrix
from fedif_flower.attribution.carried import CarriedUpdates, MemberKey, carry
from fedif_flower.attribution.credit import Credit, CreditBounds, PastSteps
from fedif_flower.attribution.memory import AttributionMemory
from fedif_flower.attribution.noise_ends import NoiseEnds
from fedif_flower.attribution.path import find_refinements
from fedif_flower.attribution.records import ClientAttribution, RoundAttribution, take_back
from fedif_flower.attribution.rounds import PendingRound, RoundAttributor
from fedif_flower.errors import ConfigError, require
from fedif_flower.round import ModelVectors
from fedif_flower.server.model import GlobalModel, require_judge
from fedif_flower.server.record import Round, Step
from fedif_flower.server.rule import claim, require_own
from fedif_flower.server.run import Callback, RunningStrategy
from fedif_flower.server.summary import shown_setting
from fedif_flower.valuation.parallel import LossAndGradient
from fedif_flower.valuation.subsets import block_validations, block_weights, class_validations
from fedif_flower.valuation.validation import Validation

logger = logging.getLogger(__name__)

OnAttribution = Callable[[RoundAttribution], object]


class _LastStep(NamedTuple):
    """The last step that the global model took; a later round may still take it back.

    Attributes
    ----------
    before : ModelVectors
        The model before the step.
    model : ModelVectors
        The model after the step, or the model that has been received in its place since.
    server_round : int
        The step's round.
    """

    before: ModelVectors
    model: ModelVectors
    server_round: int


class PathAttribution(Callback):
    r"""Attributes the decrease of the validation loss to the clients, round by round.

    The formula is that of :func:`~fedif_flower.attribution.path.path_attribution`, with the
    coefficients that were really applied. It works with every strategy whose step is a sum of
    updates times coefficients. Buffers are interpolated along the path; what they do to the loss is
    part of the remainder.

    Gradients are computed in the background while the next round's clients train. The gradient that
    FedIF computes for itself is shared. Beside FedIF, the trapezoid therefore costs one gradient at
    the end of the run and no other; Simpson's rule costs one gradient a round, and two
    Gauss-Legendre nodes cost two. Beside a strategy without a gradient of its own, each rule costs
    one gradient a round more.

    The loss may be corrected for wrong labels, and their share known up to an interval only
    (:attr:`Validation.noise_interval <fedif_flower.valuation.validation.Validation>`). Then each
    round also has the contributions at both ends of the interval
    (:mod:`~fedif_flower.attribution.noise_ends`), which takes two more backward passes at each node
    of the rule.

    Parameters
    ----------
    validation : Validation
        The server's held-out set D' with model and loss. Where the strategy has a ``Validation``
        itself, pass the same object, so that both share gradients.
    rule : {"trapezoid", "simpson", "gauss2", "adaptive"}
        The quadrature rule. ``"adaptive"`` is Simpson's rule, refined up to three times in rounds
        whose contributions do not add up to the decrease: 1, 3, 7 or 15 gradients between the ends.
    per_class : bool
        Whether to split each contribution by the validation examples' classes. The split takes a
        backward pass over each class's examples at each node of the rule.
    blocks : int
        The number of blocks of examples, >= 2, by which each contribution is split; intervals
        follow from the split (see :func:`~fedif_flower.valuation.subsets.block_validations`). 0: do
        not split. With fewer than 20 examples there are no blocks, whatever the number. The pass
        over the examples in the middle of the step gives the split as well as the rule's gradient
        there; a rule without a node in the middle needs one pass more. Rounds with masked updates
        are not split, since they allow one inner product a round.
    bounds : CreditBounds, optional
        Bounds on what members are credited with, by their updates' lengths, weights and directions;
        ``None``: each member is credited with its contribution.
    on_attribution : callable, optional
        Called with each :class:`RoundAttribution` in the order of the rounds: when the next round's
        replies are about to be taken in, or earlier where a checkpoint or the end of the run needs
        the round.

    Attributes
    ----------
    rounds : list of RoundAttribution
        The rounds so far.
    on_attribution : list of callable
        The functions that are called with each round.
    is_settled : bool
        Whether the last round was attributed and every function in ``on_attribution`` has returned.
        ``False`` where an error or a signal interrupted that.

    Raises
    ------
    ValuationError
        If the rule is unknown, or ``per_class`` is set and the validation set has no classes.
    ConfigError
        If ``blocks`` is 1 or negative, or another argument is of the wrong type.

    Examples
    --------
    >>> attribution = PathAttribution(validation, "simpson")            # doctest: +SKIP
    >>> FedIF(validation, callbacks=[attribution]).start(grid, arrays)  # doctest: +SKIP
    """

    def __init__(
        self,
        validation: Validation,
        rule: str = "simpson",
        *,
        per_class: bool = False,
        blocks: int = 0,
        bounds: CreditBounds | None = None,
        on_attribution: OnAttribution | None = None,
    ) -> None:
        fits = isinstance(validation, Validation)
        require(fits, "validation", shown_setting(validation), "a Validation")
        fits = bounds is None or isinstance(bounds, CreditBounds)
        require(fits, "bounds", bounds, "CreditBounds(...)")
        fits = on_attribution is None or callable(on_attribution)
        require(fits, "on_attribution", on_attribution, "a function")
        self.validation = validation
        self.rule = rule
        self.rounds: list[RoundAttribution] = []
        classes: list[Validation] = []
        if per_class:
            classes = class_validations(validation)
        self._attributor = RoundAttributor(
            validation,
            quadratures=find_refinements(rule),
            noise_ends=NoiseEnds(validation),
            classes=classes,
            blocks=block_validations(validation, blocks),
        )
        self.on_attribution: list[OnAttribution] = []
        if on_attribution is not None:
            self.on_attribution.append(on_attribution)
        self.is_settled = True
        self._gradients = validation.gradients
        self._strategy: RunningStrategy | None = None
        self._sent: ModelVectors | None = None  # The model that the current round began with.
        # The round whose attribution is still being computed in the background.
        self._pending: tuple[PendingRound, Future[RoundAttribution]] | None = None
        self._last_step: _LastStep | None = None  # Rounds without a step leave it as it is.
        self._has_warned = False  # Whether _warn_of_another_model has logged its warning.
        # The round of the last step in a checkpoint, until on_start makes it _last_step; 0: none.
        self._saved_step = 0
        self.bounds = bounds
        # The bounds keep this key to recognise the attribution whose rounds they remember.
        self._key = object()
        self._memory = AttributionMemory(bounds)

    @property
    def num_classes(self) -> int:
        """The number of classes by which contributions are split; 0: they are not split."""
        return len(self._attributor.classes)

    @property
    def has_noise_ends(self) -> bool:
        """Whether contributions are also measured at both ends of the share of wrong labels."""
        return len(self._attributor.noise_ends) > 0

    @property
    def block_weights(self) -> list[float]:
        """Each block's share of the held-out examples' weight; empty: there are no blocks."""
        weights: list[float] = self._attributor.block_weights.tolist()
        return weights

    @property
    def class_weights(self) -> list[float]:
        """Each class's share of the held-out examples' weight; empty: no split by classes."""
        weights: list[float] = block_weights(self._attributor.classes).tolist()
        return weights

    @property
    def contributions(self) -> dict[str, float]:
        """Each client's contribution summed over the rounds so far, the largest first.

        The keys are the clients' names in logs; the client ids before a run has begun.
        """
        sums: dict[int, float] = defaultdict(float)
        for attributed in self.rounds:
            for client in attributed.clients:
                sums[client.client_id] += client.contribution
        labels = {client_id: str(client_id) for client_id in sums}
        if self._strategy is not None:
            labels = self._strategy.nodes.labels(sums)
        largest_first = sorted(sums, key=sums.__getitem__, reverse=True)
        return {labels[client_id]: sums[client_id] for client_id in largest_first}

    def why_updates_are_read(self, strategy: RunningStrategy) -> str:
        """Return why one inner product with each update is not enough; empty if it is."""
        if len(self._attributor.quadratures) > 1:
            return f"attribution = {self.rule!r} takes several gradients one after the other"
        if self._attributor.classes:
            return "attribution by class takes a gradient for each class"
        if strategy.stages.optimizer is not None:
            return "attribution beside a server optimizer takes gradients of many rounds"
        return ""

    def on_start(self, strategy: RunningStrategy) -> None:
        """Check that the strategy can be attributed, and begin the gradient at the first model.

        Raises
        ------
        ConfigError
            If the strategy's step is no sum of updates times coefficients, if its model is not the
            validation set's model, or if the bounds of credit remember another attribution's
            members.
        """
        if not strategy.combines_updates:
            raise ConfigError(
                f"{type(strategy).__name__} combines coordinate by coordinate: no update has a "
                "coefficient by which its part could be told, so it cannot be attributed"
            )
        optimizer = strategy.stages.optimizer
        if optimizer is not None and not optimizer.keeps_coefficients:
            raise ConfigError(
                f"stages = {strategy.stages}: {optimizer!r} moves each parameter by itself, so "
                "that no step can be attributed; FedAvgM's can"
            )
        require_judge(type(self).__name__, self.validation, strategy.model)
        if self.bounds is not None:
            require_own([self.bounds], self._key)
            claim([self.bounds], self._key)
        self.forget_given_up(strategy)
        self._strategy = strategy
        strategy.intake.before_replies.append(self.finish_last_round)
        self._go_on_after_step(strategy.model)
        self._begin(strategy.model.vectors)

    def forget_given_up(self, strategy: RunningStrategy) -> None:
        """Forget the rounds that an error interrupted, since the strategy repeats them.

        ``on_start`` calls it. Other callbacks that read :attr:`rounds` in their own ``on_start``
        call it first.
        """
        if strategy is not self._strategy:
            return  # No earlier run of this strategy was attributed here.
        last_round = strategy.completed_rounds
        complete = [
            attributed for attributed in self.rounds if attributed.server_round <= last_round
        ]
        self.rounds = complete
        # Even if no round is dropped: on_step may have failed after the bounds took in its round.
        self._memory.restore_bounds(last_round)
        if self._last_step is not None and self._last_step.server_round > last_round:
            self._last_step = None

    def _go_on_after_step(self, model: GlobalModel) -> None:
        """Restore the last step of a resumed run, if the model may still be taken back."""
        if self._saved_step and model.way_back is not None:
            before = model.layout.to_vectors(model.way_back)
            self._last_step = _LastStep(before, model.vectors, self._saved_step)
        self._saved_step = 0

    def finish_last_round(self, server_round: int) -> None:
        """Finish the previous round, since this round's replies overwrite its updates."""
        self.settle()
        self._sent = self._model.vectors
        if self._last_step is None:
            return
        if self._model.continues(self._last_step.model):
            self._warn_of_another_model(self._last_step.model, server_round)
            self._last_step = self._last_step._replace(model=self._sent)
        else:
            # The model does not continue that step, so the step cannot be taken back any more.
            self._last_step = None

    def _warn_of_another_model(self, led_to: ModelVectors, server_round: int) -> None:
        """Warn once if the round begins with another model than the last step led to.

        ``led_to`` is that step's result. Another loop may have changed it, by adding noise say.
        """
        if led_to is self._sent or self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "round %d begins with another model than the last step led to (does a wrapper add "
            "noise?): what changed the model in between is credited to nobody, and no statement "
            "can be made of this run",
            server_round,
        )

    def on_step(self, step: Step) -> None:
        """Begin to attribute the round's step in the background."""
        newest = self._newest(step)
        earlier = self._memory.handed_on.updates
        in_step = carry([newest, *earlier], step.step_factors or (1.0,))
        carried: tuple[CarriedUpdates, ...] | None = None
        if step.step_factors:
            # A copy, since the next round's replies overwrite the newest updates.
            carried = (replace(in_step[0], updates=newest.updates.clone()), *in_step[1:])
        unseen = step.updates.unseen
        if unseen is not None and not self.rounds and self.block_weights:
            logger.info("masked rounds: no intervals for another held-out set")
        pending = self._begin_round(step.updates.server_round, step.before, step.after)
        self._attribute(replace(pending, in_step=in_step, unseen=unseen))
        # Last, since only the step of a pending round is undone if an error ends the round.
        self._memory.note_step(step.before.params, step.after.params, carried)

    def _newest(self, step: Step) -> CarriedUpdates:
        """Return the round's own updates with the coefficients and credit of its step."""
        updates = step.updates.client_updates
        applied = step.aggregation.applied
        assert applied is not None  # on_start: the strategy combines updates
        past = self._memory.handed_on.past
        credit = self._credit(step, past)
        basis = updates[:0]
        if credit is not None:
            basis = past.basis
        return CarriedUpdates(
            members=tuple(MemberKey(node.partition_id, node.client_id) for node in step.nodes),
            coefficients=applied.cpu(),
            updates=updates,
            basis=basis,
            credit=credit,
        )

    def _credit(self, step: Step, past: PastSteps) -> Credit | None:
        """Return how much of each of the round's updates is credited; ``None``: all of it."""
        if self.bounds is None:
            return None
        updates = step.updates.client_updates
        unseen = step.updates.unseen
        if unseen is None:
            gram = gram_matrix(updates).cpu()
            coordinates = past.coordinates(updates)
        else:
            gram, coordinates = unseen.sketched(past.basis)
        return self.bounds.bound(
            client_ids=step.updates.client_ids,
            examples=step.updates.num_examples.cpu(),
            gram=gram,
            weights=step.aggregation.weights_alone.cpu(),
            coordinates=coordinates,
            length_factors=step.aggregation.length_factors,
        )

    def on_round(self, current: Round) -> None:
        """Attribute a round without a step; such a round may have taken the last step back."""
        if current.status == "advanced":
            return  # on_step has begun it.
        before = self._sent
        after = self._model.vectors
        assert before is not None  # finish_last_round
        pending = self._begin_round(current.round, before, after)
        if after is not before:
            pending = replace(pending, undone=self._undo_last_step())
        self._attribute(pending)

    def _undo_last_step(self) -> tuple[ClientAttribution, ...]:
        """Forget the last step; return the contributions that its undoing takes from clients.

        They are the step's contributions with the other sign. Empty if there was no step, or if the
        model did not return to the parameters from which the step began.
        """
        step = self._last_step
        self._last_step = None
        if step is None:
            return ()
        self._memory.carry_as_before_step()
        if not torch.equal(self._model.vectors.params, step.before.params):
            return ()
        undone: list[ClientAttribution] = []
        for attributed in self.rounds:
            if attributed.server_round == step.server_round:
                undone += [take_back(client) for client in attributed.clients]
        return tuple(undone)

    def on_model(self, server_round: int, model: object) -> None:  # noqa: ARG002
        """Keep what the next round needs to know of the rounds so far, for a checkpoint."""
        if server_round and not self._has_round(server_round):
            self._attribute_to_nobody(server_round)
        self._memory.keep(server_round, self._round_of_last_step())

    def _has_round(self, server_round: int) -> bool:
        """Whether a round is attributed, or its attribution is still being computed."""
        if self._pending is not None:
            pending, _ = self._pending
            return pending.server_round == server_round
        return bool(self.rounds) and self.rounds[-1].server_round == server_round

    def _attribute_to_nobody(self, server_round: int) -> None:
        """Attribute a round that asked nobody, so that no round is missing in the records."""
        self.finish_last_round(server_round)
        model = self._model.vectors
        self._attribute(self._begin_round(server_round, model, model))

    def _round_of_last_step(self) -> int:
        """Return the round of the last step that may still be taken back; 0: there is none."""
        if self._pending is not None:
            pending, _ = self._pending
            if pending.in_step and self._model.continues(pending.after):
                return pending.server_round
        if self._last_step is None:
            return self._saved_step
        return self._last_step.server_round

    def on_end(self) -> None:
        """Finish the last round."""
        self.settle()

    def settle(self) -> None:
        """Wait for the attribution of the pending round, store it and report it."""
        if self._pending is None:
            return
        pending, future = self._pending
        # Wait before _pending is cleared: a signal that interrupts the wait loses no round then.
        wait([future])
        self.is_settled = False
        self._pending = None
        attributed = future.result()
        if not self._model.continues(pending.after):
            attributed = self._without_step(pending, attributed)
        elif pending.in_step:
            self._last_step = _LastStep(pending.before, pending.after, pending.server_round)
        self.rounds.append(attributed)
        for listener in self.on_attribution:
            listener(attributed)
        self.is_settled = True

    def _without_step(
        self, pending: PendingRound, attributed: RoundAttribution
    ) -> RoundAttribution:
        """Return the attribution of a round whose model was taken back before the next round.

        The model could not be evaluated. If the round took a step, that step is undone: the loss
        stays, and nobody contributed. Otherwise an earlier round's step was taken back.
        """
        number = pending.server_round
        if pending.in_step:
            logger.warning("round %d: its step was taken back", number)
            self._last_step = None
            self._memory.undo_step()
            loss = attributed.loss_before
            attributed = RoundAttribution(number, loss, loss)
        else:
            logger.warning("round %d: the last step was taken back", number)
            attributed = self._attribute_way_back(pending)
        # on_model kept the memory before it was known that the model would be taken back.
        self._memory.correct(number, self._round_of_last_step())
        return attributed

    def _attribute_way_back(self, pending: PendingRound) -> RoundAttribution:
        """Return the attribution of a round without a step that ended with an earlier model."""
        after = self._model.vectors
        went_back = replace(
            pending,
            after=after,
            at_models=(pending.at_models[0], self._begin(after)),
            undone=self._undo_last_step(),
        )
        return self._attributor.evaluate(went_back)

    def lines(self, after: int, last_round: int) -> list[dict[str, Any]]:
        """Return the rounds ``after`` + 1 to ``last_round`` as dicts; wait for the pending one."""
        self.settle()
        return [asdict(attributed) for attributed in self.rounds[after:last_round]]

    def state_dict(self, last_round: int) -> dict[str, Any]:
        """Return what :meth:`lines` does not hold: the rule, and the memory after a round."""
        return {
            "rule": self.rule,
            "num_classes": self.num_classes,
            "blocks": self.block_weights,
            **self._memory.state_dict(last_round, self._round_of_last_step()),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], last_round: int
    ) -> None:
        """Take over what :meth:`state_dict` and :meth:`lines` returned for all rounds.

        Raises
        ------
        ValueError, TypeError, KeyError
            If rule, classes or blocks are others than in this run, if the lines are not those of
            the rounds 1 to ``last_round``, or if something is missing or malformed.
        """
        expected = self.state_dict(last_round)
        for name in ("rule", "num_classes", "blocks"):
            if state[name] != expected[name]:
                raise ValueError(
                    f"its attribution has {name} = {state[name]}; this run's has {expected[name]}"
                )
        rounds = TypeAdapter(list[RoundAttribution]).validate_python(lines)
        server_rounds = [attributed.server_round for attributed in rounds]
        if server_rounds != list(range(1, last_round + 1)):
            raise ValueError(f"its attribution is not that of the rounds 1 to {last_round}")
        self._memory.load_state_dict(state, last_round)
        self.rounds = rounds
        self._saved_step = int(state.get("last_step", 0))

    def _begin(self, vectors: ModelVectors) -> Future[LossAndGradient]:
        """Begin loss and gradient at a model, unless another part has begun them already."""
        return self._gradients.begin(vectors.params, self._model.layout.named_buffers(vectors))

    def _begin_round(
        self, server_round: int, before: ModelVectors, after: ModelVectors
    ) -> PendingRound:
        """Begin loss and gradient at both models of a round; return the round, without a step."""
        return PendingRound(
            server_round,
            before,
            after,
            names=self._model.layout,
            at_models=(self._begin(before), self._begin(after)),
        )

    def _attribute(self, pending: PendingRound) -> None:
        """Submit a round to the background thread, and make it the pending one."""
        attributed = self._gradients.submit(lambda: self._attributor.evaluate(pending))
        self._pending = (pending, attributed)

    @property
    def _model(self) -> GlobalModel:
        assert self._strategy is not None  # on_start
        return self._strategy.model
