"""The global model: as the record that clients receive, and as the vectors that are computed with.

It also checks that the server's own copies of the model, such as a validation set's, fit it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedif_flower.arithmetic import all_finite
from fedif_flower.errors import ConfigError, ReplyError, ValuationError, with_place
from fedif_flower.messages.arrays import is_statistic
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.names import Names, mismatch, names_in_model
from fedif_flower.round import ModelVectors
from fedif_flower.stages import Stages
from fedif_flower.valuation import Validation
from fedif_flower.words import enumerated


class OutOfRangeError(ValuationError):
    """A new model is not finite once it has the dtypes in which clients receive it."""


T = TypeVar("T")
logger = logging.getLogger(__name__)


def require_record(arrays: object) -> None:
    """Raise ConfigError unless a run's initial model is an ArrayRecord that is not empty."""
    if not isinstance(arrays, ArrayRecord):
        raise ConfigError(
            f"initial_arrays is of type {type(arrays).__name__}; allowed: an ArrayRecord, as "
            "ArrayRecord(model.state_dict())"
        )
    if not arrays:
        raise ConfigError("initial_arrays has no array; allowed: those of the model to begin with")


def require_shapes(
    whose: str,
    shapes: Mapping[str, Sequence[int]],
    arrays: Mapping[str, Array],
    *,
    trained: Sequence[str] = (),
    tied: Mapping[str, str] | None = None,
    names: Names | None = None,
) -> None:
    """Raise ConfigError unless the server's own copy of the model fits the arrays that are sent.

    It fits if it has every array that is sent, in the same shape, and if every parameter that it
    trains is sent.

    Parameters
    ----------
    whose : str
        The object that holds the copy, for errors.
    shapes : mapping of str to sequence of int
        The shapes of the copy's parameters and buffers, by name.
    arrays : mapping of str to Array
        The model that a run begins with, as it is sent.
    trained : sequence of str
        The names of the copy's parameters that have to be sent.
    tied : mapping of str to str, optional
        From the second name of an array of the copy (tied weights) to its first name.
    names : mapping of str to str, or callable, optional
        From the name under which an array is sent to its name in the copy.
    """
    name_in_model = names_in_model(names, arrays)  # By the name under which an array is sent.
    sent = set(name_in_model.values())
    unknown = [name for name, in_model in name_in_model.items() if in_model not in shapes]
    unsent = [name for name in trained if name not in sent]
    if unknown or unsent:
        others = [name for name in shapes if name not in sent]
        # A parameter that seems not to be sent may be sent under its second name.
        sent_by_second_name = {}
        for name, in_model in name_in_model.items():
            first_name = (tied or {}).get(in_model)
            if first_name in unsent:
                sent_by_second_name[name] = first_name
        raise ConfigError(mismatch(whose, unknown, unsent, others, sent_by_second_name))
    for name, array in arrays.items():
        in_model = name_in_model[name]
        shape = list(shapes[in_model])
        if list(array.shape) != shape:
            raise ConfigError(
                f"{whose} was given a model in which {in_model!r} has shape {shape}; in "
                f"initial_arrays it has {list(array.shape)}"
            )


def require_judge(whose: str, validation: Validation, model: GlobalModel) -> None:
    """Raise ConfigError unless a validation set's model is the model that is trained.

    Parameters
    ----------
    whose : str
        The object that was given the validation set, for errors.
    validation : Validation
        The validation set, with its model.
    model : GlobalModel
        The strategy's model, which has received its first arrays.
    """
    layout = model.layout
    trained = validation.parameter_names
    sent = model.record
    require_shapes(whose, validation.shapes, sent, trained=trained, names=layout.own_name)
    if layout.parameter_names != trained:
        raise ConfigError(
            f"the strategy trains other parameters than the model of {whose}; give it setup="
            "Setup(trainable_keys=validation.parameter_names, tied_keys=validation.tied_names)"
        )


def require_judges(stages: Stages, own: Validation | None, model: GlobalModel) -> None:
    """Raise ConfigError if a stage has a validation set whose model is not the one trained.

    Parameters
    ----------
    stages : Stages
        The strategy's stages.
    own : Validation, optional
        The strategy's own validation set: it was checked before.
    model : GlobalModel
        The strategy's model, which has received its first arrays.
    """
    for stage in stages:
        judge = getattr(stage, "validation", None)
        if isinstance(judge, Validation) and judge is not own:
            require_judge(type(stage).__name__, judge, model)


