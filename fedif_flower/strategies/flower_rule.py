"""Flower's own aggregation rules behind our screening: any of them, by the instance."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower_strategies
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.messages.means import MetricsAggregation
from fedif_flower.messages.metrics import scalar
from fedif_flower.messages.screening import AcceptedReply
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates, combine, largest_counters
from fedif_flower.stages import Stage
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.setup import DEFAULTS, Setup
from fedif_flower.strategies.state import Stateful

_SAMPLING = (
    *("fraction_train", "fraction_evaluate", "min_train_nodes", "min_evaluate_nodes"),
    *("min_available_nodes", "weighted_by_key", "arrayrecord_key", "configrecord_key"),
)


class FlowerRule(ScreenedStrategy):
    """Screen and sort the replies, then let one of Flower's strategies aggregate them.

    Its rule sees every floating-point array of the model, batch-norm statistics included (held
    within the clients' own spread), and integer arrays as well. A server optimiser (``FedAdagrad``,
    ``FedAdam``, ``FedYogi``, ``FedAvgM``, ``QFedAvg``) sees the trainable parameters alone, so give
    ``trainable_keys``: batch-norm statistics are averaged, since a variance that takes an
    optimiser's step can become negative.

    ``QFedAvg`` weighs by the losses that clients report: a reply without one is refused, but one
    that exaggerates gains weight.

    Parameters
    ----------
    inner : flwr.serverapp.strategy.FedAvg
        A strategy whose ``aggregate_train`` is the rule, e.g. ``FedMedian()``. What it says of
        sampling and of keys is replaced by this strategy's own.
    stages, callbacks, setup, and Flower's arguments
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.

    Raises
    ------
    ConfigError
        If ``inner`` cannot work so: it is none of Flower's rules on arrays.
    """

    keep_arrays = True
    combines_updates = False

    def __init__(
        self,
        inner: FlowerFedAvg,
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
        stages: Sequence[Stage] | None = None,
        callbacks: Sequence[Callback] = (),
        setup: Setup = DEFAULTS,
    ) -> None:
        _require_fit(inner)
        super().__init__(
            fraction_train,
            fraction_evaluate,
            min_train_nodes,
            min_evaluate_nodes,
            min_available_nodes,
            weighted_by_key,
            arrayrecord_key,
            configrecord_key,
            train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn,
            stages=stages,
            callbacks=callbacks,
            setup=setup,
        )
        if self.stages.change_updates or self.stages.choose_steps:
            raise ConfigError(
                f"stages = {self.stages}; allowed with Flower's own rules: none that change "
                "updates or choose a step, such as ServerMomentum(0.5)"
            )
        self.inner = inner
        self.rule_state = _RuleState(inner)
        for name in _SAMPLING:
            setattr(inner, name, getattr(self, name))
        # Only Flower's server optimisers keep the model that they step from.
        self._is_optimizer = hasattr(inner, "current_arrays")
        self._loss_key: str | None = getattr(inner, "train_loss_key", None)
        if self._loss_key is not None:
            self.limits = replace(self.limits, required_metrics=(self._loss_key,))

    def summary(self) -> None:
        """Log the settings of the screening, then those of the inner strategy."""
        super().summary()
        self.inner.summary()

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds: the optimiser's moments too."""
        return super().stateful() | {"rule": self.rule_state}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the rule see the model and add to ``config``; then draw clients as ever."""
        self.model.receive(arrays)  # The layout is read off the first model.
        if self._is_optimizer:
            # FedAvgM would go on from a model of its own, even if the round then failed.
            self.inner.current_arrays = None  # type: ignore[attr-defined]
        try:
            self.inner.fraction_train = 0.0  # It draws nobody.
            handed = ArrayRecord(self._handed(arrays))
            self.inner.configure_train(server_round, handed, config, grid)
        finally:
            self.inner.fraction_train = self.fraction_train
        return super().configure_train(server_round, arrays, config, grid)

    def merge(
        self, updates: RoundUpdates, accepted: Sequence[AcceptedReply]
    ) -> tuple[ModelVectors, Aggregation]:
        """Let Flower's rule make a model of the replies; it gives no weights, NaN."""
        # The rule works coordinate by coordinate: NaN says that no client has a weight of its own.
        weights = torch.full((len(accepted),), float("nan"))
        counters = largest_counters([reply.counters for reply in accepted], weights)
        before = self.rule_state.remember()
        try:
            vectors = self._apply(updates, accepted)
        except Exception as error:  # Flower's rules raise what they like: the round fails
            self.rule_state.restore(before)
            name = type(self.inner).__name__
            raise ValuationError(f"{name} made no model of the replies: {error}") from error
        if self._is_optimizer:
            shares = updates.num_examples / updates.num_examples.sum()
            buffers = combine(updates.global_buffers, updates.buffer_updates, shares).cpu()
            vectors = replace(vectors, buffers=buffers)
        return replace(vectors, counters=counters), Aggregation(weights=weights)

    def _apply(self, updates: RoundUpdates, accepted: Sequence[AcceptedReply]) -> ModelVectors:
        """Return what the rule makes of the replies; what it did not see is as it was sent."""
        bounded = updates.global_buffers + updates.buffer_updates  # [m, b]
        messages = [
            self._message(reply, self.model.layout.pack_buffers(buffers))
            for reply, buffers in zip(accepted, bounded, strict=True)
        ]
        with _cheap_collections():
            arrays, _ = self.inner.aggregate_train(updates.server_round, messages)
        if arrays is None:
            raise ValuationError("it returned nothing")
        vectors = self.model.layout.cast({**self.model.record, **arrays})
        self.model.layout.check_variances(self.model.layout.to_arrays(vectors), vectors)
        return vectors

    def _message(self, reply: AcceptedReply, buffers: Mapping[str, Array]) -> Message:
        """Rebuild a reply with bounded buffers and nothing in it but what the rule needs."""
        assert reply.arrays is not None  # keep_arrays
        metrics = {self.weighted_by_key: reply.num_examples}
        if self._loss_key is not None:
            loss = scalar(reply.reported.metrics, self._loss_key)
            assert loss is not None  # it is required
            metrics[self._loss_key] = loss
        arrays = ArrayRecord(self._handed({**reply.arrays, **buffers}))
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord(dict(metrics))})
        return Message(content, reply.node.node_id, MessageType.TRAIN)

    def _handed(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the arrays that the rule sees."""
        if not self._is_optimizer:
            # Constants stay away: the distance between two masks of -inf is NaN.
            constants = self.model.layout.constants
            return {name: array for name, array in arrays.items() if name not in constants}
        return {spec.name: arrays[spec.name] for spec in self.model.layout.trainable}


@contextmanager
def _cheap_collections() -> Iterator[None]:
    """Keep the garbage collector off what is alive already."""
    # Flower calls gc.collect for every reply that Bulyan or the median unpacks, some 0.2 s each
    # beside torch: longer than the rule itself.
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _RuleState:
    """The moments that Flower's server optimisers keep from round to round."""

    _NAMES = ("m_t", "v_t", "momentum_vector")

    def __init__(self, inner: FlowerFedAvg) -> None:
        self._inner = inner

    def remember(self) -> dict[str, Any]:
        """Return the moments; Flower's rules replace them and never change them in place."""
        return {name: getattr(self._inner, name) for name in self._NAMES if self._has(name)}

    def restore(self, moments: Mapping[str, Any]) -> None:
        """Take over what :meth:`remember` returned."""
        for name, value in moments.items():
            setattr(self._inner, name, value)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments as tensors."""
        return {k: _convert(v, torch.from_numpy) for k, v in self.remember().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.restore({k: _convert(v, lambda t: t.numpy()) for k, v in state.items()})

    def _has(self, name: str) -> bool:
        return hasattr(self._inner, name)


def _convert(moments: Any, convert: Any) -> Any:
    """Apply ``convert`` to copies of all arrays of a dict or list, if there is one."""
    if moments is None:
        return None
    if isinstance(moments, Mapping):
        return {name: _convert(value, convert) for name, value in moments.items()}
    if isinstance(moments, list):
        return [_convert(value, convert) for value in moments]
    return convert(np.array(moments) if not isinstance(moments, torch.Tensor) else moments.clone())


def _require_fit(inner: object) -> None:
    """Raise ConfigError for strategies that cannot aggregate screened arrays."""
    name = type(inner).__name__
    if not isinstance(inner, FlowerFedAvg):
        raise ConfigError(
            f"inner = {name}; allowed: FedAvg and its subclasses in flwr.serverapp.strategy. "
            "A wrapper such as differential privacy samples and sends messages by itself"
        )
    if isinstance(inner, ScreenedStrategy):
        raise ConfigError(f"inner = {name}; use it by itself: it screens replies already")
    if isinstance(inner, flower_strategies.FedXgbBagging | flower_strategies.FedXgbCyclic):
        raise ConfigError(
            f"inner = {name}: it aggregates trees, whose arrays change their length; screening "
            "needs arrays of a fixed shape"
        )
