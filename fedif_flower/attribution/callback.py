"""Path attribution beside a federation: what each client contributed to each round's step."""

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
from fedif_flower.attribution.rounds import RoundAttributor, TakenRound
from fedif_flower.errors import ConfigError, require
from fedif_flower.round import ModelVectors, UnseenUpdates
from fedif_flower.server.model import GlobalModel, require_judge
from fedif_flower.server.record import Round, Step
from fedif_flower.server.rule import claim, require_own
from fedif_flower.server.run import Callback, RunningStrategy
from fedif_flower.server.summary import shown_setting
from fedif_flower.valuation.parallel import LossAndGradient
from fedif_flower.valuation.parts import block_validations, block_weights, class_validations
from fedif_flower.valuation.validation import Validation

logger = logging.getLogger(__name__)

OnAttribution = Callable[[RoundAttribution], object]


class _LastStep(NamedTuple):
    """The last step that was taken, to which the model may yet return.

    Attributes
    ----------
    before : ModelVectors
        The model that it began with.
    model : ModelVectors
        Where it led, or what was received in the place of that since.
    place : int
        Of its round among those attributed.
    """

    before: ModelVectors
    model: ModelVectors
    place: int


class PathAttribution(Callback):
    r"""Attributes the decrease of the validation loss to the clients, round by round.

    Formula: :func:`~fedif_flower.attribution.path.path_attribution`, with the coefficients that
    were really applied. It works with every strategy whose step is a sum of updates times
    coefficients.
    Gradients are taken in the background while the next round's clients train, and FedIF's own is
    shared: beside FedIF the trapezoid costs no gradient but one at the end of the run, Simpson's
    rule one a round and two Gauss-Legendre nodes two; beside other strategies, one a round more.
    Buffers are interpolated along the path; what they change is part of the remainder.

    Where the loss is corrected for wrong labels, and their share is known up to an interval
    (:attr:`Validation.noise_interval <fedif_flower.valuation.validation.Validation>`), each round
    also has the contributions at both ends of it (:mod:`~fedif_flower.attribution.noise_ends`).
    They take two more passes back at each node of the rule.

    Parameters
    ----------
    validation : Validation
        The server's held-out set D' with model and loss; give a strategy that has one the same
        object.
    rule : {"trapezoid", "simpson", "gauss2", "adaptive"}
        The quadrature rule. ``"adaptive"`` is Simpson's, refined up to three times in rounds whose
        contributions do not add up to the decrease: 1, 3, 7 or 15 gradients between the ends.
    per_class : bool
        Also split each contribution by the validation examples' classes. It takes a backward pass
        over each class's examples at each node of the rule.
    blocks : int
        Also split each contribution by this many blocks of the examples, >= 2, from which intervals
        follow (see :func:`~fedif_flower.valuation.parts.block_validations`); with fewer than 20
        examples there are none, however many are asked for. The pass over the examples in the
        middle of a step gives both, one more where the rule has none there. 0: do not. Rounds whose
        updates nobody sees are not split: there is one product a round with them.
    bounds : CreditBounds, optional
        Bounds what members are credited with, by lengths and cosines; ``None``: each is credited
        with its contribution.
    on_attribution : callable, optional
        Called with each :class:`RoundAttribution` in the order of the rounds, once the next
        round's replies are here, and at the end of the run.

    Attributes
    ----------
    rounds : list of RoundAttribution
        The rounds so far.
    on_attribution : list of callable
        Who is told of each round.
    all_are_told : bool
        Whether the last round was attributed, and all of these were told of it: an error or a
        signal may have come between.

    Raises
    ------
    ValuationError
        If the rule is unknown, or ``per_class`` and the validation set has no classes.
    ConfigError
        If ``blocks`` is 1 or negative.

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
        self.all_are_told = True
        self._gradients = validation.gradients
        self._strategy: RunningStrategy | None = None
        self._sent: ModelVectors | None = None
        self._pending: tuple[TakenRound, Future[RoundAttribution]] | None = None
        self._last_step: _LastStep | None = None  # Rounds without a step leave it as it is.
        self._has_warned = False  # That a round begins with another model.
        self._saved_step = 0  # Its round, until a run that goes on has begun.
        self.bounds = bounds
        self._key = object()  # By which the bounds know whose rounds they remember.
        self._memory = AttributionMemory(bounds)

    @property
    def num_classes(self) -> int:
        """How many classes contributions are split by; 0: they are not."""
        return len(self._attributor.classes)

    @property
    def has_noise_ends(self) -> bool:
        """Whether contributions are also measured at both ends of the share of wrong labels."""
        return len(self._attributor.noise_ends) > 0

    @property
    def block_weights(self) -> list[float]:
        """Each block's part of the held-out examples' weight; empty: there are no blocks."""
        weights: list[float] = self._attributor.block_weights.tolist()
        return weights

    @property
    def class_weights(self) -> list[float]:
        """Each class's part of the held-out examples' weight; empty: no split by classes."""
        weights: list[float] = block_weights(self._attributor.classes).tolist()
        return weights

    @property
    def contributions(self) -> dict[str, float]:
        """Each client's sum over the rounds so far, by what logs call it, the largest first."""
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
        """Return what would take more than one product with each update."""
        if len(self._attributor.quadratures) > 1:
            return f"attribution = {self.rule!r} takes several gradients one after the other"
        if self._attributor.classes:
            return "attribution by class takes a gradient for each class"
        if strategy.stages.optimizer is not None:
            return "attribution beside a server optimizer takes gradients of many rounds"
        return ""

    def on_start(self, strategy: RunningStrategy) -> None:
        """Begin with the gradient at the first model.

        Raises
        ------
        ConfigError
            If the strategy's step is no sum of updates times coefficients, its model is not that
            of the validation set, or the bounds of credit remember another strategy's members.
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
        """Forget rounds that an error ended before they were complete: they are done again.

        To be called where a strategy is started again, by whoever looks at the rounds so far.
        """
        if strategy is not self._strategy:
            return
        last_round = strategy.completed_rounds
        complete = [
            attributed for attributed in self.rounds if attributed.server_round <= last_round
        ]
        if len(complete) < len(self.rounds):
            self._memory.restore_bounds(last_round)
        self.rounds = complete
        if self._last_step is not None and self._last_step.place >= len(self.rounds):
            self._last_step = None

    def _go_on_after_step(self, model: GlobalModel) -> None:
        """Know the last step of a run that goes on, if the model may yet be taken back."""
        if self._saved_step and model.way_back is not None:
            before = model.layout.to_vectors(model.way_back)
            self._last_step = _LastStep(before, model.vectors, place=self._saved_step - 1)
        self._saved_step = 0

    def finish_last_round(self, server_round: int) -> None:
        """Finish the round before, whose updates are about to be overwritten."""
        self.settle()
        self._sent = self._model.vectors
        if self._last_step is None:
            return
        if self._model.continues(self._last_step.model):
            self._warn_of_another_model(self._last_step.model, server_round)
            self._last_step = self._last_step._replace(model=self._sent)
        else:
            self._last_step = None

    def _warn_of_another_model(self, led_to: ModelVectors, server_round: int) -> None:
        """Say once that a round begins with another model than the last step has led to."""
        if led_to is self._sent or self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "round %d begins with another model than the step before it led to: contributions are "
            "of the strategy's own steps, what is made of their models is nobody's, and no "
            "statement can be made of the run",
            server_round,
        )

    def on_step(self, step: Step) -> None:
        """Begin with the round's gradients."""
        newest = self._newest(step)
        earlier = self._memory.handed_on.updates
        in_step = carry([newest, *earlier], step.shares or (1.0,))
        carried: tuple[CarriedUpdates, ...] | None = None
        if step.shares:
            # The newest updates are overwritten in the next round.
            carried = (replace(in_step[0], updates=newest.updates.clone()), *in_step[1:])
        self._memory.note_step(step.before.params, step.after.params, carried)
        unseen = step.updates.unseen
        if unseen is not None and not self.rounds and self.block_weights:
            logger.info("masked rounds: no intervals for another held-out set")
        self._attribute(step.updates.server_round, step.before, step.after, in_step, unseen=unseen)

    def _newest(self, step: Step) -> CarriedUpdates:
        """Return the round's own updates, as they are in its step."""
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
        """Return how much of each of a round's updates is credited, if that is bounded."""
        if self.bounds is None:
            return None
        updates = step.updates.client_updates
        unseen = step.updates.unseen
        if unseen is None:
            gram = gram_matrix(updates).cpu()
            shares = past.shares(updates)
        else:
            gram, shares = unseen.sketched(past.basis)
        return self.bounds.bound(
            client_ids=step.updates.client_ids,
            examples=step.updates.num_examples.cpu(),
            gram=gram,
            weights=step.aggregation.weights_alone.cpu(),
            shares=shares,
            length_factors=step.aggregation.length_factors,
        )

    def on_round(self, current: Round) -> None:
        """Take note of a round without a step; it may have undone the step before."""
        if current.status == "advanced":
            return
        before = self._sent
        after = self._model.vectors
        assert before is not None  # finish_last_round
        undone: tuple[ClientAttribution, ...] = ()
        if after is not before:
            undone = self._undo_last_step()
        self._attribute(current.round, before, after, undone=undone)

    def _undo_last_step(self) -> tuple[ClientAttribution, ...]:
        """Return what a model that went back took from whom; it carries that on no longer."""
        step = self._last_step
        self._last_step = None
        if step is None:
            return ()
        self._memory.carry_as_before_step()
        if not torch.equal(self._model.vectors.params, step.before.params):
            return ()
        return tuple(take_back(client) for client in self.rounds[step.place].clients)

    def on_model(self, server_round: int, model: object) -> None:  # noqa: ARG002
        """Remember what is carried into the next round, for a checkpoint."""
        self._memory.keep(server_round, self._round_of_last_step())

    def _round_of_last_step(self) -> int:
        """Return the round of the last step that was taken and may be taken back; 0: of none."""
        if self._pending is not None:
            taken_round, _ = self._pending
            if taken_round.in_step and self._model.continues(taken_round.after):
                return taken_round.server_round
        if self._last_step is None:
            return self._saved_step
        return self.rounds[self._last_step.place].server_round

    def on_end(self) -> None:
        """Finish the last round."""
        self.settle()

    def settle(self) -> None:
        """Wait for the round that is still to be attributed, and tell of it."""
        if self._pending is None:
            return
        taken_round, future = self._pending
        wait([future])  # A signal may come meanwhile: the round is still there then.
        self.all_are_told = False
        self._pending = None
        attributed = future.result()
        if not self._model.continues(taken_round.after):
            attributed = self._without_step(taken_round, attributed)
        elif taken_round.in_step:
            place = len(self.rounds)
            self._last_step = _LastStep(taken_round.before, taken_round.after, place)
        self.rounds.append(attributed)
        for tell in self.on_attribution:
            tell(attributed)
        self.all_are_told = True

    def _without_step(
        self, taken_round: TakenRound, attributed: RoundAttribution
    ) -> RoundAttribution:
        """Return a round whose model could not be evaluated, so that a step was taken back."""
        number = taken_round.server_round
        if taken_round.in_step:
            logger.warning("round %d: its step was taken back", number)
            self._last_step = None
            self._memory.undo_step()
            loss = attributed.loss_before
            attributed = RoundAttribution(number, loss, loss)
        else:
            logger.warning("round %d: the last step was taken back", number)
            attributed = self._attribute_way_back(taken_round)
        # It was taken down before anybody knew that the step would not stay.
        self._memory.correct(number, self._round_of_last_step())
        return attributed

    def _attribute_way_back(self, taken_round: TakenRound) -> RoundAttribution:
        """Return a round without a step in which the model went back to the one before."""
        after = self._model.vectors
        went_back = replace(
            taken_round,
            after=after,
            at_models=(taken_round.at_models[0], self._begin(after)),
            undone=self._undo_last_step(),
        )
        return self._attributor.evaluate(went_back)

    def lines(self, after: int, last_round: int) -> list[dict[str, Any]]:
        """Return the rounds after one, up to another; it waits for the one in work."""
        self.settle()
        return [asdict(attributed) for attributed in self.rounds[after:last_round]]

    def state_dict(self, last_round: int) -> dict[str, Any]:
        """Return what is not in :meth:`lines`: the rule, and what is carried on."""
        return {
            "rule": self.rule,
            "num_classes": self.num_classes,
            "blocks": self.block_weights,
            **self._memory.state_dict(last_round, self._round_of_last_step()),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], last_round: int
    ) -> None:
        """Take over what :meth:`state_dict` returned, and all lines.

        Raises
        ------
        ValueError, TypeError, KeyError
            If it is not of this rule, or not of the rounds 1 to ``last_round``.
        """
        expected = self.state_dict(last_round)
        for name in ("rule", "num_classes", "blocks"):
            if state[name] != expected[name]:
                raise ValueError(
                    f"its attribution has {name} = {state[name]}; this run's has {expected[name]}"
                )
        rounds = TypeAdapter(list[RoundAttribution]).validate_python(lines)
        numbers = [attributed.server_round for attributed in rounds]
        if numbers != list(range(1, last_round + 1)):
            raise ValueError(f"its attribution is not that of the rounds 1 to {last_round}")
        self._memory.load_state_dict(state, last_round)
        self.rounds = rounds
        self._saved_step = int(state.get("last_step", 0))

    def _begin(self, vectors: ModelVectors) -> Future[LossAndGradient]:
        return self._gradients.begin(vectors.params, self._model.layout.named_buffers(vectors))

    def _attribute(
        self,
        server_round: int,
        before: ModelVectors,
        after: ModelVectors,
        in_step: tuple[CarriedUpdates, ...] = (),
        unseen: UnseenUpdates | None = None,
        undone: tuple[ClientAttribution, ...] = (),
    ) -> None:
        """Let the gradients' thread attribute a round."""
        taken_round = TakenRound(
            server_round,
            before,
            after,
            in_step=in_step,
            names=self._model.layout,
            at_models=(self._begin(before), self._begin(after)),
            unseen=unseen,
            undone=undone,
        )
        attributed = self._gradients.submit(lambda: self._attributor.evaluate(taken_round))
        self._pending = (taken_round, attributed)

    @property
    def _model(self) -> GlobalModel:
        assert self._strategy is not None  # on_start
        return self._strategy.model
