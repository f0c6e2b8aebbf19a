"""The model that a federation trains: as clients receive it, and as the vectors of the maths."""

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
    """A model is not finite, in the type in which clients receive it."""


T = TypeVar("T")
logger = logging.getLogger(__name__)
NO_STAGES = Stages()


def require_record(arrays: object) -> None:
    """Raise ConfigError unless a run begins with arrays, in a record."""
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
    """Raise ConfigError unless a model of one's own has every array that is sent, of its shape.

    Parameters
    ----------
    whose : str
        Who was given the model.
    shapes : mapping of str to sequence of int
        Of its parameters and buffers, by name.
    arrays : mapping of str to Array
        The model that a run begins with.
    trained : sequence of str
        Those of the model's parameters that have to be sent.
    tied : mapping of str to str, optional
        Second names of its arrays, and their first names.
    names : mapping of str to str, or callable, optional
        What the model calls an array, by the name under which it is sent.
    """
    name_in_model = names_in_model(names, arrays)  # By the name under which an array is sent.
    sent = set(name_in_model.values())
    unknown = [name for name, in_model in name_in_model.items() if in_model not in shapes]
    unsent = [name for name in trained if name not in sent]
    if unknown or unsent:
        others = [name for name in shapes if name not in sent]
        # Arrays that are sent under a second name of one that should have been.
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
    """Raise ConfigError unless a validation set judges the very model that is trained.

    Parameters
    ----------
    whose : str
        Who was given the validation set.
    validation : Validation
        The validation set, with a model.
    model : GlobalModel
        That of the strategy, with the first arrays.
    """
    layout = model.layout
    trained = validation.parameter_names
    sent = model.record
    require_shapes(whose, validation.shapes, sent, trained=trained, names=layout.own_name)
    if layout.parameter_names != trained:
        raise ConfigError(
            f"the strategy does not train what the model of {whose} does; give it setup="
            "Setup(trainable_keys=validation.parameter_names, tied_keys=validation.tied_names)"
        )


def require_judges(stages: Stages, own: Validation | None, model: GlobalModel) -> None:
    """Raise ConfigError where a stage judges steps of another model by held-out data.

    Parameters
    ----------
    stages : Stages
        Those of the strategy.
    own : Validation, optional
        The validation set that the strategy was given itself.
    model : GlobalModel
        That of the strategy, with the first arrays.
    """
    for stage in stages:
        judge = getattr(stage, "validation", None)
        if isinstance(judge, Validation) and judge is not own:
            require_judge(type(stage).__name__, judge, model)