def warn_of_own_statistics(
    whose: str, shapes: Mapping[str, Sequence[int]], layout: ParameterLayout
) -> None:
    """Warn if batch norm's statistics are not sent: the server then uses those of its own copy.

    Parameters
    ----------
    whose : str
        The object that holds a copy of the model, for the warning.
    shapes : mapping of str to sequence of int
        The shapes of the copy's parameters and buffers, by name.
    layout : ParameterLayout
        The arrays that are sent.
    """
    sent = {layout.own_name(name) for name in layout.order}
    not_sent = [name for name in shapes if is_statistic(name) and name not in sent]
    if not_sent:
        logger.warning(
            "initial_arrays lack %s: %s judges by those of the model that it was given",
            enumerated(not_sent),
            whose,
        )


class GlobalModel:
    """The global model, and the last *proven* model, to which it can be taken back.

    A model is proven once a round that began from it has led to a new one; the model that a run
    begins with counts as proven. A new model may not work: most clients may fail on it, or its
    loss may not be finite. It is then replaced by the last proven one.

    Parameters
    ----------
    trainable_keys : sequence of str, optional
        The names of the trainable parameters
        (see :meth:`~fedif_flower.messages.layout.ParameterLayout.from_arrays`).
    tied_keys : mapping of str to str, optional
        From the second name of an array (tied weights) to its first name.
    stages : Stages
        The stages, whose server optimizer, if there is one, moves the model on after the round's
        own step.
    names : mapping of str to str, or callable, optional
        From the name under which an array is sent to its name in ``trainable_keys`` and
        ``tied_keys``.
    before_take_back : callable
        Called just before the model is taken back.

    Attributes
    ----------
    layout : ParameterLayout
        Where the arrays of the record lie in the vectors. It and the attributes below exist once
        the first model was received.
    record : ArrayRecord
        The model as clients receive it.
    vectors : ModelVectors
        The model as vectors, on the CPU.
    before_replacement : ModelVectors, optional
        The model before a loop sent another one in its place, such as the same with noise added.
    """

    layout: ParameterLayout
    record: ArrayRecord
    vectors: ModelVectors
    before_replacement: ModelVectors | None = None

    def __init__(
        self,
        trainable_keys: Sequence[str] | None,
        tied_keys: Mapping[str, str] | None,
        stages: Stages,
        names: Names | None,
        before_take_back: Callable[[], object],
    ) -> None:
        self._before_take_back = before_take_back
        self._optimizer = stages.optimizer
        self._trainable_keys = trainable_keys
        self._tied_keys = tied_keys
        self._names = names
        self._proven: ArrayRecord | None = None  # The last proven model; None before the first.
        self._earlier: ArrayRecord | None = None  # The proven model of the run that is resumed.
        self._taken_back: ArrayRecord | None = None  # The last model that was taken back.

    @property
    def named_buffers(self) -> dict[str, Tensor]:
        """The arrays that are not trained, by name."""
        return self.layout.named_buffers(self.vectors)

    @property
    def is_proven(self) -> bool:
        """Whether the model is proven itself, so that there is no other one to go back to."""
        return self._proven is self.record

    @property
    def way_back(self) -> ArrayRecord | None:
        """The proven model to which this one may be taken back; ``None`` if it is this one."""
        return None if self.is_proven else self._proven

    def require_copy(
        self, whose: str, shapes: Mapping[str, Sequence[int]], arrays: Mapping[str, Array]
    ) -> None:
        """Raise ConfigError unless a strategy's own copy of the model fits the arrays sent.

        Parameters
        ----------
        whose : str
            The strategy's name, for errors.
        shapes : mapping of str to sequence of int
            The shapes of the copy's parameters and buffers, by name; empty if it has no copy.
        arrays : mapping of str to Array
            The model that a run begins with.
        """
        if not shapes:
            return
        require_shapes(
            whose,
            shapes,
            arrays,
            trained=self._trainable_keys or (),
            tied=self._tied_keys,
            names=self._names,
        )

    def set_proven(self, earlier: ArrayRecord) -> None:
        """Set the proven model of a run that is resumed, before :meth:`begin`.

        The model that the run is resumed with is not proven yet. ``earlier`` has the same layout.
        """
        self._earlier = earlier

    def begin(self, arrays: ArrayRecord) -> None:
        """Make a record the model that a run begins with.

        Raises
        ------
        ConfigError
            If this object has had an earlier run, and ``arrays`` are not the model which that run
            ended with: the strategy has learned lengths, losses and directions of that model.
        ValueError, ReplyError
            As :meth:`receive` does.
        """
        if self._proven is not None and arrays != self.record:
            raise ConfigError(
                "this strategy has begun with another model: make a new strategy for each run, or "
                "go on from the arrays that the last run returned"
            )
        self.receive(arrays)

    def receive(self, arrays: ArrayRecord) -> ModelVectors:
        """Make a record the global model, and return its vectors.

        If ``arrays`` are the global model already, nothing changes. Nothing changes either if
        they are the model that was taken back last: a loop that is not the strategy's own may not
        know that it was, and sends it again.

        Raises
        ------
        ValueError, ReplyError
            If the record cannot be averaged, or does not have the first record's layout.
        """
        if self._proven is None:
            self.layout = ParameterLayout.from_arrays(
                arrays, self._trainable_keys, self._tied_keys, self._names
            )
        elif arrays is self._taken_back or arrays is self.record or arrays == self.record:
            return self.vectors
        vectors = self.layout.to_vectors(arrays)  # If it raises, the old model is still in place.
        if self._proven is not None:
            self.before_replacement = self.vectors
        self.record = arrays
        self.vectors = vectors
        if self._proven is None:
            self._proven = self._earlier or arrays
        return self.vectors

    def continues(self, vectors: ModelVectors) -> bool:
        """Tell whether the global model is still ``vectors``, or a model sent in their place."""
        return self.vectors is vectors or self.before_replacement is vectors

    def stands_still(self, vectors: ModelVectors) -> bool:
        """Tell whether a round's result ``vectors`` leaves the current model where it is.

        It does if parameters and buffers are the same, bit for bit, or if they are the same once
        clients receive them. Counters alone make no new model.
        """
        if self._optimizer and self._optimizer.moves_on:
            return False  # The optimizer's momentum moves the model even if the round does not.
        is_same = torch.equal(vectors.params, self.vectors.params)
        if is_same and torch.equal(vectors.buffers, self.vectors.buffers):
            return True
        if self._optimizer or not self.layout.narrows:
            return False
        # Clients receive the model in half precision, where rounding may undo a small step.
        return self.layout.to_arrays(vectors) == self.record

    def require_range(self, vectors: ModelVectors) -> None:
        """Raise OutOfRangeError if the model that clients would be sent is not finite.

        ``vectors``, a round's result, are finite. A server optimizer may still lead to values that
        are not, and so may rounding to half precision.
        """
        if self._proven is None:
            return  # No run has begun (a caller uses `aggregate` alone): no client gets the model.
        if self._optimizer is not None:
            params = self._optimizer.lead(self.vectors.params, vectors.params)
            if not all_finite(params):
                raise OutOfRangeError(
                    f"the aggregated model is not finite: {self._optimizer!r} leads to NaN or Inf"
                )
            vectors = replace(vectors, params=params)
        if not self.layout.narrows:
            return
        try:
            self.layout.to_vectors(self.layout.to_arrays(vectors))
        except ReplyError as error:
            raise OutOfRangeError(f"the aggregated model is not finite: {error}") from error

    def advance(self, vectors: ModelVectors) -> ArrayRecord:
        """Move to a round's result ``vectors``, and return the new record.

        If there is a server optimizer, the model moves to where it leads instead. The model before
        the step is proven now, since a round that began from it has succeeded.
        """
        if self._optimizer is not None:
            params = self._optimizer.advance(self.vectors.params, vectors.params)
            vectors = replace(vectors, params=params)
        self._proven = self.record
        self.record = self.layout.to_arrays(vectors)
        self._taken_back = None
        self.vectors = vectors
        if self.layout.narrows:
            # Updates are measured from the rounded model that clients receive: a client that sends
            # it back unchanged has an update of exactly 0.
            self.vectors = self.layout.to_vectors(self.record)
        return self.record

    def take_back(self) -> ArrayRecord | None:
        """Go back to the last proven model and return it; ``None`` if there is no other model."""
        if self._proven is None or self.is_proven:
            return None
        logger.error("the model goes back to the last one that worked")
        self._before_take_back()
        self._taken_back = self.record
        self.before_replacement = None
        self.record = self._proven
        self.vectors = self.layout.to_vectors(self.record)
        return self.record

    def ended_with(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return ``arrays``, or the global model if they are empty or were taken back."""
        if not arrays:
            return self.record
        if arrays is self._taken_back:
            return self.record
        return arrays

    def evaluate_or_take_back(self, evaluate: Callable[[ArrayRecord], T]) -> T:
        """Return ``evaluate(record)``; if the model makes it fail, take the model back.

        The model is the cause if ``evaluate`` raises on it, and not on the proven model. The result
        on the proven model is returned then.

        Raises
        ------
        Exception
            Whatever ``evaluate`` raises, if it raises on the proven model as well, or if there is
            no other model to go back to.
        """
        try:
            return evaluate(self.record)
        except Exception as error:
            if self.is_proven or self._proven is None:
                raise
            result = evaluate(self._proven)
            logger.error("the global model cannot be evaluated: %s", with_place(error))
            self.take_back()
            return result
