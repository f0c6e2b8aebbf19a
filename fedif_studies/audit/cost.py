"""What a valuation costs by itself: processor time, and passes over the held-out data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from fedif_flower.valuation import Validation
from fedif_flower.valuation.gradients import LossAndGradient
from fedif_flower.valuation.parallel import Judge
from fedif_studies.audit.federation import AuditStep, Watcher


class Counted(Validation):
    """A validation that counts the gradients and the evaluations that it is asked for."""

    def __init__(self, of: Validation) -> None:
        vars(self).update(vars(of))
        vars(self).pop("gradients", None)  # Those that others share are not counted.
        self.num_gradients = 0
        self.num_evaluations = 0

    def loss_and_gradient(
        self, params: Tensor, buffers: Mapping[str, Tensor] | None = None
    ) -> LossAndGradient:
        """Count one gradient."""
        self.num_gradients += 1
        return super().loss_and_gradient(params, buffers)

    def means(
        self, params: Tensor, buffers: Mapping[str, Tensor] | None, metrics: Sequence[str]
    ) -> Tensor:
        """Count one evaluation."""
        self.num_evaluations += 1
        return super().means(params, buffers, metrics)

    def mean_by(
        self, judge: Judge, params: Tensor, buffers: Mapping[str, Tensor], metric: str
    ) -> Tensor:
        """Count one evaluation."""
        self.num_evaluations += 1
        return super().mean_by(judge, params, buffers, metric)


class Priced:
    """A watcher, and what it costs when it shares nothing with others.

    Attributes
    ----------
    seconds : float
        Of the processor, all threads together.
    rounds : int
        That it looked at.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._counted: tuple[Counted, ...] = ()
        self.seconds, self.rounds = 0.0, 0

    def take(self, step: AuditStep) -> None:
        """Look at a round, with gradients of its own."""
        if not self._counted:
            self._counted = Counted(step.validation), Counted(step.paying)
        validation, paying = self._counted
        alone = replace(step, validation=validation, paying=paying)
        begun = time.process_time()
        self._watcher.take(alone)
        self.seconds += time.process_time() - begun
        self.rounds += 1

    @property
    def values(self) -> Tensor:
        """The watcher's values, ``[m]``."""
        return self._watcher.values

    def per_round(self) -> dict[str, float]:
        """Return milliseconds, gradients and evaluations of a round."""
        totals = {
            "milliseconds": 1000.0 * self.seconds,
            "gradients": sum(counted.num_gradients for counted in self._counted),
            "evaluations": sum(counted.num_evaluations for counted in self._counted),
        }
        return {name: total / self.rounds for name, total in totals.items()}