def warn_of_own_statistics(
    whose: str, shapes: Mapping[str, Sequence[int]], layout: ParameterLayout
) -> None:
    """Warn where members keep batch norm's statistics: the server judges by its own then.

    Parameters
    ----------
    whose : str
        Who was given a model.
    shapes : mapping of str to sequence of int
        Of that model's parameters and buffers, by name.
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
    """A record and its vectors, and the last model from which a round succeeded.

    Parameters
    ----------
    trainable_keys : sequence of str, optional
        See :class:`~fedif_flower.messages.layout.ParameterLayout`.
    tied_keys : mapping of str to str, optional
        Second names of arrays (tied weights), and their first names.
    stages : Stages
        Their server optimizer, if they have one, moves the model on after the round's own step.
    names : mapping of str to str, or callable, optional
        What the keys call an array, by the name under which it is sent.
    before_take_back : callable, optional
        Is called where a model is about to be taken back; default: the stages are told.

    Attributes
    ----------
    layout : ParameterLayout
        Where the arrays of the record lie in the vectors; like the rest, from the first model on.
    record : ArrayRecord
        The model as clients receive it.
    vectors : ModelVectors
        The model as vectors, on the CPU.
    replaced : ModelVectors, optional
        The last model in the place of which another one was received, such as the same with noise.
    """

    layout: ParameterLayout
    record: ArrayRecord
    vectors: ModelVectors
    replaced: ModelVectors | None = None

    def __init__(
        self,
        trainable_keys: Sequence[str] | None = None,
        tied_keys: Mapping[str, str] | None = None,
        stages: Stages = NO_STAGES,
        names: Names | None = None,
        before_take_back: Callable[[], object] | None = None,
    ) -> None:
        self._before_take_back = before_take_back or stages.take_back
        self._optimizer = stages.optimizer
        self._trainable_keys = trainable_keys
        self._tied_keys = tied_keys
        self._names = names
        self._proven: ArrayRecord | None = None  # The last from which a round succeeded.
        self._earlier: ArrayRecord | None = None  # That one, of a run that goes on.
        self._taken_back: ArrayRecord | None = None  # The last that was.

    @property
    def named_buffers(self) -> dict[str, Tensor]:
        """The arrays that are not trained, by name."""
        return self.layout.named_buffers(self.vectors)

    @property
    def is_proven(self) -> bool:
        """Whether there is no other model to go back to."""
        return self._proven is self.record

    @property
    def way_back(self) -> ArrayRecord | None:
        """The model that this one may yet be taken back to; ``None``: it is this one."""
        return None if self.is_proven else self._proven

    def require_copy(
        self, whose: str, shapes: Mapping[str, Sequence[int]], arrays: Mapping[str, Array]
    ) -> None:
        """Raise ConfigError unless a strategy's own copy of the model is of the shapes sent.

        Parameters
        ----------
        whose : str
            The strategy.
        shapes : mapping of str to sequence of int
            Of its copy's parameters and buffers, by name; empty: it has none.
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

    def go_on(self, earlier: ArrayRecord) -> None:
        """Take a model to go back to: the one that a run goes on with has not proved to work.

        It is of the layout of that one, which is to be begun with.
        """
        self._earlier = earlier

    def begin(self, arrays: ArrayRecord) -> None:
        """Make a record the model that a run begins with.

        Raises
        ------
        ConfigError
            If there was an earlier run, and it is not the model that this has led to: lengths,
            losses and directions that were learned are that one's.
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
        """Make a record the global model and return its vectors.

        The model that is global already is not unpacked again. In the place of one that was taken
        back stays the one that it was taken back to: another loop than the strategy's own may not
        know of it.

        Raises
        ------
        ValueError, ReplyError
            If the record is none that can be averaged, or not of the first one's layout.
        """
        if self._proven is None:
            self.layout = ParameterLayout.from_arrays(
                arrays, self._trainable_keys, self._tied_keys, self._names
            )
        elif arrays is self._taken_back or arrays is self.record or arrays == self.record:
            return self.vectors
        vectors = self.layout.to_vectors(arrays)  # An error leaves the model that was.
        if self._proven is not None:
            self.replaced = self.vectors
        self.record = arrays
        self.vectors = vectors
        if self._proven is None:
            self._proven = self._earlier or arrays
        return self.vectors

    def continues(self, vectors: ModelVectors) -> bool:
        """Tell whether it is a model still, or what was received in the place of that."""
        return self.vectors is vectors or self.replaced is vectors

    def stands_still(self, vectors: ModelVectors) -> bool:
        """Tell whether a round's result is the model that it began with, to the last bit."""
        if self._optimizer and self._optimizer.moves_on:
            return False  # Earlier steps lead on.
        is_same = torch.equal(vectors.params, self.vectors.params)
        if is_same and torch.equal(vectors.buffers, self.vectors.buffers):
            return True
        if self._optimizer or not self.layout.narrows:
            return False
        # Clients receive it in half precision: there a small step may be none.
        return self.layout.to_arrays(vectors) == self.record

    def require_range(self, vectors: ModelVectors) -> None:
        """Raise OutOfRangeError where clients could not be sent what a round leads to.

        A server optimizer may lead to what is not finite, though the vectors are; so may rounding
        to half precision.
        """
        if self._proven is None:
            return  # Who aggregates without a run sends nobody a model.
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
        """Move on to a round's result; the model before it has proved to work."""
        if self._optimizer is not None:
            params = self._optimizer.advance(self.vectors.params, vectors.params)
            vectors = replace(vectors, params=params)
        self._proven = self.record
        self.record = self.layout.to_arrays(vectors)
        self._taken_back = None
        self.vectors = vectors
        if self.layout.narrows:
            # Updates begin at what clients receive: who sends that back has changed nothing.
            self.vectors = self.layout.to_vectors(self.record)
        return self.record

    def take_back(self) -> ArrayRecord | None:
        """Return to the last model from which a round succeeded; ``None`` if that is this one."""
        if self._proven is None or self.is_proven:
            return None
        logger.error("the model goes back to the last one that worked")
        self._before_take_back()
        self._taken_back = self.record
        self.replaced = None
        self.record = self._proven
        self.vectors = self.layout.to_vectors(self.record)
        return self.record

    def ended_with(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return what a loop ended with; where that is nothing, or was taken back, the model."""
        if not arrays:
            return self.record
        if arrays is self._taken_back:
            return self.record
        return arrays

    def evaluate_or_take_back(self, evaluate: Callable[[ArrayRecord], T]) -> T:
        """Return what ``evaluate(record)`` does, and take the model back if it is why that fails.

        Raises
        ------
        Exception
            What ``evaluate`` raises, if it raises on the last model that worked as well, or if
            there is none.
        """
        try:
            return evaluate(self.record)
        except Exception as error:
            if self.is_proven or self._proven is None:
                raise
            of_proven_model = evaluate(self._proven)
            logger.error("the global model cannot be evaluated: %s", with_place(error))
            self.take_back()
            return of_proven_model
