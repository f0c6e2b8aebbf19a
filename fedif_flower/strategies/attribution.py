"""Path attribution beside a federation: what each client contributed to each round's step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedif_flower.errors import ConfigError
from fedif_flower.messages.text import printable
from fedif_flower.round import BufferNames, ModelVectors
from fedif_flower.strategies.attributed import (
    ClientAttribution,
    RoundAttribution,
    round_from,
    sums_by_client,
    taken_back,
)
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.carried import CarriedUpdates, Member, Part
from fedif_flower.strategies.global_model import GlobalModel
from fedif_flower.strategies.reports import RoundReport
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.steps import Step
from fedif_flower.valuation.classes import class_validations
from fedif_flower.valuation.gradients import LossAndGradient
from fedif_flower.valuation.path import contributions, find_refinements, is_settled, slopes
from fedif_flower.valuation.validation import Validation

logger = logging.getLogger(__name__)

OnAttribution = Callable[[RoundAttribution], object]


@dataclass(frozen=True)
class _Taken:
    """A round that is still to be attributed; without parts, it failed."""

    server_round: int
    before: ModelVectors
    after: ModelVectors
    parts: tuple[Part, ...]
    names: BufferNames
    ends: tuple[Future[LossAndGradient], Future[LossAndGradient]]  # At the two models.


class PathAttribution(Callback):
    r"""Attributes the decrease of the validation loss to the clients, round by round.

    Formula: :func:`~fedif_flower.valuation.path.path_attribution`, with the coefficients that were
    really applied. It works with every strategy whose step is a sum of updates times coefficients.
    Gradients are taken in the background while the next round's clients train, and FedIF's own is
    shared: beside FedIF the trapezoid costs no gradient but one at the end of the run, Simpson's
    rule one a round and two Gauss-Legendre nodes two; beside other strategies, one a round more.
    Buffers are interpolated along the path; what they change is part of the remainder.

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
    on_attribution : callable, optional
        Called with each :class:`RoundAttribution` in the order of the rounds, once the next
        round's replies are here, and at the end of the run.

    Attributes
    ----------
    rounds : list of RoundAttribution
        The rounds so far.

    Raises
    ------
    ValuationError
        If the rule is unknown, or ``per_class`` and the validation set has no classes.

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
        on_attribution: OnAttribution | None = None,
    ) -> None:
        self.validation = validation
        self.rule = rule
        self._quadratures = find_refinements(rule)
        self.rounds: list[RoundAttribution] = []
        self._classes = class_validations(validation) if per_class else []
        self._on_attribution = on_attribution
        self._gradients = validation.gradients
        self._strategy: ScreenedStrategy | None = None
        self._sent: ModelVectors | None = None
        self._pending: tuple[_Taken, Future[RoundAttribution]] | None = None
        self._last: _Taken | None = None
        self._last_params: Tensor | None = None  # That the last step led to.
        self._carried = CarriedUpdates()
        self._carried_after = {0: self._carried}  # By round: of the last two.

    @property
    def num_classes(self) -> int:
        """How many classes contributions are split by; 0: they are not."""
        return len(self._classes)

    @property
    def contributions(self) -> dict[str, float]:
        """Each client's sum over the rounds so far, by what logs call it, the largest first."""
        sums = sums_by_client(self.rounds)
        strategy = self._strategy
        labels = strategy.nodes.labels(sums) if strategy else {i: str(i) for i in sums}
        return {labels[i]: sums[i] for i in sorted(sums, key=sums.__getitem__, reverse=True)}

    def on_start(self, strategy: ScreenedStrategy) -> None:
        """Begin with the gradient at the first model.

        Raises
        ------
        ConfigError
            If the strategy's step is no sum of updates times coefficients, or its vector is not
            that of the validation set.
        """
        if not strategy.combines_updates:
            raise ConfigError(
                f"{type(strategy).__name__} combines coordinate by coordinate: no update has a "
                "coefficient by which its part could be told, so it cannot be attributed"
            )
        trained = [spec.name for spec in strategy.model.layout.trainable]
        if trained != self.validation.parameter_names:
            raise ConfigError(
                "the strategy does not train the parameters of the validation set's model; give "
                "it trainable_keys=validation.parameter_names"
            )
        self._strategy = strategy
        self._begin(strategy.model.vectors)

    def on_replies(self, server_round: int) -> None:  # noqa: ARG002
        """Finish the round before, whose updates are about to be overwritten."""
        self.settle()
        self._sent = self._model.vectors

    def on_step(self, step: Step) -> None:
        """Begin with the round's gradients."""
        applied = step.aggregation.applied
        if applied is None:
            raise ConfigError(
                f"{type(self._strategy).__name__} does not say which coefficients it applied "
                "(Aggregation.applied): its rounds cannot be attributed"
            )
        members = tuple(Member(node.partition_id, node.client_id) for node in step.nodes)
        own = Part(members, applied.cpu(), step.updates.client_updates)
        carried = self._carried
        if self._last_params is not None and step.before.params is not self._last_params:
            carried = carried.without_newest()  # The step before was taken back.
        self._last_params = step.after.params
        in_step = carried.joined(own, step.shares)
        self._carried = in_step.remembered()
        self._attribute(step.updates.server_round, step.before, step.after, tuple(in_step))

    def on_round(self, report: RoundReport) -> None:
        """Take note of a round that failed; its model may have been taken back."""
        if report.failed:
            assert self._sent is not None  # on_replies
            self._attribute(report.server_round, self._sent, self._model.vectors)

    def on_model(self, server_round: int, model: object) -> None:  # noqa: ARG002
        """Remember what is carried into the next round, for a checkpoint."""
        self._carried_after = dict(list(self._carried_after.items())[-1:])
        self._carried_after[server_round] = self._carried

    def on_end(self) -> None:
        """Finish the last round."""
        self.settle()

    def settle(self) -> None:
        """Wait for the round that is still to be attributed, and tell of it."""
        if self._pending is None:
            return
        (taken, future), self._pending = self._pending, None
        found = future.result()
        if taken.parts and self._model.vectors.params is not taken.after.params:
            logger.warning("round %d: its step was taken back", taken.server_round)
            found = RoundAttribution(taken.server_round, found.loss_before, found.loss_before)
        elif not taken.parts and self._took_back(taken):
            found = replace(found, clients=tuple(map(taken_back, self.rounds[-1].clients)))
        self._last = replace(taken, parts=())
        self.rounds.append(found)
        if self._on_attribution is not None:
            self._on_attribution(found)

    def _took_back(self, failed: _Taken) -> bool:
        """Tell whether a failed round undid the step of the one before it."""
        last = self._last
        return (
            last is not None
            and failed.before.params is last.after.params
            and failed.after.params is not failed.before.params
            and torch.equal(failed.after.params, last.before.params)
        )

    def lines(self, after: int, last_round: int) -> list[dict[str, Any]]:
        """Return the rounds after one, up to another; it waits for the one in work."""
        self.settle()
        return [asdict(found) for found in self.rounds[after:last_round]]

    def state_dict(self, last_round: int) -> dict[str, Any]:
        """Return what is not in :meth:`lines`: the rule, and what is carried on."""
        return {
            "rule": self.rule,
            "num_classes": self.num_classes,
            "carried": self._carried_after.get(last_round, CarriedUpdates()).state(),
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
        theirs, ours = (state["rule"], state["num_classes"]), (self.rule, self.num_classes)
        if theirs != ours:
            said = [f"by {rule}, of {classes} classes" for rule, classes in (theirs, ours)]
            raise ValueError(f"its attribution is {said[0]}; this run's is {said[1]}")
        rounds = [round_from(found) for found in lines]
        if [found.server_round for found in rounds] != list(range(1, last_round + 1)):
            raise ValueError(f"its attribution is not that of the rounds 1 to {last_round}")
        self.rounds = rounds
        self._carried = CarriedUpdates.from_state(state["carried"])
        self._carried_after = {last_round: self._carried}

    def _begin(self, vectors: ModelVectors) -> Future[LossAndGradient]:
        return self._gradients.begin(vectors.params, self._model.layout.named_buffers(vectors))

    def _attribute(
        self,
        server_round: int,
        before: ModelVectors,
        after: ModelVectors,
        parts: tuple[Part, ...] = (),
    ) -> None:
        """Let the gradients' thread attribute a round."""
        ends = self._begin(before), self._begin(after)
        taken = _Taken(server_round, before, after, parts, self._model.layout, ends)
        self._pending = taken, self._gradients.submit(lambda: self._evaluate(taken))

    def _evaluate(self, taken: _Taken) -> RoundAttribution:
        """Return a round's attribution; where the path leads out of what is finite, none."""
        losses = [_loss(end) for end in taken.ends]
        clients: tuple[ClientAttribution, ...] = ()
        if taken.parts and all(map(math.isfinite, losses)):
            try:
                clients = self._clients(taken, losses[0] - losses[1])
            except Exception as error:  # out of a user's model or loss, as likely as not
                reason = printable(str(error))
                logger.error("round %d cannot be attributed: %s", taken.server_round, reason)
        elif taken.parts:
            logger.error("round %d cannot be attributed: no finite loss", taken.server_round)
        return RoundAttribution(taken.server_round, losses[0], losses[1], clients)

    def _clients(self, taken: _Taken, decrease: float) -> tuple[ClientAttribution, ...]:
        """Return what each client contributed; one that also sent earlier updates has one sum."""
        coefficients: dict[Member, float] = {}
        sums: dict[Member, Tensor] = {}
        by_part = self._of_parts(taken, decrease)
        for index, (part, found) in enumerate(zip(taken.parts, by_part, strict=True)):
            for member, row, applied in zip(
                part.members, found, part.applied.tolist(), strict=True
            ):
                sums[member] = sums.get(member, torch.zeros_like(row)) + row
                coefficients.setdefault(member, 0.0 if index else applied)
        return tuple(
            ClientAttribution(*member, coefficients[member], total, tuple(classes))
            for member in sorted(sums)
            for total, *classes in [sums[member].tolist()]
        )

    def _of_parts(self, taken: _Taken, decrease: float) -> list[Tensor]:
        """Return the contributions ``[m, 1 + c]`` of each part, in all and by class."""
        known: dict[float, list[Tensor]] = {}
        found: list[Tensor] = []
        coarser: Tensor | None = None
        for rule in self._quadratures:
            known |= {n: self._slopes(taken, n) for n in rule.nodes if n not in known}
            found = []
            for index, part in enumerate(taken.parts):
                at_nodes = torch.stack([known[n][index] for n in rule.nodes])  # [nodes, 1 + c, m]
                values = [contributions(s, part.applied, rule) for s in at_nodes.unbind(1)]
                found.append(torch.stack(values, dim=1))
            totals = torch.cat([part[:, 0] for part in found])
            if is_settled(totals, coarser, decrease):
                break
            coarser = totals
        return found

    def _slopes(self, taken: _Taken, node: float) -> list[Tensor]:
        """Return, for each part, how fast the loss falls along its updates: ``[1 + c, m]``."""
        vectors = _between(taken, node)
        buffers = taken.names.named_buffers(vectors)
        gradients = [
            taken.ends[int(node)].result().gradient
            if node in (0.0, 1.0)
            else self.validation.gradient(vectors.params, buffers)
        ]
        for one_class in self._classes:
            share = one_class.num_examples / self.validation.num_examples
            gradients.append(one_class.gradient(vectors.params, buffers) * share)
        return [torch.stack([slopes(part.updates, g) for g in gradients]) for part in taken.parts]

    @property
    def _model(self) -> GlobalModel:
        assert self._strategy is not None  # on_start
        return self._strategy.model


def _loss(end: Future[LossAndGradient]) -> float:
    """Return the loss at one of the two models; NaN where the model has diverged."""
    # Whatever it is that a user's loss raises, the round before was combined without it.
    return math.nan if end.exception() else end.result().loss


def _between(taken: _Taken, node: float) -> ModelVectors:
    """Return the model at a point of the way from the old one, 0, to the new one, 1."""
    if node in (0.0, 1.0):
        return taken.after if node else taken.before
    before, after = taken.before, taken.after
    return ModelVectors(
        torch.lerp(before.params, after.params, node),
        torch.lerp(before.buffers, after.buffers, node),
        after.counters,
    )
